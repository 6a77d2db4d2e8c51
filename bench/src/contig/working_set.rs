//! What contiguity and huge pages buy: reads and copies over memory had in each way.
//!
//! One contestant has its memory at a time: it is obtained, used and given back, and then the next
//! one's turn comes, round by round, so that all meet the same machine and none needs room beside
//! another. Times are CPU time of the calling thread. Memory is written once before it is read:
//! what the host of a virtual machine does about pages that are touched for the first time is not
//! the reader's to pay.
//!
//! Random places come from a linear congruential sequence, five cycles a step, so that finding them
//! is not what is measured.

use std::hint::black_box;

use glebe::units::Bytes;

use super::memory::{self, Kind, Memory};
use super::{name, Error};
use crate::clock::Stopwatch;
use crate::interrupt;
use crate::progress::Progress;
use crate::report::Report;
use crate::samples::{in_turn, Samples};

/// Sizes of the memory that is worked on.
const SIZES: [Bytes; 4] = [Bytes::mib(64), Bytes::gib(1), Bytes::gib(4), Bytes::gib(8)];
const SIZES_QUICK: [Bytes; 2] = [Bytes::mib(64), Bytes::mib(128)];
/// The size that the targets are of.
const TARGET: Bytes = Bytes::gib(4);
/// From here on fewer rounds: the memory of one takes seconds.
const LARGE: Bytes = Bytes::gib(1);
/// Bytes between two reads; none a power of two, so that all sets of the caches are used.
const STRIDES: [u64; 4] = [320, 4160, 65_600, 2_097_216];

/// Knuth's multiplier for 64 bits.
const FACTOR: u64 = 6_364_136_223_846_793_005;
const STEP: u64 = 1_442_695_040_888_963_407;

/// How much is done for one sample.
struct Effort {
    rounds: usize,
    rounds_large: usize,
    /// Samples of a turn.
    repeats: u64,
    random: u64,
    strided: u64,
}

const EFFORT: Effort =
    Effort { rounds: 5, rounds_large: 3, repeats: 3, random: 1 << 22, strided: 1 << 20 };
const EFFORT_QUICK: Effort =
    Effort { rounds: 2, rounds_large: 2, repeats: 1, random: 1 << 18, strided: 1 << 16 };

/// Measures all sizes up to `largest`, reports rows and ratios.
pub(super) fn measure(quick: bool, largest: Bytes, report: &mut Report) -> Result<(), Error> {
    let sizes = if quick { &SIZES_QUICK[..] } else { &SIZES };
    let effort = if quick { EFFORT_QUICK } else { EFFORT };
    let most = largest.min(memory::largest()?);
    let (sizes, left): (Vec<Bytes>, Vec<Bytes>) = sizes.iter().partition(|&&size| size <= most);
    for size in left {
        let text = format!("left out: --largest-mib and free memory allow {most}");
        report.absent(&format!("random_read_{}", name(size)), "all", "ns", &text);
    }
    let mut samples = Samples::default();
    for &size in &sizes {
        rounds(size, &effort, &mut samples);
    }
    samples.report(report);
    let target = sizes.into_iter().filter(|&size| size <= TARGET).max().unwrap_or(TARGET);
    ratios(&samples, &name(target), report);
    Ok(())
}

fn rounds(size: Bytes, effort: &Effort, samples: &mut Samples) {
    let rounds = if size >= LARGE { effort.rounds_large } else { effort.rounds };
    let mut progress =
        Progress::new(&format!("contig {}", name(size)), (rounds * Kind::ALL.len()) as u64);
    let mut refused = Vec::new();
    for (turn, (round, kind)) in in_turn(rounds, &Kind::ALL).enumerate() {
        progress.update(turn as u64);
        if refused.contains(&kind) {
            continue;
        }
        match Memory::obtain(kind, size) {
            Ok(mut memory) => turn_of(kind, size, round, &mut memory, effort, samples),
            Err(why) => {
                samples.outcome(
                    &format!("random_read_{}", name(size)),
                    kind.name(),
                    "ns",
                    Err(why),
                );
                refused.push(kind);
            }
        }
    }
}

