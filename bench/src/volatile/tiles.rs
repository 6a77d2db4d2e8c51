//! A cache of tiles that are inflated on a miss: of volatile memory, of a fixed size, and of
//! whole objects that are lost when one of their pages is.
//!
//! Beside the cache another part of the program has memory by turns and gives it back. A cache of
//! fixed size must leave room for that at all times; the others use what there is, and give way.
//! The whole-object scheme is an own minimal version of what Chromium's `MADV_FREE` backing of
//! discardable memory does. Tiles are asked for by a skewed distribution; every page is checked for
//! whose it is. Unit: microseconds a tile, of the thread's CPU time, the kernel's work included.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use glebe::sys::madvise::Advice;
use glebe::sys::page_size;
use glebe::units::{Bytes, Pages};
use glebe::volatile::{Priority, Region};
use lru::LruCache;
use miniz_oxide::deflate::compress_to_vec;
use miniz_oxide::inflate::decompress_slice_iter_to_slice;
use serde::{Deserialize, Serialize};

use super::bare::Bare;
use super::{contest, ratios, Job, Which, LIMIT, NOTHING_KEPT, NOTHING_PURGED};
use crate::clock::{micros, thread_cpu, wall};
use crate::interrupt::Stop;
use crate::report::Report;
use crate::reserve::keyed::{mix, Random};
use crate::Outcome;

const CASE: &str = "tile";
const UNIT: &str = "us";
/// Pages of a tile.
const TILE: usize = 16;
/// All tiles there are, more than the limit.
const TILES: u64 = 2048;
/// What the other part of the program has at times, and leaves in between.
const OTHER: Bytes = Bytes::mib(40);
/// What the program needs beside.
const SLACK: Bytes = Bytes::mib(16);
/// How long the other part has its memory, and how long not; that is the longer.
const WITH: Duration = Duration::from_millis(200);
const WITHOUT: Duration = Duration::from_millis(600);
/// Gets between two looks at the clock.
const BATCH: u32 = 500;
/// Different contents that are deflated; the tile's number is put into each page.
const PATTERNS: u64 = 64;
/// The first word of a page that may go, of the whole-object scheme: with the page's number it is
/// not 0, and not what a tile begins with.
const COOKIE: u64 = 0xc00c_1e00_0000_0000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Keeper {
    Volatile(Which),
    /// Ordinary memory, as much as there is at all times.
    Fixed,
    /// All or nothing of a tile.
    WholeObject,
}

const FIXED: (&str, Keeper) = ("fixed size", Keeper::Fixed);
const WHOLE_OBJECTS: (&str, Keeper) = ("whole objects", Keeper::WholeObject);

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Served {
    /// Of a tile in the mean: hits and misses both count, in the share that they had.
    us: f64,
    /// Of tiles that were in the cache, the pages that were lost and that were not.
    lost_pages: usize,
    kept_pages: usize,
    /// Pages that were not those of the tile.
    wrong_pages: u64,
}

pub(super) fn measure(engines: &[Which], report: &mut Report) -> Outcome {
    let (count, time_ms) = report.plan((1, 1700), (4, 3000));
    let job = |(who, keeper): (&str, _)| (who.into(), Job::Tiles { keeper, time_ms });
    let ours = engines.iter().map(|which| (which.who(), Keeper::Volatile(*which)));
    let jobs: Vec<_> = ours.chain([FIXED, WHOLE_OBJECTS]).map(job).collect();
    contest((CASE, UNIT), count, &jobs, report, |who, served: Served, report| {
        report.add(CASE, who, UNIT, served.us);
        if Which::ALL.iter().any(|which| which.who() == who) {
            report.check("wrong_tiles", served.wrong_pages);
            report.check(NOTHING_PURGED, u64::from(served.lost_pages == 0));
            report.check(NOTHING_KEPT, u64::from(served.kept_pages == 0));
        }
    })?;
    for (name, (peer, _)) in [("cache_vs_fixed", FIXED), ("cache_vs_whole_objects", WHOLE_OBJECTS)]
    {
        ratios(name, engines, report, |which, report| {
            report.median(CASE, peer) / report.median(CASE, which.who())
        });
    }
    report.note(
        "tile: CPU time, the mean of a run each, hits and misses together; the fixed cache has \
         what is left when the other part of the program has its memory, and the others have all.",
    );
    Ok(())
}

