//! Compares the pool's insert and remove, without a codec, with malloc, copy and free.
//!
//! Unit: nanoseconds of CPU time per pair. An object is removed at once, or replaces a random one
//! of many.

use super::malloc::{Allocator, Blocks};
use super::store::{Pooled, Store};
use super::trace::Made;
use crate::clock::thread_cpu;
use crate::report::Report;
use crate::reserve::keyed::Random;
use crate::turns::{rounds, NO_END};
use crate::Outcome;

const LEN: usize = 1024;
const HELD: usize = 1 << 14;
const PAIRS: usize = 50_000;
const UNIT: &str = "ns CPU";
const AT_ONCE: &str = "insert_remove_1k";
const HELD_CASE: &str = "insert_remove_1k_of_16e3";

pub(super) fn measure(count: u64, report: &mut Report) -> Outcome {
    let made = Made::new();
    let mut pooled = Pooled::new(false, HELD + 1)?;
    fill(&mut pooled, &made)?;
    let peers = Allocator::ALL.iter().map(|(of, who)| (*who, Blocks::new(*of, HELD + 1)));
    let mut peers: Vec<_> = peers.collect();
    peers.iter_mut().try_for_each(|(_, blocks)| fill(blocks, &made))?;
    for round in rounds("insert and remove", count, NO_END) {
        sample("glebe", &mut pooled, round, &made, report)?;
        for (who, blocks) in &mut peers {
            sample(who, blocks, round, &made, report)?;
        }
    }
    for (case, ratio) in [
        (AT_ONCE, "insert_remove_vs_best_malloc"),
        (HELD_CASE, "insert_remove_vs_best_malloc_of_16e3"),
    ] {
        let best = report.median(case, "jemalloc").min(report.median(case, "mimalloc"));
        report.ratio(ratio, best / report.median(case, "glebe"));
    }
    report.note(
        "insert_remove: the peers do malloc, a copy of 1 KiB and free; of mimalloc and, where it \
         was built, jemalloc the better counts. _of_16e3: one of 16384 objects goes, by chance, \
         for each that comes; without, the object that comes goes next.",
    );
    Ok(())
}

fn object(made: &Made, nth: usize) -> &[u8] {
    made.object(nth as u64 % 64, LEN)
}

fn fill(store: &mut impl Store, made: &Made) -> Outcome {
    (0..HELD).try_for_each(|nth| store.put(nth, object(made, nth)))
}

fn sample(
    who: &str,
    store: &mut impl Store,
    round: u64,
    made: &Made,
    report: &mut Report,
) -> Outcome {
    let at_once = ns(|nth| {
        store.put(HELD, object(made, nth))?;
        store.remove(HELD)
    })?;
    report.add(AT_ONCE, who, UNIT, at_once);
    let mut random = Random::new(round * PAIRS as u64);
    let places: Vec<usize> = (0..PAIRS).map(|_| random.below(HELD as u64) as usize).collect();
    let replaced = ns(|nth| store.replace(places[nth], object(made, nth)))?;
    report.add(HELD_CASE, who, UNIT, replaced);
    Ok(())
}

fn ns(pair: impl FnMut(usize) -> Outcome) -> Outcome<f64> {
    let start = thread_cpu();
    (0..PAIRS).try_for_each(pair)?;
    Ok((thread_cpu() - start).as_nanos() as f64 / PAIRS as f64)
}
