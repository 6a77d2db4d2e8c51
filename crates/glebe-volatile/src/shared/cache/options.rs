//! [`SharedCacheOptions`] creates a cache's index. A compare-and-exchange sets only header words
//! that are 0, so processes that start together agree.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use super::super::ledger::Ledger;
use super::super::region::Shared;
use super::places::{Head, Places, WAYS};
use super::stats::Counts;
use super::SharedCache;
use crate::{Error, Priority, Refills};
use glebe_os::extent::Extent;
use glebe_os::internal::sync::Ordering;
use glebe_os::units::Bytes;

const MAGIC: u64 = u64::from_ne_bytes(*b"glebeshc");
const VERSION: u64 = 2;
const ENTRY: Bytes = Bytes::new(16 << 10);
const PATIENCE: Duration = Duration::from_millis(100);

/// Options of a [`SharedCache`]; from [`SharedCache::options`].
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
    /// Sets the size of an entry: whole granules, less than 4 GiB. Value, key and 8 more bytes must
    /// fit. Default: 16 KiB, or a longer granule. An existing cache keeps its size.
    pub fn entry(self, entry: Bytes) -> Self {
        Self { entry: Some(entry), ..self }
    }

    /// Sets how long a lookup waits for another builder. Default: 100 milliseconds.
    pub fn patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Sets the priority of this process's entries. Default: [`Priority::NORMAL`].
    pub fn priority(self, priority: Priority) -> Self {
        Self { priority, ..self }
    }

    /// Sets the permission to keep built values. Default: always.
    pub fn refills(self, refills: Refills) -> Self {
        Self { refills, ..self }
    }

    pub(super) fn over(self, shared: Arc<Shared>) -> Result<SharedCache, Error> {
        let (len, granule) = (shared.len(), shared.granule());
        let entry = self.entry.unwrap_or(ENTRY.max(granule)).get();
        let limit = len.get() / WAYS;
        if Places::new(len, granule, entry).is_none() {
            let what = "an entry is no whole granules, of 4 GiB or more, or a set of 8 has no room";
            return Err(Error::BadOption { what, value: entry, limit });
        }
        // Allocates the header: without memory, a pin returns an error and a touch cannot.
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

fn first(shared: &Shared, head: Head, value: u64) -> u64 {
    let word = Ledger::word_in(shared.data(), head.at());
    let set = word.compare_exchange(0, value, Ordering::SeqCst, Ordering::SeqCst);
    set.err().unwrap_or(value)
}

fn settle(shared: &Shared, head: Head, what: &'static str, expected: u64) -> Result<(), Error> {
    let value = first(shared, head, expected);
    if value == expected {
        return Ok(());
    }
    Err(Error::BadFile { what, value, expected })
}
