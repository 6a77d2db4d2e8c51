//! A cache of tiles that are inflated on a miss: of volatile memory, of a fixed size, and of
//! whole objects that are lost when one of their pages is.
//!
//! Beside the cache another part of the program has memory by turns and gives it back. A cache of
//! fixed size must leave room for that at all times; the others use what there is, and give way.
//! The whole-object scheme is an own minimal version of what Chromium's `MADV_FREE` backing of
//! discardable memory does: a cookie in the first word of each page, and one page lost loses the
//! object. Tiles are asked for by a skewed distribution; every page is checked for whose it is.
//! Unit: microseconds a tile, of the thread's CPU time, the kernel's work for it included.

use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;
use flate2::Compression;
use glebe::sys::madvise::Advice;
use glebe::sys::page_size;
use glebe::units::{Bytes, Pages};
use glebe::volatile::{Priority, Region};
use serde::{Deserialize, Serialize};

use super::bare::Bare;
use super::{Error, Which};
use crate::clock::{micros, thread_cpu, wall};
use crate::interrupt::Stop;
use crate::reserve::keyed::{mix, Random};

pub(super) const LIMIT: Bytes = Bytes::mib(96);
/// Pages of a tile.
pub(super) const TILE: u64 = 16;
/// All tiles there are, more than the limit.
const TILES: u64 = 2048;
/// What the other part of the program has at times, and leaves in between.
const OTHER: Bytes = Bytes::mib(40);
/// What the program needs beside.
const SLACK: Bytes = Bytes::mib(16);
/// How long the other part has its memory, and how long not; that is the longer.
const WITH: Duration = Duration::from_millis(200);
const WITHOUT: Duration = Duration::from_millis(600);
/// Gets that make one sample.
const BATCH: u64 = 500;
/// Different contents that are deflated; the tile's number is put into each page.
const PATTERNS: u64 = 64;

/// Who keeps the tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Keeper {
    /// Volatile memory.
    Volatile(Which),
    /// Ordinary memory, as much as there is at all times.
    Fixed,
    /// All or nothing of a tile.
    WholeObject,
}

/// What a child is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    pub(super) keeper: Keeper,
    pub(super) time_ms: u64,
}

/// What it came to.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Served {
    /// Mean of each batch.
    pub(super) us: Vec<f64>,
    pub(super) gets: u64,
    pub(super) inflated_pages: u64,
    /// Of tiles that were in the cache, the pages that were lost and that were not.
    pub(super) lost_pages: u64,
    pub(super) kept_pages: u64,
    /// Pages that were not those of the tile.
    pub(super) wrong_pages: u64,
}

/// Memory of slots for tiles.
enum Store {
    Volatile(Box<Region>),
    /// With the words that cookies stand in for, where tiles may go.
    Bare(Bare, Option<Vec<u64>>),
}

/// A tile in each slot, and the slot of each tile.
struct Cache {
    store: Store,
    tile_of: Vec<Option<u64>>,
    slot_of: Vec<Option<usize>>,
    /// Used since the hand passed.
    used: Vec<bool>,
    hand: usize,
}

/// In the child.
pub(super) fn inside(plan: &Plan) -> Result<Served, Error> {
    let deflated: Vec<Vec<u8>> = (0..PATTERNS).map(deflated).collect();
    let mut cache = Cache::new(plan.keeper)?;
    // From the start there is no room left that nobody has used.
    let mut tile = vec![0; tile_bytes()];
    for id in 0..cache.used.len() as u64 {
        cache.get(id, &deflated, &mut tile, &mut Served::default())?;
    }
    let mut served = Served::default();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| other(&stop));
        let mut random = Random::new(3);
        let end = wall() + Duration::from_millis(plan.time_ms);
        while wall() < end {
            let start = thread_cpu();
            for _ in 0..BATCH {
                let id = skewed(&mut random);
                cache.get(id, &deflated, &mut tile, &mut served)?;
                served.wrong_pages += wrong_pages(id, &tile);
            }
            served.gets += BATCH;
            served.us.push(micros(thread_cpu() - start) / BATCH as f64);
        }
        Ok(served)
    })
}

