//! What [`crate::sync`] gives the reserve, with words of which the checker misses no race.
//!
//! loom 0.7 looks for races with the last access of a word alone: a thread's own load hides that
//! another thread loaded the word before, and then the order in which the other loads after this
//! thread's store is never tried. So each word has a second one, changed with every access of
//! the first; changes hide nothing. They are relaxed, which orders nothing else. Cost: two
//! loads of a word are tried in both orders too.
//! Source: github.com/tokio-rs/loom, issues 166 and 392.

#[allow(dead_code, unused_imports)]
#[path = "../../src/sync.rs"]
mod plain;

pub(crate) use plain::*;

/// As loom's, but for the races.
#[derive(Debug)]
pub(crate) struct AtomicU64 {
    word: plain::AtomicU64,
    accessed: plain::AtomicU64,
}

/// In models, mapped words are such too.
pub(crate) type MappedWord = AtomicU64;

impl Default for AtomicU64 {
    fn default() -> Self {
        Self::new(0)
    }
}

impl AtomicU64 {
    pub(crate) fn new(value: u64) -> Self {
        Self { word: plain::AtomicU64::new(value), accessed: plain::AtomicU64::new(0) }
    }

    /// Accesses the word and, in one step with it, changes the second one. Nothing may be tried in
    /// between: a race of the second words is led back to the access before.
    fn at<T>(&self, access: impl FnOnce(&plain::AtomicU64) -> T) -> T {
        let done = access(&self.word);
        loom::stop_exploring();
        self.accessed.fetch_add(0, Ordering::Relaxed);
        loom::explore();
        done
    }

    pub(crate) fn load(&self, order: Ordering) -> u64 {
        self.at(|word| word.load(order))
    }

    pub(crate) fn store(&self, value: u64, order: Ordering) {
        self.at(|word| word.store(value, order));
    }

    pub(crate) fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.at(|word| word.swap(value, order))
    }

    pub(crate) fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.at(|word| word.fetch_add(value, order))
    }

    pub(crate) fn fetch_sub(&self, value: u64, order: Ordering) -> u64 {
        self.at(|word| word.fetch_sub(value, order))
    }

    pub(crate) fn fetch_max(&self, value: u64, order: Ordering) -> u64 {
        self.at(|word| word.fetch_max(value, order))
    }

    pub(crate) fn fetch_and(&self, value: u64, order: Ordering) -> u64 {
        self.at(|word| word.fetch_and(value, order))
    }

    pub(crate) fn fetch_or(&self, value: u64, order: Ordering) -> u64 {
        self.at(|word| word.fetch_or(value, order))
    }

    pub(crate) fn compare_exchange(
        &self,
        old: u64,
        new: u64,
        done: Ordering,
        lost: Ordering,
    ) -> Result<u64, u64> {
        self.at(|word| word.compare_exchange(old, new, done, lost))
    }

    pub(crate) fn compare_exchange_weak(
        &self,
        old: u64,
        new: u64,
        done: Ordering,
        lost: Ordering,
    ) -> Result<u64, u64> {
        self.at(|word| word.compare_exchange_weak(old, new, done, lost))
    }
}

/// The schedule in which the other thread goes first, of which loom's own words know nothing:
/// the first thread's load hides the other's.
#[test]
#[should_panic(expected = "the other went first")]
fn a_load_hides_no_load() {
    crate::explore(None, || {
        let words = std::sync::Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let other = std::sync::Arc::clone(&words);
        let other = loom::thread::spawn(move || {
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
