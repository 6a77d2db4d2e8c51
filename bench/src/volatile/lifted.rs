//! Measures caches after their cgroup's limit is lifted. Objects take 200 µs of CPU time to build
//! and need twice the limit. Lookups use all objects in order, then objects by a Zipf distribution,
//! first with the limit and then without.
//!
//! The cache `HALF`, of half the limit, keeps its size; the others grow. Unit: lookups per second
//! of wall time of one thread, after the lift, including builds.

use std::path::Path;
use std::time::Duration;

use glebe::page_size;
use glebe::units::Bytes;
use serde::{Deserialize, Serialize};

use super::objects::{object_len, Fate, Keeper, Objects, WHOLE_OBJECTS};
use super::{contest, ratios, Measurement, Which, LIMIT, NOTHING_KEPT, NOTHING_PURGED};
use crate::clock::{thread_cpu, wall};
use crate::pressure::lift;
use crate::report::Report;
use crate::reserve::keyed::{mix, Random};
use crate::Outcome;

const CASE: &str = "lifted";
const UNIT: &str = "per_s";
const HALF: (&str, Keeper) = ("half the limit", Keeper::Fixed);
/// All objects: twice the limit.
const ALL: Bytes = Bytes::mib(192);
const EXPONENT: f64 = 0.9;
const BUILD: Duration = Duration::from_micros(200);
const BATCH: u32 = 100;

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct LookupsServed {
    per_s: f64,
    /// Fate of cached objects, under the limit.
    fate: Fate,
    wrong_pages: u64,
}

pub(super) fn measure(engines: &[Which], report: &mut Report) -> Outcome {
    let (count, limited, lifted_ms) = report.plan((1, 3000, 1000), (3, 40_000, 10_000));
    let job = |(who, keeper): (&str, _)| {
        (who.to_owned(), Measurement::Lifted { keeper, limited, lifted_ms })
    };
    let ours = engines.iter().map(|which| (which.who(), Keeper::Volatile(*which)));
    let jobs: Vec<_> = ours.chain([HALF, WHOLE_OBJECTS]).map(job).collect();
    contest((CASE, UNIT), count, &jobs, report, |who, served: LookupsServed, report| {
        report.add(CASE, who, UNIT, served.per_s);
        if Which::ALL.iter().any(|which| which.who() == who) {
            report.check("wrong_tiles", served.wrong_pages);
            report.check(NOTHING_PURGED, u64::from(served.fate.lost == 0));
            report.check(NOTHING_KEPT, u64::from(served.fate.kept == 0));
        }
    })?;
    for (name, (peer, _)) in
        [("cache_lifted_vs_half", HALF), ("cache_lifted_vs_whole_objects", WHOLE_OBJECTS)]
    {
        ratios(name, engines, report, |which, report| {
            report.median(CASE, which.who()) / report.median(CASE, peer)
        });
    }
    report.note(
        "lifted: lookups of one thread in a second of wall time, after the limit of the group was \
         lifted, objects that were not there built in 200 us; the capped cache has half the limit.",
    );
    Ok(())
}

pub(super) fn inside(
    keeper: Keeper,
    limited: u32,
    lifted_ms: u64,
    group: &Path,
) -> Outcome<LookupsServed> {
    let len = if keeper == Keeper::Fixed { LIMIT.get() / 2 } else { ALL.get() };
    let count = (len / object_len().get()) as usize;
    let mut user = User {
        objects: Objects::new(keeper, count)?,
        out: vec![0; object_len().as_usize()],
        wrong_pages: 0,
    };
    let zipf = Zipf::new(ALL.get() / object_len().get());
    let mut random = Random::new(7);
    // The most frequent objects come last.
    (0..zipf.count()).rev().try_for_each(|id| user.look_up(id))?;
    (0..limited).try_for_each(|_| user.look_up(zipf.next(&mut random)))?;
    let fate = user.objects.fate();
    lift(group)?;
    let (start, mut count) = (wall(), 0_u32);
    while wall() < start + Duration::from_millis(lifted_ms) {
        (0..BATCH).try_for_each(|_| user.look_up(zipf.next(&mut random)))?;
        count += BATCH;
    }
    let per_s = f64::from(count) / (wall() - start).as_secs_f64();
    Ok(LookupsServed { per_s, fate, wrong_pages: user.wrong_pages })
}

struct User {
    objects: Objects,
    out: Vec<u8>,
    wrong_pages: u64,
}

impl User {
    fn look_up(&mut self, id: u64) -> Outcome {
        self.objects.get(id, &mut self.out, |bytes| build(id, bytes))?;
        let pages = self.out.chunks_exact(page_size().bytes().as_usize());
        let is_wrong = |(nth, page): &(u64, &[u8])| !page.starts_with(&stamp(id, *nth));
        self.wrong_pages += (0..).zip(pages).filter(is_wrong).count() as u64;
        Ok(())
    }
}

fn build(id: u64, bytes: &mut [u8]) {
    let end = thread_cpu() + BUILD;
    let pages = bytes.chunks_exact_mut(page_size().bytes().as_usize());
    (0..).zip(pages).for_each(|(nth, page)| page[..8].copy_from_slice(&stamp(id, nth)));
    while thread_cpu() < end {}
}

fn stamp(id: u64, nth: u64) -> [u8; 8] {
    (mix(id << 8 | nth) | 1).to_ne_bytes()
}

/// Random numbers; the n-th is `1 / n^0.9` times as frequent as the first.
struct Zipf {
    up_to: Vec<f64>,
}

impl Zipf {
    fn new(count: u64) -> Self {
        let mut up_to: Vec<f64> = (1..=count)
            .scan(0.0, |sum, n| {
                *sum += (n as f64).powf(-EXPONENT);
                Some(*sum)
            })
            .collect();
        let all = up_to.last().copied().unwrap_or(1.0);
        up_to.iter_mut().for_each(|share| *share /= all);
        Self { up_to }
    }

    fn count(&self) -> u64 {
        self.up_to.len() as u64
    }

    fn next(&self, random: &mut Random) -> u64 {
        let unit = random.below(1 << 53) as f64 / (1_u64 << 53) as f64;
        self.up_to.partition_point(|share| *share <= unit) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_number_is_asked_for_more_often_by_the_exponent() {
        let (zipf, mut random) = (Zipf::new(100), Random::new(1));
        let mut counts = [0_u32; 100];
        (0..200_000).for_each(|_| counts[zipf.next(&mut random) as usize] += 1);
        let ratio = f64::from(counts[0]) / f64::from(counts[9]);
        // 10^0.9
        assert!((7.0..9.0).contains(&ratio) && counts.iter().all(|count| *count > 0), "{ratio}");
    }

    #[test]
    fn what_is_built_takes_its_time_and_is_known_again() {
        let mut bytes = vec![0; object_len().as_usize()];
        let start = thread_cpu();
        build(3, &mut bytes);
        assert!(thread_cpu() - start >= BUILD);
        assert!(bytes.starts_with(&stamp(3, 0)) && !bytes.starts_with(&stamp(4, 0)));
    }
}
