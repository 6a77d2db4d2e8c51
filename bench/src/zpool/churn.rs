//! Objects that come and go, without a codec: insert and remove beside malloc, copy and free.
//!
//! Nanoseconds of CPU time a pair. Once at once, and once with a number of objects held, of which
//! any one goes for the one that comes.

use std::hint::black_box;

use super::made::Made;
use super::malloc::Allocator;
use super::{pool, Error};
use crate::clock::thread_cpu;
use crate::report::Report;
use crate::reserve::keyed::Random;
use crate::samples::{rounds, Samples, NO_END};

const LEN: usize = 1024;
/// Objects held.
const HELD: usize = 1 << 14;
/// Pairs of a sample.
const PAIRS: usize = 50_000;
const UNIT: &str = "ns CPU";
const CASES: [(&str, &str); 2] = [
    ("insert_remove_1k", "insert_remove_vs_best_malloc"),
    ("insert_remove_1k_of_16e3", "insert_remove_vs_best_malloc_of_16e3"),
];

/// Both cases of all contestants, in turns.
pub(super) fn measure(count: u64, report: &mut Report) -> Result<(), Error> {
    let made = Made::new();
    let object = |nth: usize| made.object(nth as u64 % 64, LEN);
    let pool = pool(false)?;
    let copy = |allocator: Allocator, nth: usize| allocator.copy(object(nth)).expect("memory");
    let mut handles =
        (0..HELD).map(|nth| pool.insert(object(nth))).collect::<Result<Vec<_>, _>>()?;
    let mut blocks =
        Allocator::ALL.map(|peer| (0..HELD).map(|nth| copy(peer, nth)).collect::<Vec<_>>());
    let mut table = Samples::default();
    let [(at_once, _), (held, _)] = CASES;
    rounds("insert and remove", (count, NO_END), |round| {
        let pair = |nth| Ok(pool.remove(pool.insert(object(nth))?)?);
        table.add(at_once, "glebe", UNIT, ns(pair)?);
        // The same places for all.
        let mut random = Random::new(round * PAIRS as u64);
        let places: Vec<usize> = (0..PAIRS).map(|_| random.below(HELD as u64) as usize).collect();
        let replaced = ns(|nth| {
            let handle = &mut handles[places[nth]];
            pool.remove(*handle)?;
            *handle = pool.insert(object(nth))?;
            Ok(())
        })?;
        table.add(held, "glebe", UNIT, replaced);
        for (peer, blocks) in Allocator::ALL.into_iter().zip(&mut blocks) {
            let pair = |nth| {
                drop(black_box(copy(peer, nth)));
                Ok(())
            };
            table.add(at_once, peer.name(), UNIT, ns(pair)?);
            let replace = |nth: usize| {
                blocks[places[nth]] = copy(peer, nth);
                Ok(())
            };
            table.add(held, peer.name(), UNIT, ns(replace)?);
        }
        Ok::<_, Error>(())
    })?;
    table.report(report);
    for (case, ratio) in CASES {
        let of = |who: &str| table.median(case, who);
        report.ratio(ratio, of("jemalloc").min(of("mimalloc")) / of("glebe"));
    }
    report.note(
        "insert_remove: the peers do malloc, a copy of 1 KiB and free, called directly; of \
         jemalloc and mimalloc the better one counts. _of_16e3: one of 16384 objects goes, by \
         chance, for each that comes; without, there is no other object of that length.",
    );
    Ok(())
}

/// CPU time of one of many.
fn ns(mut pair: impl FnMut(usize) -> Result<(), Error>) -> Result<f64, Error> {
    let start = thread_cpu();
    (0..PAIRS).try_for_each(&mut pair)?;
    Ok((thread_cpu() - start).as_nanos() as f64 / PAIRS as f64)
}
