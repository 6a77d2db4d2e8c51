//! [`Shared`]: the entries of all caches of one name, with the places of their bytes.
//!
//! A long value is a run of pages from index 0 of an object of the library's page cache. A value of
//! up to half a page is an object of the pool that all caches of a reserve share
//! ([`small`](super::small)), so that many values share a page. The reserve's blocks or other
//! values may take any page silently, so a call that misses a page removes the entry. From time to
//! time a put also removes all entries whose pool object or first page is lost.
//!
//! A put takes the old entry off the list before it copies bytes, so no other put writes to the
//! same object. A get copies without the lock, and then checks that the list still has the entry of
//! the same put.
//!
//! The end of the reserve takes the list and the memory from all caches. A call under way keeps the
//! memory until it returns.
//!
//! Lock: the list's, during a look, a change, or a walk over all entries.

use std::collections::HashMap;
use std::mem;
use std::sync::{Arc, Mutex, PoisonError};

use glebe::internal::sys::processes::fork::ForkGuard;
use glebe::page_size;
use glebe::reserve::{self, Namespace, Put, Reserve};
use glebe::zpool::Handle;

use super::small::Small;
use crate::{Failure, Result};

/// A put of more than 1/512 of the reserve's pages first counts idle pages. Smaller puts do not,
/// because the count looks at each granule of the reserve.
const PAGES_PER_LOOK: u64 = 512;

#[derive(Clone, Copy)]
enum Place {
    /// The pages of the object with this number.
    Pages(u64),
    Small(Handle),
}

/// The result of a put.
#[derive(Clone)]
pub(super) struct Entry {
    place: Place,
    pub(super) len: usize,
    /// Unique number of the put.
    put: u64,
    /// The form that rebuilds an array.
    pub(super) form: Option<Arc<[u8]>>,
}

impl Entry {
    fn pages(&self) -> u64 {
        self.len.div_ceil(page_bytes()) as u64
    }
}

fn page_bytes() -> usize {
    page_size().bytes().as_usize()
}

/// The memory of a cache.
struct Parts {
    reserve: Reserve,
    pages: Namespace,
    small: Arc<Small>,
}

/// An entry, and the memory that has its bytes.
pub(super) struct Found {
    pub(super) entry: Entry,
    parts: Arc<Parts>,
}

struct List {
    parts: Arc<Parts>,
    entries: HashMap<Box<[u8]>, Entry>,
    puts: u64,
    lost: u64,
    /// The number of entries above which a put removes lost ones.
    crowded: usize,
    /// The last array's form, which many arrays share.
    form: Option<Arc<[u8]>>,
}

impl List {
    fn new(parts: Parts) -> Self {
        let (parts, entries) = (Arc::new(parts), HashMap::new());
        Self { parts, entries, puts: 0, lost: 0, crowded: 0, form: None }
    }

    /// Returns `form`, which describes how to rebuild an array. Shares the last array's form if
    /// `form` is equal.
    fn form(&mut self, form: &[u8]) -> Arc<[u8]> {
        match &self.form {
            Some(last) if **last == *form => Arc::clone(last),
            _ => Arc::clone(self.form.insert(form.into())),
        }
    }

    /// Returns the key's other entry, if there is one. From time to time removes lost entries.
    fn insert(&mut self, key: Box<[u8]>, entry: Entry) -> Option<Entry> {
        let other = self.entries.insert(key, entry);
        let least = self.parts.reserve.len().as_usize() / 2 * 3;
        if self.entries.len() > self.crowded.max(least) {
            self.forget_lost();
            self.crowded = self.entries.len() / 2 * 3;
        }
        other
    }

    fn forget_lost(&mut self) {
        let (before, parts) = (self.entries.len(), &self.parts);
        self.entries.retain(|_, entry| match entry.place {
            Place::Pages(object) => parts.pages.has_run(object, 0, 1).unwrap_or(false),
            Place::Small(handle) => parts.small.has(handle).unwrap_or(false),
        });
        self.lost += (before - self.entries.len()) as u64;
    }
}

pub(super) enum Got {
    Whole,
    Lost,
    /// Another thread put or removed the key meanwhile.
    Changed,
}

impl Parts {
    fn drop_pages(&self, object: u64, first: u64, end: u64) -> Result<()> {
        for page in first..end {
            self.pages.invalidate_page(object, page)?;
        }
        Ok(())
    }

    fn drop_bytes(&self, entry: &Entry) -> Result<()> {
        match entry.place {
            Place::Pages(object) => self.drop_pages(object, 0, entry.pages()),
            Place::Small(handle) => self.small.remove(handle),
        }
    }

    /// Stores `value`, over the pages of `old` if both values are long. Frees the rest of `old`.
    /// Returns `None` if the value is not kept.
    fn store(&self, value: &[u8], put: u64, old: Option<Entry>) -> Result<Option<Place>> {
        let number = match &old {
            Some(Entry { place: Place::Pages(number), .. }) => *number,
            _ => put,
        };
        let is_small = value.len() <= page_bytes() / 2;
        let place = if is_small {
            self.small.insert(&self.reserve, value)?.map(Place::Small)
        } else {
            self.store_run(number, value)?.then_some(Place::Pages(number))
        };
        let Some(old) = old else { return Ok(place) };
        match (place, old.place) {
            (Some(Place::Pages(_)), Place::Pages(object)) => {
                let written = value.len().div_ceil(page_bytes()) as u64;
                self.drop_pages(object, written, old.pages())?;
            }
            _ => self.drop_bytes(&old)?,
        }
        Ok(place)
    }

