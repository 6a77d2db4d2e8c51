//! [`Bits`] is a set of small numbers that finds the lowest run of a given length.

pub(crate) const RUN_MAX: u32 = 16;

const SPARE_PARTS: usize = 2;

/// Reserves at most an eighth more than `len`, because spare capacity counts as held memory.
pub(crate) fn resize_close<T: Clone>(all: &mut Vec<T>, len: usize, value: T) {
    if all.capacity() < len {
        all.reserve_exact(len + len / 8 - all.len());
    }
    all.resize(len, value);
}

#[derive(Debug, Default)]
pub(crate) struct Bits {
    words: Vec<u64>,
    /// By run length minus one: index of the first word where a run may begin.
    hints: [u32; RUN_MAX as usize],
    len: usize,
}

const WORD: u32 = u64::BITS;

impl Bits {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(crate) fn contains(&self, number: u32) -> bool {
        let word = self.words.get((number / WORD) as usize);
        word.is_some_and(|word| word >> (number % WORD) & 1 == 1)
    }

    pub(crate) fn put(&mut self, first: u32, count: u32) {
        let words = (first + count).div_ceil(WORD) as usize;
        if self.words.len() < words {
            resize_close(&mut self.words, words, 0);
        }
        self.len += count as usize;
        self.each_word(first, count, |word, mask| {
            debug_assert_eq!(*word & mask, 0, "in it already");
            *word |= mask;
        });
        // A run that ends in the word of `first` may begin in the word before.
        let from = (first / WORD).saturating_sub(1);
        self.hints.iter_mut().for_each(|hint| *hint = (*hint).min(from));
    }

    pub(crate) fn remove(&mut self, first: u32, count: u32) {
        self.len -= count as usize;
        self.each_word(first, count, |word, mask| {
            debug_assert_eq!(*word & mask, mask, "not in it");
            *word &= !mask;
        });
    }

    fn each_word(&mut self, first: u32, count: u32, mut f: impl FnMut(&mut u64, u64)) {
        let (mut at, end) = (first, first + count);
        while at < end {
            let bits = (WORD - at % WORD).min(end - at);
            let mask = (u64::MAX >> (WORD - bits)) << (at % WORD);
            f(&mut self.words[(at / WORD) as usize], mask);
            at += bits;
        }
    }

    pub(crate) fn take(&mut self, count: u32) -> Option<u32> {
        let hint = count as usize - 1;
        let mut at = self.hints[hint] as usize;
        while at < self.words.len() {
            let low = self.words[at];
            if low != 0 {
                let high = self.words.get(at + 1).copied().unwrap_or(0);
                let mut runs = u128::from(high) << WORD | u128::from(low);
                // Bit n of `runs` is set if the `have` bits from n upwards were set.
                let mut have = 1;
                while have < count {
                    let step = have.min(count - have);
                    runs &= runs >> step;
                    have += step;
                }
                let runs = runs as u64;
                if runs != 0 {
                    let first = at as u32 * WORD + runs.trailing_zeros();
                    self.hints[hint] = at as u32;
                    self.remove(first, count);
                    return Some(first);
                }
            }
            at += 1;
        }
        self.hints[hint] = at.saturating_sub(1) as u32;
        None
    }

    /// Removes up to `most` adjacent numbers from `first` on. Returns how many.
    pub(crate) fn take_at(&mut self, first: u32, most: u32) -> u32 {
        let count = (0..most).take_while(|n| self.contains(first + n)).count() as u32;
        if count > 0 {
            self.remove(first, count);
        }
        count
    }

    /// Removes up to `most` numbers of the highest run.
    pub(crate) fn take_highest(&mut self, most: u32) -> Option<(u32, u32)> {
        self.shrink();
        let last = *self.words.last()?;
        let end = self.words.len() as u32 * WORD - last.leading_zeros();
        let count = (1..=most.min(end)).take_while(|n| self.contains(end - n)).count() as u32;
        self.remove(end - count, count);
        Some((end - count, count))
    }

    pub(crate) fn shrink(&mut self) {
        while self.words.last() == Some(&0) {
            self.words.pop();
        }
        if self.words.capacity() > SPARE_PARTS * self.words.len() {
            self.words.shrink_to_fit();
        }
    }

    pub(crate) fn held_bytes(&self) -> u64 {
        (self.words.capacity() * size_of::<u64>()) as u64
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn lowest(model: &BTreeSet<u32>, count: u32) -> Option<u32> {
        model.iter().copied().find(|first| (*first..first + count).all(|n| model.contains(&n)))
    }

    proptest! {
        #[test]
        fn as_a_set(ops in prop::collection::vec((0..4_u8, 0..300_u32, 1..=RUN_MAX), 1..120)) {
            let (mut bits, mut model) = (Bits::default(), BTreeSet::new());
            for (op, at, count) in ops {
                let run = at..at + count;
                match op {
                    0 | 1 if run.clone().all(|n| !model.contains(&n)) => {
                        bits.put(at, count);
                        model.extend(run);
                    }
                    0 | 1 => {
                        let expected = run.take_while(|n| model.remove(n)).count() as u32;
                        prop_assert_eq!(bits.take_at(at, count), expected);
                    }
                    2 => {
                        let first = lowest(&model, count);
                        prop_assert_eq!(bits.take(count), first);
                        first.into_iter().flat_map(|n| n..n + count).for_each(|n| {
                            model.remove(&n);
                        });
                    }
                    _ => {
                        let taken = bits.take_highest(count);
                        prop_assert_eq!(taken.is_some(), !model.is_empty());
                        if let Some((first, count)) = taken {
                            prop_assert_eq!(model.last().copied(), Some(first + count - 1));
                            prop_assert!((first..first + count).all(|n| model.remove(&n)));
                        }
                    }
                }
                prop_assert_eq!(bits.len(), model.len());
                prop_assert!((0..340).all(|n| bits.contains(n) == model.contains(&n)));
            }
        }
    }
}
