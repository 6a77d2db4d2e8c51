//! [`Reader`]: a program that reads files through the reserve's page cache.
//!
//! It goes through the corpus page by page and, after each, reads again one that it has read
//! before: a page is got from the cache or else read by the corpus's path and put. Every hit is
//! compared with the file outside the time taken. Seconds saved are what the hits would have cost
//! as reads, less what they cost as hits and less what keeping pages cost on misses: the vain get,
//! the put. Units: seconds.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use glebe::reserve::Pool;

use super::keyed::Random;
use super::{page_buffer, Error};
use crate::clock;
use crate::corpus::{Check, Corpus, PageKey};

/// What a reader did so far; read by others while it goes on.
#[derive(Debug, Default)]
pub(super) struct Reader {
    /// Pages of the first pass that are behind it.
    pub(super) first_pass: AtomicU64,
    /// Set to end it.
    pub(super) stop: AtomicBool,
}

/// What a reader did and found.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// Pages that were there.
    pub hits: u64,
    /// Pages that were not.
    pub misses: u64,
    /// Seconds in hits.
    pub hit_s: f64,
    /// Seconds reading after misses: what a program without a cache pays.
    pub read_s: f64,
    /// Seconds of misses beside the read: the get in vain and the put.
    pub keep_s: f64,
    /// Hits that are not the file's bytes.
    pub wrong_pages: u64,
    /// Reads that failed or found the file changed; such files are left alone.
    pub unreadable: u64,
    /// Why the cache refused a call.
    pub errors: Vec<String>,
}

impl Reading {
    /// Mean microseconds of a hit.
    #[must_use]
    pub fn hit_us(&self) -> f64 {
        self.hit_s * 1e6 / self.hits.max(1) as f64
    }

    /// Mean microseconds of a read.
    #[must_use]
    pub fn read_us(&self) -> f64 {
        self.read_s * 1e6 / self.misses.max(1) as f64
    }

    /// Seconds by which the cache made reading shorter; negative if it did not.
    #[must_use]
    pub fn saved_s(&self) -> f64 {
        self.hits as f64 * (self.read_us() - self.hit_us()) / 1e6 - self.keep_s
    }
}

impl Reader {
    /// Reads until told to stop.
    pub(super) fn run(&self, corpus: &Corpus, pool: &Pool) -> Result<Reading, Error> {
        let pages: Vec<(usize, u64)> = corpus
            .files()
            .iter()
            .enumerate()
            .flat_map(|(file, entry)| (0..entry.pages().get()).map(move |index| (file, index)))
            .collect();
        let mut reading = Reading::default();
        let mut random = Random::new(1);
        let (mut page, mut at) = (page_buffer(), 0);
        while !self.stop.load(Ordering::Relaxed) && reading.errors.is_empty() {
            read_one(corpus, pool, pages[at], &mut page, &mut reading);
            at += 1;
            self.first_pass.fetch_max(at as u64, Ordering::Relaxed);
            let seen = self.first_pass.load(Ordering::Relaxed);
            let again = pages[random.below(seen) as usize];
            read_one(corpus, pool, again, &mut page, &mut reading);
            at %= pages.len();
        }
        Ok(reading)
    }
}

/// The same for a page of a file in every run, and different for different files of one system.
fn object(key: PageKey) -> u64 {
    key.device.rotate_left(32) ^ key.inode
}

fn read_one(
    corpus: &Corpus,
    pool: &Pool,
    (file, index): (usize, u64),
    page: &mut [u8],
    out: &mut Reading,
) {
    let Some(key) = corpus.key(file, index) else { return };
    if corpus.files()[file].is_excluded() {
        return;
    }
    let start = clock::wall();
    let hit = pool.get(object(key), index, page);
    let got = clock::wall();
    match hit {
        Ok(true) => {
            out.hits += 1;
            out.hit_s += (got - start).as_secs_f64();
            match corpus.check_page(file, index, page) {
                Ok(Check::Same) => {}
                Ok(Check::Wrong) => out.wrong_pages += 1,
                Ok(Check::Changed) | Err(_) => out.unreadable += 1,
            }
        }
        Ok(false) => {
            if corpus.read_page(file, index, page).is_err() {
                out.unreadable += 1;
                return;
            }
            let read = clock::wall();
            if let Err(e) = pool.put(object(key), index, page) {
                out.errors.push(format!("put: {e}"));
            }
            out.misses += 1;
            out.read_s += (read - got).as_secs_f64();
            out.keep_s += (got - start + (clock::wall() - read)).as_secs_f64();
        }
        Err(e) => out.errors.push(format!("get: {e}")),
    }
}