pub(super) fn inside(keeper: Keeper, time_ms: u64) -> Outcome<Served> {
    let mut cache = Cache::new(keeper)?;
    // From the start there is no room left that nobody has used.
    (0..cache.slots as u64).try_for_each(|id| cache.get(id))?;
    cache.served = Served::default();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| other(&stop));
        let mut random = Random::new(3);
        let end = wall() + Duration::from_millis(time_ms);
        let (mut gets, start) = (0, thread_cpu());
        while wall() < end {
            (0..BATCH).try_for_each(|_| cache.get(skewed(&mut random)))?;
            gets += BATCH;
        }
        let us = micros(thread_cpu() - start) / f64::from(gets);
        Ok(Served { us, ..cache.served })
    })
}

fn other(stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(WITHOUT);
        let mut memory = vec![0_u8; OTHER.as_usize()];
        memory.iter_mut().step_by(page_size().bytes().as_usize()).for_each(|byte| *byte = 1);
        std::thread::sleep(WITH);
        drop(std::hint::black_box(memory));
    }
}

/// Memory of slots for tiles.
enum Store {
    Volatile(Box<Region>),
    /// With the words that cookies stand in for, where tiles may go.
    Bare(Bare, Option<Vec<u64>>),
}

/// Tiles in slots, of which the one that was not asked for the longest goes.
struct Cache {
    store: Store,
    slots: usize,
    slot_of: LruCache<u64, usize>,
    /// Contents to inflate, and the tile that was asked for last.
    deflated: Vec<Vec<u8>>,
    tile: Vec<u8>,
    served: Served,
}

impl Cache {
    fn new(keeper: Keeper) -> Outcome<Self> {
        let most = LIMIT.saturating_sub(SLACK);
        let (len, store) = match keeper {
            Keeper::Volatile(which) => (most, Store::Volatile(Box::new(which.map(most)?))),
            Keeper::Fixed => {
                let len = most.saturating_sub(OTHER);
                (len, Store::Bare(Bare::new(len, None)?, None))
            }
            Keeper::WholeObject => {
                let saved = vec![0; most.pages_up(page_size()).as_usize()];
                (most, Store::Bare(Bare::new(most, None)?, Some(saved)))
            }
        };
        Ok(Self {
            store,
            slots: (len.get() / tile_len().get()) as usize,
            slot_of: LruCache::unbounded(),
            deflated: (0..PATTERNS).map(deflated).collect(),
            tile: vec![0; tile_len().as_usize()],
            served: Served::default(),
        })
    }

    /// Copies a tile out, after inflating what is not there.
    fn get(&mut self, id: u64) -> Outcome {
        let known = self.slot_of.get(&id).copied();
        let slot = known.unwrap_or_else(|| match self.slot_of.len() {
            used if used < self.slots => used,
            _ => self.slot_of.pop_lru().map_or(0, |(_, slot)| slot),
        });
        let mut lost = self.store.pin(slot)?;
        if known.is_none() {
            self.slot_of.put(id, slot);
            lost.fill(true);
        }
        let mut page = vec![0; page_size().bytes().as_usize()];
        for nth in (0..TILE).filter(|nth| lost[*nth]) {
            inflate(id, nth as u64, &self.deflated, &mut page);
            match &mut self.store {
                Store::Volatile(region) => region.write(at(slot, nth), &page)?,
                Store::Bare(bare, _) => bare.write(at(slot, nth), &page),
            }
        }
        match &mut self.store {
            Store::Volatile(region) => region.read(at(slot, 0), &mut self.tile)?,
            Store::Bare(bare, _) => bare.read(at(slot, 0), &mut self.tile),
        }
        self.store.unpin(slot)?;
        self.served.wrong_pages += wrong_pages(id, &self.tile);
        if known.is_some() {
            let inflated = lost.iter().filter(|lost| **lost).count();
            self.served.lost_pages += inflated;
            self.served.kept_pages += TILE - inflated;
        }
        Ok(())
    }
}

