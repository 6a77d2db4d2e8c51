//! [`hash`] is a keyed 64-bit hash of bytes, for the sets and checksums of shared caches.
//!
//! Standard hashers are unsuitable: they may differ between builds. The hash does not detect
//! forgeries. Four chains of multiplications run side by side, since each waits for its last one.

/// Odd constants with about half of their bits set.
const FIRST: u64 = 0x9e37_79b9_7f4a_7c15;
const SECOND: u64 = 0xd6e8_feb8_6659_fd93;
const STEP: usize = 16;

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
    let step = |state: u64, block: &[u8]| {
        let (a, b) = block.split_at(STEP / 2);
        fold(state ^ word(a), secret ^ word(b))
    };
    let first = seed ^ fold(bytes.len() as u64 ^ SECOND, FIRST);
    let mut strides = bytes.chunks_exact(STRIDE);
    let mut lanes = [first, first ^ FIRST, first ^ SECOND, !first];
    for stride in &mut strides {
        for (lane, block) in lanes.iter_mut().zip(stride.chunks_exact(STEP)) {
            *lane = step(*lane, block);
        }
    }
    let joined = match bytes.len() < STRIDE {
        true => first,
        false => lanes.into_iter().fold(secret, |all, lane| fold(all ^ lane, FIRST)),
    };
    let state = strides.remainder().chunks(STEP).fold(joined, |state, bytes| {
        let mut block = [0; STEP];
        block[..bytes.len()].copy_from_slice(bytes);
        step(state, &block)
    });
    fold(state ^ secret, SECOND)
}

fn word(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_ne_bytes)
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
