//! [`fill`] derives every word of a page from its key (object and index) and version. [`version`]
//! thus notices words of another page or version.

const WORD: usize = size_of::<u64>();

pub(crate) fn fill(page: &mut [u8], object: u64, index: u64, version: u64) {
    let (first, rest) = page.split_at_mut(WORD);
    first.copy_from_slice(&version.to_ne_bytes());
    let seed = seed(object, index, version);
    for (at, word) in rest.chunks_exact_mut(WORD).enumerate() {
        word.copy_from_slice(&pattern(seed, at).to_ne_bytes());
    }
}

/// Returns the page's version; `None` if any word is wrong for this key and version.
pub(crate) fn version(page: &[u8], object: u64, index: u64) -> Option<u64> {
    let (first, rest) = page.split_at(WORD);
    let version = u64::from_ne_bytes(first.try_into().ok()?);
    let seed = seed(object, index, version);
    let whole = rest
        .chunks_exact(WORD)
        .enumerate()
        .all(|(at, word)| word == pattern(seed, at).to_ne_bytes());
    whole.then_some(version)
}

fn pattern(seed: u64, at: usize) -> u64 {
    seed.wrapping_add((at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn seed(object: u64, index: u64, version: u64) -> u64 {
    mix(mix(mix(object) ^ index) ^ version)
}

/// Mixes a word with the finalizer of SplitMix64: a bijection that spreads every bit.
pub(crate) fn mix(mut word: u64) -> u64 {
    word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

/// Reproducible numbers by [`mix`], good enough to pick pages.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a number below `end`, or 0 if `end` is 0.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(1);
        ((u128::from(mix(self.0)) * u128::from(end)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_page_version_or_byte_is_seen() {
        let mut page = super::super::page_buffer();
        fill(&mut page, 3, 7, 9);
        assert_eq!(version(&page, 3, 7), Some(9));
        assert_eq!(version(&page, 3, 8), None);
        assert_eq!(version(&page, 4, 7), None);
        for at in [0, WORD, page.len() / 2 + 1, page.len() - 1] {
            page[at] ^= 1;
            assert_eq!(version(&page, 3, 7), None, "byte {at}");
            page[at] ^= 1;
        }
    }
}
