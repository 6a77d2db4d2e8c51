//! [`SharedCache`]: values by key that the processes of a [`Shared`] build once for all.
//!
//! The data is an unmarked index and marked entries (`places`). The hash of a key chooses a set of
//! eight slots. A word per slot says what it holds or who writes it (`state`).
//!
//! A reader takes no lock: it pins the entry, checks the word, copies, and checks again. A checksum
//! of value, key and turn (number of claims) must match, so a lost or torn entry is a miss. No word
//! of the file is used as an offset, and a length is used only within an entry. Slots that a dead
//! process was writing count as free. A hit usually makes no system call.

mod claim;
mod options;
mod places;
mod state;
mod stats;
#[cfg(test)]
mod tests;

pub use options::SharedCacheOptions;
pub use stats::Stats as SharedCacheStats;

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::layout::Field;
use super::ledger::Ledger;
use super::order::Order;
use super::region::Shared;
use super::word::Word;
use crate::{Error, Priority, Refills};
use claim::Claim;
use glebe_os::internal::hash::hash;
use glebe_os::internal::sync::{fence, Backoff, MappedWord, Ordering};
use glebe_os::internal::sys::page_size;
use glebe_os::units::{Bytes, Pages};
use places::{Places, HEAD};
use state::{SlotPhase, SlotState, Writer};
use stats::{Counter, Counts, Stats};

/// The error of [`SharedCache::get_or_build`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SharedBuildError<E> {
    /// The builder failed.
    #[error("{0}")]
    Builder(E),
    /// The key, or both key and value, exceed an entry.
    #[error(
        "a key and its value of {len} bytes; an entry of the shared cache has room for {limit}"
    )]
    TooLong {
        /// Bytes of both, or of a too long key.
        len: usize,
        /// Most bytes of both.
        limit: usize,
    },
}

/// Values by key, both byte strings, that several processes share. [`SharedCache::get_or_build`]
/// builds a purged value again.
///
/// ```
/// use std::convert::Infallible;
/// use std::sync::Arc;
/// use glebe_volatile::{Priority, Shared, SharedCache};
/// use glebe_volatile::units::Bytes;
///
/// // Other processes open the same file and call `over` as well.
/// let shared = Arc::new(Shared::options().create(Bytes::mib(16))?);
/// let cache = SharedCache::over(Arc::clone(&shared), SharedCache::options())?;
/// let build = |value: &mut Vec<u8>| Ok::<_, Infallible>(value.extend(b"rendered"));
/// let mut value = Vec::new();
/// cache.get_or_build(b"page 1", &mut value, build)?;
/// assert!(cache.get(b"page 1", &mut value)? && value == b"rendered");
///
/// // Any process may purge. A purged value is a miss.
/// shared.purge(shared.len(), Priority::HIGHEST)?;
/// assert!(!cache.get(b"page 1", &mut value)?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A forked child sees the same entries.
#[derive(Debug)]
pub struct SharedCache {
    shared: Arc<Shared>,
    places: Places,
    seed: u64,
    patience: Duration,
    priority: Priority,
    refills: Refills,
    counts: Counts,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Hit,
    Busy,
    Nothing,
}

enum Sought<'a> {
    Hit,
    Missing(Option<Claim<'a>>),
}

struct Building<'a>(&'a Counts);

impl Drop for Building<'_> {
    fn drop(&mut self) {
        self.0.add(Counter::Failed, 1);
    }
}

impl SharedCache {
    /// Returns default options.
    pub fn options() -> SharedCacheOptions {
        SharedCacheOptions::default()
    }

    /// Opens the cache in `shared`, or makes it if the data begins with zeros. The cache owns the
    /// data.
    ///
    /// # Errors
    /// [`Error::BadFile`] if the data holds something else; [`Error::BadOption`] if an entry is not
    /// whole granules below 4 GiB, or 8 entries do not fit; the errors of [`Shared::pin`].
    pub fn over(shared: Arc<Shared>, options: SharedCacheOptions) -> Result<Self, Error> {
        options.over(shared)
    }

    /// Returns the cache's file.
    #[must_use]
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Returns the most bytes of a key and its value together.
    #[must_use]
    pub fn limit(&self) -> Bytes {
        self.places.entry() - Bytes::new(HEAD)
    }