/// Has memory by turns.
fn other(stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(WITHOUT);
        let mut memory = vec![0_u8; OTHER.as_usize()];
        memory.iter_mut().step_by(page_size().bytes().as_usize()).for_each(|byte| *byte = 1);
        std::thread::sleep(WITH);
        drop(std::hint::black_box(memory));
    }
}

impl Cache {
    fn new(keeper: Keeper) -> Result<Self, Error> {
        let most = LIMIT.saturating_sub(SLACK);
        let len = match keeper {
            Keeper::Fixed => most.saturating_sub(OTHER),
            Keeper::Volatile(_) | Keeper::WholeObject => most,
        };
        let slots = len.get() as usize / tile_bytes();
        let store = match keeper {
            Keeper::Volatile(which) => Store::Volatile(Box::new(which.map(len)?)),
            Keeper::Fixed => Store::Bare(Bare::new(len, None)?, None),
            Keeper::WholeObject => {
                let saved = vec![0; len.pages_up(page_size()).as_usize()];
                Store::Bare(Bare::new(len, None)?, Some(saved))
            }
        };
        Ok(Self {
            store,
            tile_of: vec![None; slots],
            slot_of: vec![None; TILES as usize],
            used: vec![false; slots],
            hand: 0,
        })
    }

    /// Copies a tile out, after inflating what is not there.
    fn get(
        &mut self,
        id: u64,
        deflated: &[Vec<u8>],
        tile: &mut [u8],
        served: &mut Served,
    ) -> Result<(), Error> {
        let known = self.slot_of[id as usize];
        let slot = known.unwrap_or_else(|| self.victim());
        let mut lost = self.store.pin(slot)?;
        if known.is_none() {
            if let Some(old) = self.tile_of[slot].replace(id) {
                self.slot_of[old as usize] = None;
            }
            self.slot_of[id as usize] = Some(slot);
            lost.fill(true);
        }
        self.used[slot] = true;
        let inflated = lost.iter().filter(|lost| **lost).count() as u64;
        let mut page = vec![0; page_size().bytes().as_usize()];
        for (nth, _) in lost.iter().enumerate().filter(|(_, lost)| **lost) {
            inflate(id, nth as u64, deflated, &mut page);
            match &mut self.store {
                Store::Volatile(region) => region.write(at(slot, nth), &page)?,
                Store::Bare(bare, _) => bare.write(at(slot, nth), &page),
            }
        }
        match &mut self.store {
            Store::Volatile(region) => region.read(at(slot, 0), tile)?,
            Store::Bare(bare, _) => bare.read(at(slot, 0), tile),
        }
        self.store.unpin(slot)?;
        served.inflated_pages += inflated;
        if known.is_some() {
            served.lost_pages += inflated;
            served.kept_pages += TILE - inflated;
        }
        Ok(())
    }

    /// A slot without a tile, or with one that was not used for a turn of the hand.
    fn victim(&mut self) -> usize {
        loop {
            let slot = self.hand;
            self.hand = (self.hand + 1) % self.used.len();
            if self.tile_of[slot].is_none() || !std::mem::take(&mut self.used[slot]) {
                return slot;
            }
        }
    }
}

impl Store {
    /// Makes a slot's memory safe; which of its pages are lost.
    fn pin(&mut self, slot: usize) -> Result<Vec<bool>, Error> {
        let mut lost = vec![false; TILE as usize];
        let first = slot * TILE as usize;
        match self {
            Self::Bare(_, None) => {}
            Self::Volatile(region) => {
                for run in region.unmark(at(slot, 0)..at(slot + 1, 0))?.runs() {
                    lost[run.start() as usize - first..run.end() as usize - first].fill(true);
                }
            }
            Self::Bare(bare, Some(saved)) => {
                let is_there = (0..TILE as usize).all(|nth| {
                    let (word, page) = (bare.word(at(slot, nth)), first + nth);
                    let cookie = COOKIE | page as u64;
                    let order = (Ordering::AcqRel, Ordering::Relaxed);
                    word.compare_exchange(cookie, saved[page], order.0, order.1).is_ok()
                });
                if !is_there {
                    bare.advise(at(slot, 0), tile_len(), Advice::DontNeed)?;
                    lost.fill(true);
                }
            }
        }
        Ok(lost)
    }

