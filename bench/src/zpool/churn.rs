//! Objects that come and go, without a codec: insert and remove beside malloc, copy and free.
//!
//! Nanoseconds of CPU time a pair. Once at once, and once with a number of objects held, of which
//! any one goes for the one that comes.

use std::hint::black_box;

use super::made::Made;
use super::malloc::Allocator;
use super::store::{Classes, Store};
use super::Error;
use crate::clock::thread_cpu;
use crate::progress::Progress;
use crate::report::Report;
use crate::reserve::keyed::Random;
use crate::summary::Summary;

const LEN: usize = 1024;
/// Objects held.
const HELD: usize = 1 << 14;
/// Pairs of a sample.
const PAIRS: u32 = 50_000;
const PEERS: [Allocator; 3] = Allocator::ALL;

/// Both cases of all contestants, in turns.
pub(super) fn measure(rounds: usize, report: &mut Report) -> Result<(), Error> {
    let made = Made::new();
    let objects: Vec<&[u8]> = (0..64).map(|name| made.object(name, LEN)).collect();
    let mut at_once = vec![Vec::new(); PEERS.len() + 1];
    let mut held = at_once.clone();
    let store = Store::new(Classes::Default, false)?;
    let object = |nth: usize| objects[nth % objects.len()];
    let insert = |nth: usize| store.insert(object(nth));
    let copy = |allocator: Allocator, nth: usize| allocator.copy(object(nth)).expect("memory");
    let mut handles = (0..HELD).map(insert).collect::<Result<Vec<_>, _>>()?;
    let mut blocks = PEERS.map(|peer| (0..HELD).map(|nth| copy(peer, nth)).collect::<Vec<_>>());
    let mut progress = Progress::new("insert and remove", rounds as u64);
    for round in 0..rounds {
        progress.update(round as u64);
        at_once[0].push(ns(|nth| store.remove(insert(nth)?))?);
        for (peer, samples) in PEERS.into_iter().zip(&mut at_once[1..]) {
            samples.push(ns(|nth| {
                drop(black_box(copy(peer, nth)));
                Ok(())
            })?);
        }
        // The same places for all.
        let mut random = Random::new(round as u64 * u64::from(PAIRS));
        let places: Vec<usize> = (0..PAIRS).map(|_| random.below(HELD as u64) as usize).collect();
        held[0].push(ns(|nth| {
            let handle = &mut handles[places[nth]];
            store.remove(*handle)?;
            *handle = insert(nth)?;
            Ok(())
        })?);
        for ((peer, blocks), samples) in PEERS.into_iter().zip(&mut blocks).zip(&mut held[1..]) {
            samples.push(ns(|nth| {
                blocks[places[nth]] = copy(peer, nth);
                Ok(())
            })?);
        }
    }
    progress.clear();
    for (case, samples, ratio) in [
        ("insert_remove_1k", &at_once, "insert_remove_vs_best_malloc"),
        ("insert_remove_1k_of_16e3", &held, "insert_remove_vs_best_malloc_of_16e3"),
    ] {
        report.row(case, "glebe", "ns CPU", &samples[0]);
        let mut best = f64::INFINITY;
        for (peer, samples) in PEERS.into_iter().zip(&samples[1..]) {
            report.row(case, peer.name(), "ns CPU", samples);
            if peer != Allocator::Glibc {
                best = best.min(median(samples));
            }
        }
        report.ratio(ratio, best / median(&samples[0]));
    }
    report.note(
        "insert_remove: the peers do malloc, a copy of 1 KiB and free, called directly; of \
         jemalloc and mimalloc the better one counts. _of_16e3: one of 16384 objects goes, by \
         chance, for each that comes.",
    );
    Ok(())
}

/// CPU time of one of many.
fn ns(mut pair: impl FnMut(usize) -> Result<(), Error>) -> Result<f64, Error> {
    let start = thread_cpu();
    for nth in 0..PAIRS as usize {
        pair(nth)?;
    }
    Ok((thread_cpu() - start).as_nanos() as f64 / f64::from(PAIRS))
}

fn median(samples: &[f64]) -> f64 {
    Summary::of(samples).map_or(f64::NAN, |summary| summary.median)
}