    /// Copies a value into `value`. Returns true if it was found; else empties `value`.
    ///
    /// # Errors
    /// As [`Shared::pin`].
    pub fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, Error> {
        let found = self.find(key, self.hash(key), value);
        let is_hit = matches!(found, Ok(Found::Hit));
        if is_hit {
            self.counts.add(Counter::Hits, 1);
        } else {
            value.clear();
            self.counts.add(Counter::Misses, 1);
            self.counts.add(Counter::Told, 1);
        }
        found.map(|_| is_hit)
    }

    /// Copies the value of `key` to `value`, or empties `value` and builds there. Meanwhile other
    /// `get_or_build` calls for the key, in any process, wait up to
    /// [`SharedCacheOptions::patience`]. The cache keeps no value that the file has no room for.
    ///
    /// # Errors
    /// [`SharedBuildError`]. Even if key and value together are too long to keep, `value` is
    /// complete.
    pub fn get_or_build<E>(
        &self,
        key: &[u8],
        value: &mut Vec<u8>,
        build: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<(), SharedBuildError<E>> {
        self.check_len(key.len())?;
        let claim = match self.seek(key, value) {
            Ok(Sought::Hit) => {
                self.counts.add(Counter::Hits, 1);
                return Ok(());
            }
            Ok(Sought::Missing(claim)) => claim,
            Err(_) => None,
        };
        self.counts.add(Counter::Misses, 1);
        value.clear();
        let building = Building(&self.counts);
        build(value).map_err(SharedBuildError::Builder)?;
        std::mem::forget(building);
        self.counts.add(Counter::Built, 1);
        let len = value.len();
        let fits = self.check_len(len.saturating_add(key.len()));
        let is_kept = fits.is_ok()
            && claim.is_some_and(|claim| {
                value.extend_from_slice(key);
                let is_kept = claim.keep(key.len(), value);
                value.truncate(len);
                is_kept.unwrap_or(false)
            });
        if !is_kept {
            self.counts.add(Counter::NotKept, 1);
        }
        fits
    }

    /// Removes an entry for all processes. Returns true if it existed.
    ///
    /// # Errors
    /// As [`Shared::pin`].
    pub fn remove(&self, key: &[u8]) -> Result<bool, Error> {
        self.shared.joined()?;
        let (hash, mut is_removed) = (self.hash(key), false);
        for slot in self.places.set_of(hash) {
            if self.hash_of(slot).load(Ordering::SeqCst) != hash {
                continue;
            }
            let empty = |now| Some(SlotState(now).with(SlotPhase::Empty).0);
            let word = self.word(self.places.state_at(slot));
            let was = word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, empty);
            let (Ok(was) | Err(was)) = was;
            is_removed |= matches!(SlotState(was).phase(), SlotPhase::Kept(_));
        }
        self.counts.add(Counter::Removed, is_removed.into());
        self.shared.whole()?;
        Ok(is_removed)
    }