    /// Lets a slot's memory go if need be.
    fn unpin(&mut self, slot: usize) -> Result<(), Error> {
        match self {
            Self::Bare(_, None) => {}
            Self::Volatile(region) => {
                region.mark(at(slot, 0)..at(slot + 1, 0), Priority::NORMAL)?;
            }
            Self::Bare(bare, Some(saved)) => {
                for nth in 0..TILE as usize {
                    let page = slot * TILE as usize + nth;
                    saved[page] =
                        bare.word(at(slot, nth)).swap(COOKIE | page as u64, Ordering::AcqRel);
                }
                bare.advise(at(slot, 0), tile_len(), Advice::Free)?;
            }
        }
        Ok(())
    }
}

/// Not 0, and not what a tile begins with.
const COOKIE: u64 = 0xc00c_1e00_0000_0000;

fn tile_len() -> Bytes {
    Pages::new(TILE).bytes(page_size())
}

fn tile_bytes() -> usize {
    tile_len().as_usize()
}

/// Page `nth` of a slot.
fn at(slot: usize, nth: usize) -> Bytes {
    Pages::new(slot as u64 * TILE + nth as u64).bytes(page_size())
}

/// The tile with number `n` is asked for about `1 / n` as often as the first.
fn skewed(random: &mut Random) -> u64 {
    let unit = random.below(1 << 53) as f64 / (1_u64 << 53) as f64;
    ((TILES as f64).powf(unit) as u64 - 1).min(TILES - 1)
}

/// A page's worth of what looks like a smooth picture.
fn deflated(pattern: u64) -> Vec<u8> {
    let len = page_size().bytes().get();
    let noise = |at: u64| (mix(pattern << 32 | at) & 7) as u8;
    let page: Vec<u8> = (0..len).map(|at| ((at / 16 + pattern) as u8) & 0xf8 | noise(at)).collect();
    let mut deflate = DeflateEncoder::new(Vec::new(), Compression::fast());
    // Into memory: it cannot fail.
    let _ = std::io::Write::write_all(&mut deflate, &page);
    deflate.finish().unwrap_or_default()
}

fn stamp(id: u64, nth: u64) -> u64 {
    mix(id << 8 | nth) | 1
}

fn inflate(id: u64, nth: u64, deflated: &[Vec<u8>], page: &mut [u8]) {
    let source = &deflated[(mix(id * TILE + nth) % PATTERNS) as usize];
    // What is short or wrong shows in the check.
    let _ = DeflateDecoder::new(&source[..]).read_exact(page);
    page[..8].copy_from_slice(&stamp(id, nth).to_ne_bytes());
    let end = page.len() - 8;
    page[end..].copy_from_slice(&stamp(id, nth).to_ne_bytes());
}

/// Pages that are not the tile's, by both of their ends.
fn wrong_pages(id: u64, tile: &[u8]) -> u64 {
    let pages = tile.chunks_exact(page_size().bytes().as_usize());
    let wrong = |(nth, page): &(u64, &[u8])| {
        let stamp = stamp(id, *nth).to_ne_bytes();
        page[..8] != stamp || page[page.len() - 8..] != stamp
    };
    (0..).zip(pages).filter(wrong).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_keeper_gives_the_tile_that_was_asked_for() {
        let deflated: Vec<Vec<u8>> = (0..PATTERNS).map(deflated).collect();
        for keeper in [Keeper::Volatile(Which::Tag), Keeper::Fixed, Keeper::WholeObject] {
            let mut cache = Cache::new(keeper).unwrap();
            let mut tile = vec![0; tile_bytes()];
            let mut served = Served::default();
            for id in [0, 1, 0, TILES - 1, 1] {
                cache.get(id, &deflated, &mut tile, &mut served).unwrap();
                assert_eq!(wrong_pages(id, &tile), 0, "{keeper:?}");
                assert_eq!(wrong_pages(id + 1, &tile), TILE);
            }
            assert_eq!((served.inflated_pages, served.kept_pages), (3 * TILE, 2 * TILE));
        }
    }
}
