//! Lent pages taken back: those of packed objects beside those of a page cache, which are clean;
//! and the page cache that stores pages compressed beside the one that does not.
//!
//! Both reserves are of one kind, and full when first class asks; who is asked first changes with
//! the round. The workload of the caches is larger than the reserve: pages of the tree, each read
//! through the cache at random, three of four times from the first fifth.

use std::hint::black_box;

use glebe::contig::{Contig, Source};
use glebe::reserve::{CacheMode, ObjectPool, Pool, Request, Reserve};
use glebe::units::Bytes;
use glebe::zpool::Codec;

use super::speed::Pages;
use super::Error;
use crate::clock::{thread_cpu, Stopwatch};
use crate::interrupt;
use crate::progress::Progress;
use crate::report::Report;
use crate::reserve::keyed::Random;
use crate::summary::Summary;

const CALLED_BACK: u64 = 32000;
/// Of the reserves, with room for a block that begins anywhere.
const RESERVE: Bytes = Bytes::mib(128);
/// Blocks of one page, held at once: more than are kept at hand, so that lent ones are taken.
const SINGLES: usize = 600;
/// Rounds of calling back for each round of the rest; even, so that each is asked first as often.
const CALLS_PER_ROUND: usize = 8;
/// Reads of the caches for each page of the workload.
const READS_PER_PAGE: usize = 4;
const GLEBE: &str = "glebe";
const PLAIN: &str = "plain";

fn reserve(len: Bytes, cache: CacheMode) -> Result<Reserve, Error> {
    let memory = Contig::options().source(Source::Thp);
    let memory = memory.map(len).or_else(|_| Contig::options().source(Source::Plain).map(len));
    Ok(Reserve::builder().page_cache(cache).build(memory.map_err(glebe::reserve::Error::from)?)?)
}

/// Measures and reports.
pub(super) fn measure(pages: &Pages, rounds: usize, report: &mut Report) -> Result<(), Error> {
    called_back(rounds * CALLS_PER_ROUND, report)?;
    caches(pages, rounds.min(3), report)
}

/// Fills what is free of a reserve with objects of about a third of a page.
fn fill_packed(pool: &ObjectPool, random: &mut Random, objects: u64) -> Result<(), Error> {
    let mut bytes = [0_u8; 2048];
    for nth in 0..objects {
        let len = 600 + random.below(1400) as usize;
        bytes[..8].copy_from_slice(&nth.to_ne_bytes());
        pool.insert(&bytes[..len])?;
    }
    Ok(())
}

fn fill_plain(cache: &Pool, round: u64, pages: u64, page: &[u8]) -> Result<(), Error> {
    for index in 0..pages {
        cache.put(round, index, page)?;
    }
    Ok(())
}

/// What blocks took, in microseconds.
#[derive(Default)]
struct Took {
    /// Those of [`CALLED_BACK`] pages, by whether the other reserve was asked before.
    many: [Vec<f64>; 2],
    /// Those of one page.
    one: Vec<f64>,
}

impl Took {
    /// The mean of those asked first and second: which it is makes a difference of its own, so that
    /// the median of all lies anywhere between them.
    fn typical(&self) -> f64 {
        let median = |samples: &Vec<f64>| Summary::of(samples).map_or(f64::NAN, |all| all.median);
        self.many.iter().map(median).sum::<f64>() / 2.0
    }

    fn report(&self, who: &str, report: &mut Report) {
        report.row("callback_32000", who, "us", &self.many.concat());
        report.row("callback_1", who, "us", &self.one);
    }
}

/// Times blocks of a reserve, which is the `nth` that is asked.
fn take(reserve: &Reserve, nth: usize, took: &mut Took) -> Result<(), Error> {
    let page = glebe::units::Pages::new(1);
    let mut singles = Vec::with_capacity(SINGLES);
    for single in 0..SINGLES {
        let watch = Stopwatch::start();
        let block = reserve.alloc_with(Request::new(page))?;
        if single >= SINGLES / 2 {
            took.one.push(watch.elapsed().wall_us);
        }
        singles.push(block);
    }
    drop(singles);
    let watch = Stopwatch::start();
    let block = reserve.alloc_with(Request::new(glebe::units::Pages::new(CALLED_BACK)).any())?;
    took.many[nth].push(watch.elapsed().wall_us);
    drop(block);
    Ok(())
}

