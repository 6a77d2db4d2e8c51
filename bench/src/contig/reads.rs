//! Reads of memory, nanoseconds of CPU time each: from random places, one after the other or each
//! from where the last says, and from places a stride apart.
//!
//! Places come from a linear congruential sequence, five cycles a step, so that finding them is
//! not what is measured. A dependent read adds what it found to the state, so that the processor
//! must wait for it: a pointer chase that needs no pointers in the memory.

use std::hint::black_box;

use crate::clock::Stopwatch;

/// Knuth's multiplier for 64 bits.
const FACTOR: u64 = 6_364_136_223_846_793_005;
const STEP: u64 = 1_442_695_040_888_963_407;

/// Reads from random places, none of which waits for another.
pub(crate) fn independent(words: &[u64], reads: u64, seed: u64) -> f64 {
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

/// Reads from random places, each of which depends on what was read before.
pub(crate) fn dependent(words: &[u64], reads: u64, seed: u64) -> f64 {
    let shift = shift(words);
    let mut state = seed;
    let watch = Stopwatch::start();
    for _ in 0..reads {
        state = state.wrapping_mul(FACTOR).wrapping_add(STEP);
        state = state.wrapping_add(words[(state >> shift) as usize]);
    }
    let took = watch.elapsed();
    black_box(state);
    took.cpu_us * 1e3 / reads as f64
}

/// Reads a word every `stride` bytes, from the start again at the end, at other places then.
pub(crate) fn strided(words: &[u64], reads: u64, stride: u64) -> f64 {
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
            assert!(independent(&words, 100, 3) > 0.0);
            assert!(strided(&words, 100, 72) > 0.0);
        }
    }

    #[test]
    fn a_dependent_read_goes_where_it_was_told() {
        // With other contents the walk is another; the state is seen through the last place.
        let walk = |fill: u64| {
            let words = vec![fill; 1 << 10];
            let shift = shift(&words);
            let mut state = 9_u64;
            let mut places = Vec::new();
            for _ in 0..8 {
                state = state.wrapping_mul(FACTOR).wrapping_add(STEP);
                places.push(state >> shift);
                state = state.wrapping_add(words[(state >> shift) as usize]);
            }
            places
        };
        assert_eq!(walk(0)[0], walk(1 << 60)[0]);
        assert_ne!(walk(0)[1..], walk(1 << 60)[1..]);
        assert!(dependent(&[0; 64], 1000, 1) > 0.0);
    }
}