impl Store {
    /// Makes a slot's memory safe; which of its pages are lost.
    fn pin(&mut self, slot: usize) -> Outcome<[bool; TILE]> {
        let mut lost = [false; TILE];
        let first = slot * TILE;
        match self {
            Self::Bare(_, None) => {}
            Self::Volatile(region) => {
                for run in region.unmark(at(slot, 0)..at(slot + 1, 0))?.runs() {
                    lost[run.start() as usize - first..run.end() as usize - first].fill(true);
                }
            }
            Self::Bare(bare, Some(saved)) => {
                let is_there = (first..first + TILE).zip(0..).all(|(page, nth)| {
                    let (word, cookie) = (bare.word(at(slot, nth)), COOKIE | page as u64);
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
    fn unpin(&mut self, slot: usize) -> Outcome {
        match self {
            Self::Bare(_, None) => {}
            Self::Volatile(region) => {
                region.mark(at(slot, 0)..at(slot + 1, 0), Priority::NORMAL)?;
            }
            Self::Bare(bare, Some(saved)) => {
                for (page, nth) in (slot * TILE..(slot + 1) * TILE).zip(0..) {
                    let cookie = COOKIE | page as u64;
                    saved[page] = bare.word(at(slot, nth)).swap(cookie, Ordering::AcqRel);
                }
                bare.advise(at(slot, 0), tile_len(), Advice::Free)?;
            }
        }
        Ok(())
    }
}

fn tile_len() -> Bytes {
    at(1, 0)
}

/// Page `nth` of a slot.
fn at(slot: usize, nth: usize) -> Bytes {
    Pages::new((slot * TILE + nth) as u64).bytes(page_size())
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
    compress_to_vec(&page, 1)
}

fn stamp(id: u64, nth: u64) -> [u8; 8] {
    (mix(id << 8 | nth) | 1).to_ne_bytes()
}

fn inflate(id: u64, nth: u64, deflated: &[Vec<u8>], page: &mut [u8]) {
    let source = &deflated[(mix(id * TILE as u64 + nth) % PATTERNS) as usize];
    // What is short or wrong shows in the check.
    let _ = decompress_slice_iter_to_slice(page, [&source[..]].into_iter(), false, true);
    page[..8].copy_from_slice(&stamp(id, nth));
    let end = page.len() - 8;
    page[end..].copy_from_slice(&stamp(id, nth));
}

/// Pages that are not the tile's, by both of their ends.
fn wrong_pages(id: u64, tile: &[u8]) -> u64 {
    let pages = tile.chunks_exact(page_size().bytes().as_usize());
    let is_wrong = |(nth, page): &(u64, &[u8])| {
        !page.starts_with(&stamp(id, *nth)) || !page.ends_with(&stamp(id, *nth))
    };
    (0..).zip(pages).filter(is_wrong).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_keeper_gives_the_tile_that_was_asked_for() {
        for keeper in [Keeper::Volatile(Which::Tag), Keeper::Fixed, Keeper::WholeObject] {
            let mut cache = Cache::new(keeper).unwrap();
            for id in [0, 1, 0, TILES - 1, 1] {
                cache.get(id).unwrap();
                assert_eq!(wrong_pages(id + 1, &cache.tile), TILE as u64);
            }
            let Served { kept_pages, wrong_pages, .. } = cache.served;
            assert_eq!((kept_pages, wrong_pages), (2 * TILE, 0), "{keeper:?}");
        }
    }
}
