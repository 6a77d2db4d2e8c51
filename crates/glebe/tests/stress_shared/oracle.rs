//! [`Oracle`] records every granule's contents, in memory shared by all processes of the test.
//!
//! ```text
//! word of a granule   version << 1 | is known
//! ```
//!
//! Only a granule's user changes its word. The word says "unknown" while the user changes the
//! granule or unmarks it, and stays so if the user is killed.
//!
//! # Safety
//! The words are atomics and stay mapped.

use std::fmt;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Clone, Copy, Debug)]
pub enum Count {
    Intact,
    Lost,
    Purged,
    Kills,
    Waited,
}

const COUNTS: [Count; 5] = [Count::Intact, Count::Lost, Count::Purged, Count::Kills, Count::Waited];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    Unknown,
    /// This version, unless reported lost.
    Holds(u64),
}

/// A word for each granule, and then the counts.
pub struct Oracle {
    words: *const AtomicU64,
    granules: u64,
}

// SAFETY: `words` points to atomics, which stay mapped.
unsafe impl Sync for Oracle {}
// SAFETY: `words` points to atomics, which stay mapped.
unsafe impl Send for Oracle {}

impl Oracle {
    pub fn new(granules: u64) -> Self {
        let len = (granules as usize + COUNTS.len()) * size_of::<AtomicU64>();
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the kernel chooses the address, and the mapping stays.
        let at = unsafe { libc::mmap(ptr::null_mut(), len, access, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        Self { words: at.cast(), granules }
    }

    fn word(&self, at: u64) -> &AtomicU64 {
        assert!(at < self.granules + COUNTS.len() as u64);
        // SAFETY: the word is inside the mapping, which stays.
        unsafe { &*self.words.add(at as usize) }
    }

    pub fn seen(&self, granule: u64) -> Seen {
        let word = self.word(granule).load(Ordering::SeqCst);
        if word & 1 == 0 {
            Seen::Unknown
        } else {
            Seen::Holds(word >> 1)
        }
    }

    /// Marks the contents as unknown; returns the next version.
    pub fn begin(&self, granule: u64) -> u64 {
        let version = (self.word(granule).load(Ordering::SeqCst) >> 1) + 1;
        self.word(granule).store(version << 1, Ordering::SeqCst);
        version
    }

    pub fn done(&self, granule: u64, version: u64) {
        self.word(granule).store(version << 1 | 1, Ordering::SeqCst);
    }

    pub fn count(&self, count: Count, n: u64) {
        self.word(self.granules + count as u64).fetch_add(n, Ordering::Relaxed);
    }

    pub fn is_enough(&self) -> bool {
        let done =
            [(Count::Intact, 100), (Count::Lost, 100), (Count::Purged, 100), (Count::Kills, 10)];
        done.iter().all(|(count, least)| self.get(*count) >= *least)
    }

    pub fn get(&self, count: Count) -> u64 {
        self.word(self.granules + count as u64).load(Ordering::Relaxed)
    }
}

impl fmt::Debug for Oracle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(COUNTS.map(|count| (count, self.get(count)))).finish()
    }
}