    /// Keeps all pages or none. Refuses a value longer than all memory outside of the reserve's
    /// blocks, because a try would evict all other values in vain.
    fn store_run(&self, object: u64, value: &[u8]) -> Result<bool> {
        let pages = value.len().div_ceil(page_bytes()) as u64;
        Ok(self.has_room(pages) && self.pages.put_run(object, 0, value)? == Put::Stored)
    }

    /// Returns true if there may be room. Reads statistics only for a long value, because its copy
    /// costs more than the statistics.
    fn has_room(&self, pages: u64) -> bool {
        if pages <= self.reserve.len().get() / PAGES_PER_LOOK {
            return true;
        }
        let stats = self.reserve.stats();
        pages <= (stats.free + stats.live).get()
    }
}

/// The state of all caches of one name.
pub(crate) struct Shared {
    /// `None` after the end of the reserve.
    list: Mutex<Option<List>>,
    guard: ForkGuard,
}

impl Shared {
    pub(crate) fn new(reserve: &Reserve, small: &Arc<Small>, name: &str) -> Result<Self> {
        let pages = reserve.page_cache().namespace(name)?;
        let (reserve, small) = (reserve.clone(), Arc::clone(small));
        let list = List::new(Parts { reserve, pages, small });
        Ok(Self { list: Mutex::new(Some(list)), guard: ForkGuard::new() })
    }

    /// Calls `work` with the list locked.
    ///
    /// # Errors
    /// `Forked` in a child: a thread of the parent may have held the lock at the fork. `ValueError`
    /// after [`Self::end`].
    fn with<R>(&self, work: impl FnOnce(&mut List) -> R) -> Result<R> {
        if self.guard.is_child() {
            return Err(reserve::ReserveError::Forked.into());
        }
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        list.as_mut().map(work).ok_or_else(|| Failure::ended("reserve"))
    }

    /// Ends all caches of this name. Does nothing in a child, whose calls are refused anyway.
    pub(crate) fn end(&self) {
        if self.guard.is_child() {
            return;
        }
        let ended = self.list.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(ended);
    }

    /// Returns true if the value is kept; otherwise the key has no value.
    pub(super) fn put(&self, key: Box<[u8]>, value: &[u8], form: Option<&[u8]>) -> Result<bool> {
        let (parts, old, put, form) = self.with(|list| {
            list.puts += 1;
            let form = form.map(|form| list.form(form));
            (Arc::clone(&list.parts), list.entries.remove(&key), list.puts, form)
        })?;
        let Some(place) = parts.store(value, put, old)? else { return Ok(false) };
        let entry = Entry { place, len: value.len(), put, form };
        let other = self.with(|list| list.insert(key, entry))?;
        // If another thread put this key meanwhile, its bytes are dropped.
        other.map_or(Ok(()), |other| parts.drop_bytes(&other))?;
        Ok(true)
    }

    pub(super) fn find(&self, key: &[u8]) -> Result<Option<Found>> {
        self.with(|list| {
            let entry = list.entries.get(key)?.clone();
            Some(Found { entry, parts: Arc::clone(&list.parts) })
        })
    }

    /// Copies the value out. `Whole` means that no page is lost and `key` still has this entry.
    pub(super) fn copy(&self, key: &[u8], found: &Found, out: &mut [u8]) -> Result<Got> {
        let is_hit = match found.entry.place {
            Place::Pages(object) => found.parts.pages.get_run(object, 0, out)?,
            Place::Small(handle) => found.parts.small.read(handle, out)?,
        };
        self.settle(key, found, is_hit)
    }

    pub(super) fn look_at(&self, key: &[u8], found: &Found) -> Result<Got> {
        let is_hit = match found.entry.place {
            Place::Pages(object) => found.parts.pages.has_run(object, 0, found.entry.pages())?,
            Place::Small(handle) => found.parts.small.has(handle)?,
        };
        self.settle(key, found, is_hit)
    }

    /// Returns the result of a read, and removes a lost entry.
    fn settle(&self, key: &[u8], found: &Found, is_hit: bool) -> Result<Got> {
        let got = self.with(|list| {
            if list.entries.get(key).is_none_or(|listed| listed.put != found.entry.put) {
                return Got::Changed;
            }
            if is_hit {
                return Got::Whole;
            }
            list.entries.remove(key);
            list.lost += 1;
            Got::Lost
        })?;
        if let Got::Lost = got {
            found.parts.drop_bytes(&found.entry)?;
        }
        Ok(got)
    }

    pub(super) fn remove(&self, key: &[u8]) -> Result<bool> {
        let removed = self.with(|list| (list.entries.remove(key), Arc::clone(&list.parts)))?;
        let (Some(entry), parts) = removed else { return Ok(false) };
        parts.drop_bytes(&entry)?;
        Ok(true)
    }

    pub(super) fn clear(&self) -> Result<()> {
        let take = |list: &mut List| (mem::take(&mut list.entries), Arc::clone(&list.parts));
        let (entries, parts) = self.with(take)?;
        entries.into_values().try_for_each(|entry| parts.drop_bytes(&entry))
    }

    pub(super) fn keys(&self) -> Result<Vec<Box<[u8]>>> {
        self.with(|list| list.entries.keys().cloned().collect())
    }

    pub(super) fn len(&self) -> Result<usize> {
        self.with(|list| list.entries.len())
    }

    pub(super) fn lost(&self) -> Result<u64> {
        self.with(|list| list.lost)
    }
}