fn called_back(rounds: usize, report: &mut Report) -> Result<(), Error> {
    let packed = reserve(RESERVE, CacheMode::Plain)?;
    let plain = reserve(RESERVE, CacheMode::Plain)?;
    let pages = plain.len().get();
    let objects = packed.object_pool().codec(Codec::None).build()?;
    let cache = plain.page_cache().pool("clean")?;
    let page = vec![0x5a; glebe::sys::page_size().bytes().as_usize()];
    let mut random = Random::new(11);
    let (mut ours, mut theirs) = (Took::default(), Took::default());
    let mut lent = Vec::new();
    let mut progress = Progress::new("call-back", rounds as u64);
    for round in 0..rounds as u64 {
        progress.update(round);
        interrupt::check();
        // Who is filled last has its words at hand, and is asked first.
        if round % 2 == 0 {
            fill_plain(&cache, round, pages, &page)?;
            fill_packed(&objects, &mut random, pages * 7 / 2)?;
        } else {
            fill_packed(&objects, &mut random, pages * 7 / 2)?;
            fill_plain(&cache, round, pages, &page)?;
        }
        lent.push(packed.stats().live.get() as f64 / pages as f64);
        if round % 2 == 0 {
            take(&packed, 0, &mut ours)?;
            take(&plain, 1, &mut theirs)?;
        } else {
            take(&plain, 0, &mut theirs)?;
            take(&packed, 1, &mut ours)?;
        }
    }
    progress.clear();
    ours.report(GLEBE, report);
    theirs.report("clean page cache", report);
    report.row("callback_lent", GLEBE, "of the reserve", &lent);
    report.ratio("callback_32000_vs_clean", ours.typical() / theirs.typical());
    report.note(
        "callback: blocks of one page and of 32000, of a reserve that is full of packed objects \
         (callback_lent: how full) and of one that is full of page cache; the ratio is of the \
         means of those asked first and of those asked second.",
    );
    Ok(())
}

/// One cache at work.
struct Cache {
    who: &'static str,
    mode: CacheMode,
    held: Vec<f64>,
    put_us: Vec<f64>,
    get_us: Vec<f64>,
    hits: Vec<f64>,
}

impl Cache {
    fn new(who: &'static str, mode: CacheMode) -> Self {
        let empty = Vec::new;
        Self { who, mode, held: empty(), put_us: empty(), get_us: empty(), hits: empty() }
    }

    fn round(&mut self, pages: &Pages, len: Bytes, report: &mut Report) -> Result<(), Error> {
        let all: Vec<&[u8]> = pages.bytes.as_slice().chunks_exact(pages.page).collect();
        let reserve = reserve(len, self.mode.clone())?;
        let pool = reserve.page_cache().pool("tree")?;
        let mut buffer = vec![0; pages.page];
        let count = all.len() as f64;
        let begin = thread_cpu();
        for (index, page) in all.iter().enumerate() {
            pool.put(1, index as u64, page)?;
        }
        self.put_us.push((thread_cpu() - begin).as_secs_f64() * 1e6 / count);
        let (mut found, mut wrong) = (Vec::new(), 0);
        for (index, page) in all.iter().enumerate() {
            if pool.get(1, index as u64, &mut buffer)? {
                found.push(index as u64);
                wrong += u64::from(buffer != *page);
            }
        }
        let begin = thread_cpu();
        for index in &found {
            black_box(pool.get(1, *index, &mut buffer)?);
        }
        let took = (thread_cpu() - begin).as_secs_f64();
        self.held.push(found.len() as f64);
        self.get_us.push(took * 1e6 / found.len().max(1) as f64);
        let (mut random, mut hits) = (Random::new(23), 0);
        for _ in 0..READS_PER_PAGE * all.len() {
            let range = if random.below(4) < 3 { all.len() / 5 } else { all.len() };
            let index = random.below(range.max(1) as u64) as usize;
            if pool.get(1, index as u64, &mut buffer)? {
                hits += 1;
                wrong += u64::from(buffer != all[index]);
            } else {
                pool.put(1, index as u64, all[index])?;
            }
        }
        self.hits.push(f64::from(hits) / (READS_PER_PAGE as f64 * count) * 100.0);
        report.check("wrong_bytes", wrong);
        Ok(())
    }
}

fn caches(pages: &Pages, rounds: usize, report: &mut Report) -> Result<(), Error> {
    let len = Bytes::new(pages.bytes.as_slice().len() as u64 / 5);
    let mut both = [
        Cache::new("compressed", CacheMode::Compressed(Codec::Lz4)),
        Cache::new(PLAIN, CacheMode::Plain),
    ];
    let mut progress = Progress::new("caches", rounds as u64);
    for round in 0..rounds {
        progress.update(round as u64);
        for cache in &mut both {
            interrupt::check();
            cache.round(pages, len, report)?;
        }
    }
    progress.clear();
    for cache in &both {
        report.row("cache_pages", cache.who, "pages held", &cache.held);
        report.row("cache_put", cache.who, "CPU us", &cache.put_us);
        report.row("cache_get", cache.who, "CPU us", &cache.get_us);
        report.row("cache_hits", cache.who, "%", &cache.hits);
    }
    report.note(&format!(
        "cache: a reserve of {len}, a fifth of the pages that are put; then reads through it, \
         three of four from the first fifth of the pages.",
    ));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::aligned::Aligned;
    use super::*;

    #[test]
    fn a_compressed_cache_holds_more_pages_and_finds_no_wrong_one() {
        let page = glebe::sys::page_size().bytes().as_usize();
        let mut bytes = Aligned::new(Pages::whole(16 << 20));
        for (nth, page) in bytes.bytes().chunks_exact_mut(page).enumerate() {
            page.iter_mut().step_by(3).for_each(|byte| *byte = nth as u8);
            page[..8].copy_from_slice(&(nth as u64).to_ne_bytes());
        }
        let pages = Pages { bytes, page };
        let mut report = Report::new("callback", "test", true);
        report.check("wrong_bytes", 0);
        measure(&pages, 2, &mut report).unwrap();
        println!("{}", report.text());
        assert!(report.passed());
    }
}
