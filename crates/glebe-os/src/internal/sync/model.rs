//! [`AtomicU64`] is an atomic word with which loom finds all races.
//!
//! loom 0.7 looks for a race only with the last access to a word, so a thread's own load hides an
//! earlier load by another thread. Unlike loads, changes race with each other, so each access also
//! changes a second word.
//! Source: github.com/tokio-rs/loom, issues 166 and 392.

use std::sync::OnceLock;

use loom::sync::atomic::AtomicU64 as Word;

use super::Ordering;

#[derive(Debug)]
pub struct AtomicU64 {
    value: u64,
    words: OnceLock<(Word, Word)>,
}

impl Default for AtomicU64 {
    fn default() -> Self {
        Self::new(0)
    }
}

impl AtomicU64 {
    pub fn new(value: u64) -> Self {
        let late = Self::late(value);
        late.words();
        late
    }

    /// Makes a word that loom learns of at its first access. loom panics if a later access is not
    /// ordered after the first.
    pub fn late(value: u64) -> Self {
        Self { value, words: OnceLock::new() }
    }

    fn words(&self) -> &(Word, Word) {
        self.words.get_or_init(|| (Word::new(self.value), Word::new(0)))
    }

    /// Accesses the first word, then changes the second, without a thread switch in between. A race
    /// on the second word makes loom try a switch before the first step.
    fn at<T>(&self, access: impl FnOnce(&Word) -> T) -> T {
        let (word, accessed) = self.words();
        let done = access(word);
        loom::stop_exploring();
        accessed.fetch_add(0, Ordering::Relaxed);
        loom::explore();
        done
    }

    pub fn load(&self, order: Ordering) -> u64 {
        self.at(|word| word.load(order))
    }

    pub fn store(&self, value: u64, order: Ordering) {
        self.at(|word| word.store(value, order));
    }

    pub fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.at(|word| word.swap(value, order))
    }

    pub fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.at(|word| word.fetch_add(value, order))
    }

    pub fn fetch_sub(&self, value: u64, order: Ordering) -> u64 {
        self.at(|word| word.fetch_sub(value, order))
    }

    pub fn fetch_max(&self, value: u64, order: Ordering) -> u64 {
        self.at(|word| word.fetch_max(value, order))
    }

    pub fn fetch_and(&self, value: u64, order: Ordering) -> u64 {
        self.at(|word| word.fetch_and(value, order))
    }

    pub fn fetch_or(&self, value: u64, order: Ordering) -> u64 {
        self.at(|word| word.fetch_or(value, order))
    }

    pub fn compare_exchange(
        &self,
        old: u64,
        new: u64,
        done: Ordering,
        lost: Ordering,
    ) -> Result<u64, u64> {
        self.at(|word| word.compare_exchange(old, new, done, lost))
    }

    pub fn compare_exchange_weak(
        &self,
        old: u64,
        new: u64,
        done: Ordering,
        lost: Ordering,
    ) -> Result<u64, u64> {
        self.at(|word| word.compare_exchange_weak(old, new, done, lost))
    }

    pub fn fetch_update(
        &self,
        done: Ordering,
        lost: Ordering,
        change: impl Fn(u64) -> Option<u64>,
    ) -> Result<u64, u64> {
        let mut old = self.load(lost);
        while let Some(new) = change(old) {
            match self.compare_exchange_weak(old, new, done, lost) {
                Ok(old) => return Ok(old),
                Err(now) => old = now,
            }
        }
        Err(old)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use loom::thread;

    use super::{AtomicU64, Ordering};

    #[test]
    #[should_panic(expected = "the other went first")]
    fn a_load_hides_no_load() {
        loom::model(|| {
            let words = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
            let other = Arc::clone(&words);
            let other = thread::spawn(move || {
                other[0].load(Ordering::Acquire);
                other[1].store(1, Ordering::Release);
                other[0].store(2, Ordering::Release);
            });
            let seen = words[0].load(Ordering::Acquire);
            let before = words[0].fetch_add(1, Ordering::AcqRel);
            other.join().unwrap();
            assert_ne!((seen, before), (2, 2), "the other went first");
        });
    }
}
