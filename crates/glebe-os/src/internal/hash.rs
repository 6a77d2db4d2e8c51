//! [`hash`] is a keyed 64-bit hash of bytes, for the sets and checksums of shared caches.
//!
//! Standard hashers are unsuitable: they may differ between builds. The hash does not detect
//! forgeries. Four chains of multiplications run side by side, since each waits for its last one.

/// Odd constants with about half of their bits set.
const FIRST: u64 = 0x9e37_79b9_7f4a_7c15;
const SECOND: u64 = 0xd6e8_feb8_6659_fd93;
const WORD: usize = size_of::<u64>();
const STEP: usize = 2 * WORD;

#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> u64::BITS) as u64
}

/// Bytes of one step of all chains.
const STRIDE: usize = LANES * STEP;
const LANES: usize = 4;

/// Returns the hash. O(bytes).
#[must_use]
pub fn hash(seed: u64, bytes: &[u8]) -> u64 {
    let secret = fold(seed ^ FIRST, SECOND);
    let step = |state: u64, a: u64, b: u64| fold(state ^ a, secret ^ b);
    let mut state = seed ^ fold(bytes.len() as u64 ^ SECOND, FIRST);
    let mut rest = bytes;
    if bytes.len() >= STRIDE {
        let mut lanes = [state, state ^ FIRST, state ^ SECOND, !state];
        while let Some((stride, after)) = rest.split_first_chunk::<STRIDE>() {
            // Spelled out, because the compiler keeps the lanes in registers only so.
            lanes[0] = step(lanes[0], word(stride, 0), word(stride, 1));
            lanes[1] = step(lanes[1], word(stride, 2), word(stride, 3));
            lanes[2] = step(lanes[2], word(stride, 4), word(stride, 5));
            lanes[3] = step(lanes[3], word(stride, 6), word(stride, 7));
            rest = after;
        }
        state = lanes.into_iter().fold(secret, |all, lane| fold(all ^ lane, FIRST));
    }
    while let Some((block, after)) = rest.split_first_chunk::<STEP>() {
        state = step(state, word(block, 0), word(block, 1));
        rest = after;
    }
    if !rest.is_empty() {
        let mut block = [0; STEP];
        block[..rest.len()].copy_from_slice(rest);
        state = step(state, word(&block, 0), word(&block, 1));
    }
    fold(state ^ secret, SECOND)
}

/// Returns the `nth` word. The optimizer removes the checks of constant places.
#[inline]
fn word<const N: usize>(bytes: &[u8; N], nth: usize) -> u64 {
    let (words, _) = bytes[nth * WORD..].split_at(WORD);
    words.try_into().map_or(0, u64::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_bit_the_length_and_the_seed_count() {
        let bytes: Vec<u8> = (0..100).collect();
        let mut seen = HashSet::from([hash(1, &bytes), hash(2, &bytes)]);
        let mut all = 2;
        for bit in 0..800 {
            let mut other = bytes.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            seen.insert(hash(1, &other));
            all += 1;
        }
        for len in 0..200 {
            seen.insert(hash(1, &vec![0; len]));
            all += 1;
        }
        assert_eq!(seen.len(), all);
        // The upper bits choose the set.
        let sets = (0_u32..4096).map(|n| hash(7, &n.to_ne_bytes()) >> 60);
        let mut counts = [0; 16];
        sets.for_each(|set| counts[set as usize] += 1);
        assert!(counts.iter().all(|count| (128..512).contains(count)), "{counts:?}");
    }
}
