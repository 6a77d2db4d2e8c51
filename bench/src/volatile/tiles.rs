//! [`measure`] times caches that inflate a tile on a miss, in each kind of memory ([`Keeper`]).
//!
//! Another thread takes memory from time to time. The cache of fixed size must leave room for that
//! memory. The other caches use all free memory, and lose pages when memory gets short. Tiles
//! follow a skewed distribution. Every page is checked. Unit: microseconds of the thread's CPU time
//! per tile.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use glebe::page_size;
use glebe::units::Bytes;
use miniz_oxide::deflate::compress_to_vec;
use miniz_oxide::inflate::decompress_slice_iter_to_slice;
use serde::{Deserialize, Serialize};

use super::objects::{object_len, Fate, Keeper, Objects, FIXED, OBJECT, WHOLE_OBJECTS};
use super::{contest, ratios, Measurement, Which, LIMIT, NOTHING_KEPT, NOTHING_PURGED};
use crate::clock::{micros, thread_cpu, wall};
use crate::interrupt::Stop;
use crate::report::Report;
use crate::reserve::keyed::{mix, Random};
use crate::Outcome;

const CASE: &str = "tile";
const UNIT: &str = "us";
/// Number of tiles, more than the limit holds.
const TILES: u64 = 2048;
/// Bytes that the other part takes at times.
const OTHER: Bytes = Bytes::mib(40);
/// Bytes left to the program.
const SLACK: Bytes = Bytes::mib(16);
/// Times with and without the other part's memory.
const WITH: Duration = Duration::from_millis(200);
const WITHOUT: Duration = Duration::from_millis(600);
const BATCH: u32 = 500;
/// Number of different deflated pages. [`inflate`] also stamps each page with its tile and place.
const PATTERNS: u64 = 64;
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct TilesServed {
    us: f64,
    fate: Fate,
    wrong_pages: u64,
}

pub(super) fn measure(engines: &[Which], report: &mut Report) -> Outcome {
    let (count, time_ms) = report.plan((1, 1700), (4, 3000));
    let job = |(who, keeper): (&str, _)| (who.into(), Measurement::Tiles { keeper, time_ms });
    let ours = engines.iter().map(|which| (which.who(), Keeper::Volatile(*which)));
    let jobs: Vec<_> = ours.chain([FIXED, WHOLE_OBJECTS]).map(job).collect();
    contest((CASE, UNIT), count, &jobs, report, |who, served: TilesServed, report| {
        report.add(CASE, who, UNIT, served.us);
        if Which::ALL.iter().any(|which| which.who() == who) {
            report.check("wrong_tiles", served.wrong_pages);
            report.check(NOTHING_PURGED, u64::from(served.fate.lost == 0));
            report.check(NOTHING_KEPT, u64::from(served.fate.kept == 0));
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

pub(super) fn inside(keeper: Keeper, time_ms: u64) -> Outcome<TilesServed> {
    let mut tiles = Tiles::new(keeper)?;
    // Fills the cache, so that it starts without unused room.
    (0..tiles.room).try_for_each(|id| tiles.get(id))?;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| other(&stop));
        let mut random = Random::new(3);
        let end = wall() + Duration::from_millis(time_ms);
        let (mut gets, start) = (0, thread_cpu());
        while wall() < end {
            (0..BATCH).try_for_each(|_| tiles.get(skewed(&mut random)))?;
            gets += BATCH;
        }
        let us = micros(thread_cpu() - start) / f64::from(gets);
        Ok(TilesServed { us, fate: tiles.objects.fate(), wrong_pages: tiles.wrong_pages })
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

struct Tiles {
    objects: Objects,
    room: u64,
    deflated: Vec<Vec<u8>>,
    tile: Vec<u8>,
    wrong_pages: u64,
}

impl Tiles {
    fn new(keeper: Keeper) -> Outcome<Self> {
        let most = LIMIT.saturating_sub(SLACK);
        let len = if keeper == Keeper::Fixed { most.saturating_sub(OTHER) } else { most };
        let room = len.get() / object_len().get();
        // A volatile cache gets addresses for all tiles, because addresses cost little.
        let count = if matches!(keeper, Keeper::Volatile(_)) { TILES } else { room };
        Ok(Self {
            objects: Objects::new(keeper, count as usize)?,
            room,
            deflated: (0..PATTERNS).map(deflated).collect(),
            tile: vec![0; object_len().as_usize()],
            wrong_pages: 0,
        })
    }

    fn get(&mut self, id: u64) -> Outcome {
        let deflated = &self.deflated;
        let page = page_size().bytes().as_usize();
        let build = |tile: &mut [u8]| {
            let pages = tile.chunks_exact_mut(page);
            (0..).zip(pages).for_each(|(nth, page)| inflate(id, nth, deflated, page));
        };
        self.objects.get(id, &mut self.tile, build)?;
        self.wrong_pages += wrong_pages(id, &self.tile);
        Ok(())
    }
}

/// Returns a random number; the n-th is about `1 / n` times as frequent as the first.
fn skewed(random: &mut Random) -> u64 {
    let unit = random.below(1 << 53) as f64 / (1_u64 << 53) as f64;
    ((TILES as f64).powf(unit) as u64 - 1).min(TILES - 1)
}

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
    let source = &deflated[(mix(id * OBJECT as u64 + nth) % PATTERNS) as usize];
    // This program deflated the source, so inflating it does not fail.
    let _ = decompress_slice_iter_to_slice(page, [&source[..]].into_iter(), false, true);
    page[..8].copy_from_slice(&stamp(id, nth));
    let end = page.len() - 8;
    page[end..].copy_from_slice(&stamp(id, nth));
}

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
            let mut tiles = Tiles::new(keeper).unwrap();
            for id in [0, 1, 0, TILES - 1, 1] {
                tiles.get(id).unwrap();
                assert_eq!(wrong_pages(id + 1, &tiles.tile), OBJECT as u64);
            }
            assert_eq!((tiles.objects.fate().kept, tiles.wrong_pages), (2, 0), "{keeper:?}");
        }
    }
}
