//! Objects that are one word over and over: nothing of them needs storing but that word.
//!
//! Cost: a comparison up to the first byte that differs. Source: zram's same-filled pages.

const WORD: usize = size_of::<u64>();

/// The word that fills all of `object`, which is a whole number of words.
pub(crate) fn same_filled(object: &[u8]) -> Option<u64> {
    let word = object.first_chunk::<WORD>()?;
    let whole = object.len() % WORD == 0;
    // Most objects that are not filled differ at their end already.
    let filled = whole && object.ends_with(word) && object[WORD..] == object[..object.len() - WORD];
    filled.then(|| u64::from_le_bytes(*word))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn one_word_over_and_over_and_nothing_else() {
        for (word, words) in [(0_u64, 512), (u64::MAX, 1), (0x0102_0304_0506_0708, 512)] {
            let mut object = word.to_le_bytes().repeat(words);
            assert_eq!(same_filled(&object), Some(word));
            object.push(0);
            assert_eq!(same_filled(&object), None);
            object.pop();
            if words > 1 {
                for at in [0, 7, 8, 2000, object.len() - 1] {
                    object[at] ^= 1;
                    assert_eq!(same_filled(&object), None, "{at}");
                    object[at] ^= 1;
                }
            }
        }
        assert_eq!((same_filled(&[]), same_filled(&[0; 7])), (None, None));
    }
}
