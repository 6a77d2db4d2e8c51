//! [`SharedCacheOptions`], and how the index of a cache comes into a file.
//!
//! Each word of the header is set by an exchange of 0: of several processes that begin at once the
//! first sets it and all take what stands there, and what a killed one left is completed by the
//! next. A file that holds something else is refused.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use super::super::ledger::Ledger;
use super::super::region::Shared;
use super::places::{Head, Places, WAYS};
use super::stats::Counts;
use super::SharedCache;
use crate::extent::Extent;
use crate::sync::Ordering;
use crate::units::Bytes;
use crate::volatile::{Error, Priority, Refills};

/// "glebeshc" as its bytes are in memory.
const MAGIC: u64 = u64::from_ne_bytes(*b"glebeshc");
const VERSION: u64 = 1;
/// Of an entry, where nothing is said and granules are no longer.
const ENTRY: Bytes = Bytes::new(16 << 10);
const PATIENCE: Duration = Duration::from_millis(100);

/// What a [`SharedCache`] is to be like; from [`SharedCache::options`].
#[derive(Clone, Debug)]
#[must_use = "options do nothing until a cache is made of them"]
pub struct SharedCacheOptions {
    entry: Option<Bytes>,
    patience: Duration,
    priority: Priority,
    refills: Refills,
}

impl Default for SharedCacheOptions {
    fn default() -> Self {
        let refills = Refills::new();
        Self { entry: None, patience: PATIENCE, priority: Priority::NORMAL, refills }
    }
}

impl SharedCacheOptions {
    /// The most bytes that a value and its key may have together, with 8 more: whole granules, less
    /// than 4 GiB. An entry has memory for what it holds alone, in granules. Else 16 KiB, or a
    /// granule if that is longer. Who opens the cache of another takes that one's.
    pub fn entry(self, entry: Bytes) -> Self {
        Self { entry: Some(entry), ..self }
    }

    /// How long a lookup waits for another that builds the same value, before it builds one for
    /// itself. Else 100 milliseconds.
    pub fn patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// The priority of what this process puts in: purges take the lowest first. Else
    /// [`Priority::NORMAL`].
    pub fn priority(self, priority: Priority) -> Self {
        Self { priority, ..self }
    }

    /// Asks this value before it keeps what is built: while it says no, what is missed is built and
    /// not kept. Else all is kept.
    pub fn refills(self, refills: Refills) -> Self {
        Self { refills, ..self }
    }

    /// The cache in the data of `shared`, which is made if the data begins with zeros.
    pub(super) fn over(self, shared: Arc<Shared>) -> Result<SharedCache, Error> {
        let (len, granule) = (shared.len(), shared.granule());
        let entry = self.entry.unwrap_or(ENTRY.max(granule)).get();
        let limit = len.get() / WAYS;
        if Places::new(len, granule, entry).is_none() {
            let what = "an entry is no whole granules, of 4 GiB or more, or a set of 8 has no room";
            return Err(Error::BadOption { what, value: entry, limit });
        }
        // A touch must need no memory: the file system may be full.
        drop(shared.pin(Bytes::ZERO..granule)?);
        let granules = Extent::new(0, len.get() / granule.get()).ok_or(Error::Empty)?;
        shared.ledger().touch_words(granules)?;
        settle(&shared, Head::Magic, "the cache's magic", MAGIC)?;
        settle(&shared, Head::Version, "the cache's version", VERSION)?;
        let entry = first(&shared, Head::Entry, entry);
        let bad = Error::BadFile { what: "the cache's entry", value: entry, expected: limit };
        let places = Places::new(len, granule, entry).ok_or(bad)?;
        let seed = first(&shared, Head::Seed, RandomState::new().hash_one(0).max(1));
        for at in (0..places.index_len()).step_by(granule.as_usize()) {
            drop(shared.pin(Bytes::new(at)..Bytes::new(at) + granule)?);
        }
        let Self { patience, priority, refills, .. } = self;
        let counts = Counts::new();
        Ok(SharedCache { shared, places, seed, patience, priority, refills, counts })
    }
}

/// Sets a word of the header if it is 0; what stands there.
fn first(shared: &Shared, head: Head, value: u64) -> u64 {
    let word = Ledger::word_in(shared.data(), head.at());
    let set = word.compare_exchange(0, value, Ordering::SeqCst, Ordering::SeqCst);
    set.err().unwrap_or(value)
}

/// As [`first`], where nothing else may stand.
fn settle(shared: &Shared, head: Head, what: &'static str, expected: u64) -> Result<(), Error> {
    let value = first(shared, head, expected);
    if value == expected {
        return Ok(());
    }
    Err(Error::BadFile { what, value, expected })
}
