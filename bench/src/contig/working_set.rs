//! Measures the gain of contiguity and huge pages: reads and copies in memory of each of [`WAYS`].
//!
//! The ways obtain, use and give back memory in turn, so that other work of the machine affects
//! all. Unit: CPU time of the calling thread. Memory is written before it is read, so that a
//! virtual machine's first touches do not slow the reads.

use std::hint::black_box;

use glebe::units::Bytes;

use super::{name, GLEBE, WAYS};
use crate::clock::timed;
use crate::memory::{self, Memory};
use crate::report::Report;
use crate::turns::turns;
use crate::Outcome;

const SIZES: [Bytes; 4] = [Bytes::mib(64), Bytes::gib(1), Bytes::gib(4), Bytes::gib(8)];
const SIZES_QUICK: [Bytes; 2] = [Bytes::mib(64), Bytes::mib(128)];
/// Size for which the project sets targets. Ratios are of the largest measured size up to this one.
const TARGET: Bytes = Bytes::gib(4);
/// Sizes from this one on get fewer rounds, because obtaining their memory takes seconds.
const LARGE: Bytes = Bytes::gib(1);
/// Bytes between reads. No stride is a power of two, so that reads use all cache sets.
const STRIDES: [usize; 4] = [320, 4160, 65_600, 2_097_216];

pub(super) fn measure(report: &mut Report) -> Outcome {
    let most = memory::largest()?;
    let sizes = report.plan(&SIZES_QUICK[..], &SIZES);
    for &size in sizes {
        let case = format!("random_read_{}", name(size));
        if size > most {
            let text = format!("left out: free memory allows {most}");
            report.remark(&case, "all", "ns", &text);
            continue;
        }
        let rounds = report.plan(1, if size >= LARGE { 3 } else { 5 });
        for (round, (who, way)) in turns(&format!("contig {}", name(size)), rounds, &WAYS) {
            match way.obtain(size) {
                Ok(mut memory) => turn(who, size, round, &mut memory, report),
                Err(why) => report.outcome(&case, who, "ns", Err(why)),
            }
        }
    }
    let target = sizes.iter().filter(|&&size| size <= TARGET.min(most)).max();
    ratios(&name(*target.unwrap_or(&TARGET)), report);
    Ok(())
}

fn turn(who: &str, size: Bytes, round: u64, memory: &mut Memory, report: &mut Report) {
    let case = |what: &str| format!("{what}_{}", name(size));
    let (repeats, at_random, by_stride) = report.plan((1, 1 << 18, 1 << 16), (3, 1 << 22, 1 << 20));
    memory.bytes_mut().fill(0);
    for repeat in 0..repeats {
        let words = memory.words();
        let ns = reads(words, at_random, random(words.len(), round * repeats + repeat + 1));
        report.add(&case("random_read"), who, "ns", ns);
        for stride in STRIDES {
            let ns = reads(words, by_stride, strided(words.len(), stride));
            report.add(&case(&format!("stride_{stride}")), who, "ns", ns);
        }
        report.add(&case("stream_copy"), who, "GB/s", stream(memory.bytes_mut()));
    }
    report.add(&case("obtain"), who, "us cpu", memory.took.cpu_us);
    if let Some(contig) = memory.contig() {
        report.remark(&case("random_read"), who, "ns", &format!("of {}", contig.source()));
    }
}

/// Reads `count` words at the indexes that `next` returns. Returns nanoseconds per read.
fn reads(words: &[u64], count: u64, mut next: impl FnMut() -> usize) -> f64 {
    let (sum, took) = timed(|| (0..count).fold(0_u64, |sum, _| sum.wrapping_add(words[next()])));
    black_box(sum);
    took.cpu_us * 1e3 / count as f64
}

/// Returns random word indexes below the largest power of two up to `words`, by Knuth's linear
/// congruential sequence.
fn random(words: usize, mut state: u64) -> impl FnMut() -> usize {
    // The high bits are the most random. `max(1)` avoids a shift by 64, which is invalid.
    let shift = u64::BITS - words.ilog2().max(1);
    move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> shift) as usize
    }
}

/// Returns word indexes `stride` bytes apart.
fn strided(words: usize, stride: usize) -> impl FnMut() -> usize {
    let (mask, step, mut at) = ((1_usize << words.ilog2()) - 1, stride / size_of::<u64>(), 0);
    move || {
        at = (at + step) & mask;
        at
    }
}

/// Copies one half to the other. Returns GB (10^9 bytes) per second of CPU time.
fn stream(bytes: &mut [u8]) -> f64 {
    let (to, from) = bytes.split_at_mut(bytes.len() / 2);
    let ((), took) = timed(|| to.copy_from_slice(&from[..to.len()]));
    to.len() as f64 / took.cpu_us / 1e3
}

fn ratios(size: &str, report: &mut Report) {
    for (who, _) in &WAYS[..WAYS.len() - 1] {
        let case = format!("random_read_{size}");
        let ratio = report.median(&case, who) / report.median(&case, GLEBE);
        report.ratio(&format!("random_read_vs_{who}"), ratio);
        let case = format!("stream_copy_{size}");
        let ratio = report.median(&case, GLEBE) / report.median(&case, who);
        report.ratio(&format!("stream_vs_{who}"), ratio);
    }
    report.note(&format!(
        "Ratios of reads and copies are of {size}. Memory comes zeroed and is populated before \
         anything is timed; times are CPU time of one thread."
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_inside_and_all_over() {
        for len in [2, 3, 1 << 12, (1 << 12) + 7] {
            let words = vec![0; len];
            let (mut seen, mut next) = (vec![false; len], random(len, 1));
            (0..len * 20).for_each(|_| seen[next()] = true);
            let whole = 1 << len.ilog2();
            assert!(seen[..whole].iter().filter(|&&s| s).count() >= whole * 9 / 10, "{len}");
            assert!(reads(&words, 100, random(len, 3)) > 0.0);
            assert!(reads(&words, 100, strided(len, 72)) > 0.0);
        }
    }
}