    /// Returns this process's counters, and the pages of all entries.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let entry = self.places.entry().pages_down(page_size()).get();
        Stats { total: Pages::new(self.places.slots() * entry), ..self.counts.sum() }
    }

    fn check_len<E>(&self, len: usize) -> Result<(), SharedBuildError<E>> {
        let limit = self.limit().as_usize();
        if len > limit {
            return Err(SharedBuildError::TooLong { len, limit });
        }
        Ok(())
    }

    fn seek(&self, key: &[u8], value: &mut Vec<u8>) -> Result<Sought<'_>, Error> {
        let (hash, begin, mut backoff) = (self.hash(key), Instant::now(), Backoff::default());
        let mut waits = 0;
        loop {
            let found = self.find(key, hash, value)?;
            if found == Found::Hit {
                return Ok(Sought::Hit);
            }
            if !self.refills.are_allowed() {
                return Ok(Sought::Missing(None));
            }
            if found == Found::Nothing {
                if let Some(claim) = self.claim(hash)? {
                    // Another thread or process may have built the value since.
                    let is_there = self.find(key, hash, value)? == Found::Hit;
                    return Ok(if is_there { Sought::Hit } else { Sought::Missing(Some(claim)) });
                }
            }
            if begin.elapsed() >= self.patience {
                return Ok(Sought::Missing(None));
            }
            self.counts.add(Counter::Waited, u64::from(waits == 0));
            waits += 1;
            backoff.wait();
        }
    }

    fn find(&self, key: &[u8], hash: u64, value: &mut Vec<u8>) -> Result<Found, Error> {
        self.shared.joined()?;
        let mut found = Found::Nothing;
        for slot in self.places.set_of(hash) {
            let state = self.state(slot);
            if self.hash_of(slot).load(Ordering::SeqCst) != hash {
                continue;
            }
            match state.phase() {
                SlotPhase::Empty => {}
                SlotPhase::Claimed(writer) | SlotPhase::Building(writer) => {
                    if self.lives(writer)? {
                        found = Found::Busy;
                    }
                }
                SlotPhase::Kept(len) if self.copy_out(slot, state, len.into(), key, value)? => {
                    return Ok(Found::Hit);
                }
                // The entry may have been overwritten during the copy.
                SlotPhase::Kept(_) => {
                    self.counts.add(Counter::Lost, u64::from(self.state(slot) == state));
                }
            }
        }
        Ok(found)
    }

    fn copy_out(
        &self,
        slot: u64,
        state: SlotState,
        len: u64,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool, Error> {
        let most = self.places.entry().get();
        let value_len = len.checked_sub(HEAD + key.len() as u64).filter(|_| len <= most);
        let Some(value_len) = value_len else { return Ok(false) };
        let body_len = (len - HEAD) as usize;
        let has_room = value.try_reserve(body_len.saturating_sub(value.len())).is_ok();
        // A pin would give lost granules new memory.
        if !has_room || self.is_lost(slot, len) {
            return Ok(false);
        }
        let range = self.places.range(slot, len);
        let pin = self.shared.pin(range.clone())?;
        if !pin.lost().is_empty() || self.state(slot) != state {
            return Ok(false);
        }
        let mut checksum = [0; HEAD as usize];
        pin.read(Bytes::ZERO, &mut checksum)?;
        value.resize(body_len, 0);
        pin.read(Bytes::new(HEAD), value)?;
        fence(Ordering::SeqCst);
        let is_whole = self.state(slot) == state
            && u64::from_ne_bytes(checksum) == self.checksum(state, key.len(), value)
            && value.ends_with(key);
        value.truncate(value_len as usize);
        if is_whole && !self.mark_of(slot).is_marked() {
            // The mark may have failed, or ended while nobody used the file.
            let _ = self.shared.mark(range, self.priority, Order::Fifo);
        }
        Ok(is_whole)
    }

    fn lives(&self, writer: Writer) -> Result<bool, Error> {
        let (ledger, holder) = (self.shared.ledger(), u32::from(writer.holder));
        let own = self.shared.joined()?;
        if holder >= ledger.holders() || Writer::new(own.holder, own.since) == writer {
            return Ok(holder == own.holder);
        }
        let since = ledger.field(Field::Joined(holder)).load(Ordering::SeqCst);
        Ok(Writer::new(holder, since) == writer && ledger.is_alive(holder)?)
    }

    /// Is never 0, the hash of slots never used.
    fn hash(&self, key: &[u8]) -> u64 {
        hash(self.seed, key).max(1)
    }

    fn checksum(&self, state: SlotState, key_len: usize, body: &[u8]) -> u64 {
        hash(self.seed ^ state.turn() << 32 ^ key_len as u64, body)
    }

    fn is_lost(&self, slot: u64, len: u64) -> bool {
        let range = self.places.range(slot, len.min(self.places.entry().get()));
        let [start, end] =
            [range.start, range.end].map(|at| at.get() / self.shared.granule().get());
        let word = |index| Word(self.shared.ledger().word(index).load(Ordering::SeqCst));
        (start..end).any(|index| word(index).is_lost())
    }

    fn mark_of(&self, slot: u64) -> Word {
        let first = self.places.range(slot, 1).start.get() / self.shared.granule().get();
        Word(self.shared.ledger().word(first).load(Ordering::SeqCst))
    }

    fn state(&self, slot: u64) -> SlotState {
        SlotState(self.word(self.places.state_at(slot)).load(Ordering::SeqCst))
    }

    fn hash_of(&self, slot: u64) -> &MappedWord {
        self.word(self.places.hash_at(slot))
    }

    fn word(&self, offset: u64) -> &MappedWord {
        Ledger::word_in(self.shared.data(), offset)
    }
}