/// One contestant's turn.
fn turn_of(
    kind: Kind,
    size: Bytes,
    round: u64,
    memory: &mut Memory,
    effort: &Effort,
    samples: &mut Samples,
) {
    let case = |what: &str| format!("{what}_{}", name(size));
    memory.bytes_mut().fill(0);
    for repeat in 0..effort.repeats {
        let seed = round * effort.repeats + repeat + 1;
        let words = memory.words();
        samples.add(&case("random_read"), kind.name(), "ns", random(words, effort.random, seed));
        for stride in STRIDES {
            interrupt::check();
            let took = strided(words, effort.strided, stride);
            samples.add(&case(&format!("stride_{stride}")), kind.name(), "ns", took);
        }
        samples.add(&case("stream_copy"), kind.name(), "GB/s", stream(memory.bytes_mut()));
    }
    samples.add(&case("obtain"), kind.name(), "us cpu", memory.obtained().cpu_us);
    if let Some(contig) = memory.contig() {
        let note = format!("of {}", contig.source());
        samples.note(&case("random_read"), kind.name(), "ns", &note);
    }
}

/// Reads from random places, none of which waits for another: nanoseconds each.
fn random(words: &[u64], reads: u64, seed: u64) -> f64 {
    let shift = shift(words);
    let (mut state, mut sum) = (seed, 0_u64);
    let watch = Stopwatch::start();
    for _ in 0..reads {
        state = state.wrapping_mul(FACTOR).wrapping_add(STEP);
        sum = sum.wrapping_add(words[(state >> shift) as usize]);
    }
    let took = watch.elapsed();
    black_box(sum);
    took.cpu_us * 1e3 / reads as f64
}

/// Reads a word every `stride` bytes, from the start again at the end, at other places then.
fn strided(words: &[u64], reads: u64, stride: u64) -> f64 {
    let mask = (1_usize << words.len().ilog2()) - 1;
    let step = stride as usize / size_of::<u64>();
    let (mut at, mut sum) = (0, 0_u64);
    let watch = Stopwatch::start();
    for _ in 0..reads {
        sum = sum.wrapping_add(words[at]);
        at = (at + step) & mask;
    }
    let took = watch.elapsed();
    black_box(sum);
    took.cpu_us * 1e3 / reads as f64
}

/// The high bits of a state that number every word of the largest power of two.
fn shift(words: &[u64]) -> u32 {
    // One bit at least, so that the shift is less than a word's.
    u64::BITS - words.len().ilog2().max(1)
}

/// One half copied to the other: gigabytes (10^9) copied a second.
fn stream(bytes: &mut [u8]) -> f64 {
    let (to, from) = bytes.split_at_mut(bytes.len() / 2);
    let watch = Stopwatch::start();
    to.copy_from_slice(&from[..to.len()]);
    to.len() as f64 / watch.elapsed().cpu_us / 1e3
}

/// Times divide as peer by glebe, rates as glebe by peer.
fn ratios(samples: &Samples, size: &str, report: &mut Report) {
    for peer in [Kind::Memalign, Kind::MemalignThp, Kind::Hugetlb] {
        let medians = |what: &str| {
            [Kind::Glebe, peer].map(|kind| samples.median(&format!("{what}_{size}"), kind.name()))
        };
        let ([own, peers], who) = (medians("random_read"), peer.name());
        report.ratio(&format!("random_read_vs_{who}"), peers / own);
        let [own, peers] = medians("stream_copy");
        report.ratio(&format!("stream_vs_{who}"), own / peers);
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
            let shift = shift(&words);
            let mut seen = vec![false; len];
            let mut state = 1_u64;
            for _ in 0..len * 20 {
                state = state.wrapping_mul(FACTOR).wrapping_add(STEP);
                seen[(state >> shift) as usize] = true;
            }
            let whole = 1 << len.ilog2();
            assert!(seen[..whole].iter().filter(|&&s| s).count() >= whole * 9 / 10, "{len}");
            assert!(random(&words, 100, 3) > 0.0 && strided(&words, 100, 72) > 0.0);
        }
    }

    #[test]
    fn ratios_are_larger_where_glebe_is_better() {
        let mut samples = Samples::default();
        for (kind, ns, rate) in [(Kind::Memalign, 30.0, 5.0), (Kind::Glebe, 10.0, 6.0)] {
            samples.add("random_read_64m", kind.name(), "ns", ns);
            samples.add("stream_copy_64m", kind.name(), "GB/s", rate);
        }
        let mut report = Report::new("test", "", true);
        ratios(&samples, "64m", &mut report);
        let json = report.json();
        assert!(json.contains("\"random_read_vs_memalign\": 3.0"), "{json}");
        assert!(json.contains("\"stream_vs_memalign\": 1.2"), "{json}");
        assert!(json.contains("\"random_read_vs_hugetlb\": null"), "{json}");
    }
}
