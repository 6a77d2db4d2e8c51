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
//! Lock: the list's, during a look, a change, or a walk over all entries.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use glebe::internal::sys::processes::fork::ForkGuard;
use glebe::page_size;
use glebe::reserve::{self, Namespace, Put, Reserve};
use glebe::zpool::Handle;

use super::small::Small;
use crate::Result;

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

#[derive(Default)]
struct List {
    entries: HashMap<Box<[u8]>, Entry>,
    puts: u64,
    lost: u64,
    /// The number of entries above which a put removes lost ones.
    crowded: usize,
    /// The last array's form, which many arrays share.
    form: Option<Arc<[u8]>>,
}

impl List {
    /// Returns `form`, which describes how to rebuild an array. Shares the last array's form if
    /// `form` is equal.
    fn form(&mut self, form: &[u8]) -> Arc<[u8]> {
        match &self.form {
            Some(last) if **last == *form => Arc::clone(last),
            _ => Arc::clone(self.form.insert(form.into())),
        }
    }
}

pub(super) enum Got {
    Whole,
    Lost,
    /// Another thread put or removed the key meanwhile.
    Changed,
}

/// The state of all caches of one name.
pub(crate) struct Shared {
    reserve: Reserve,
    pages: Namespace,
    small: Arc<Small>,
    list: Mutex<List>,
    guard: ForkGuard,
}

impl Shared {
    pub(crate) fn new(reserve: &Reserve, small: &Arc<Small>, name: &str) -> Result<Self> {
        let pages = reserve.page_cache().namespace(name)?;
        let (reserve, small) = (reserve.clone(), Arc::clone(small));
        Ok(Self { reserve, pages, small, list: Mutex::default(), guard: ForkGuard::new() })
    }

    /// # Errors
    /// `Forked` in a child: a thread of the parent may have held the lock at the fork.
    fn lock(&self) -> Result<MutexGuard<'_, List>> {
        if self.guard.is_child() {
            return Err(reserve::ReserveError::Forked.into());
        }
        Ok(self.list.lock().unwrap_or_else(PoisonError::into_inner))
    }

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

    /// Returns true if the value is kept; otherwise the key has no value.
    pub(super) fn put(&self, key: Box<[u8]>, value: &[u8], form: Option<&[u8]>) -> Result<bool> {
        let (old, put, form) = {
            let mut list = self.lock()?;
            list.puts += 1;
            let form = form.map(|form| list.form(form));
            (list.entries.remove(&key), list.puts, form)
        };
        let Some(place) = self.store(value, put, old)? else { return Ok(false) };
        let entry = Entry { place, len: value.len(), put, form };
        let mut list = self.lock()?;
        let other = list.entries.insert(key, entry);
        let least = self.reserve.len().as_usize() / 2 * 3;
        if list.entries.len() > list.crowded.max(least) {
            self.forget_lost(&mut list);
            list.crowded = list.entries.len() / 2 * 3;
        }
        drop(list);
        // If another thread put this key meanwhile, its bytes are dropped.
        other.map_or(Ok(()), |other| self.drop_bytes(&other))?;
        Ok(true)
    }

    fn forget_lost(&self, list: &mut List) {
        let before = list.entries.len();
        let is_there = |entry: &Entry| match entry.place {
            Place::Pages(object) => self.pages.has_run(object, 0, 1).unwrap_or(false),
            Place::Small(handle) => self.small.has(handle).unwrap_or(false),
        };
        list.entries.retain(|_, entry| is_there(entry));
        list.lost += (before - list.entries.len()) as u64;
    }

    pub(super) fn find(&self, key: &[u8]) -> Result<Option<Entry>> {
        Ok(self.lock()?.entries.get(key).cloned())
    }

    /// Copies the value out. `Whole` means that no page is lost and `key` still has this entry.
    pub(super) fn copy(&self, key: &[u8], entry: &Entry, out: &mut [u8]) -> Result<Got> {
        let is_hit = match entry.place {
            Place::Pages(object) => self.pages.get_run(object, 0, out)?,
            Place::Small(handle) => self.small.read(handle, out)?,
        };
        self.settle(key, entry, is_hit)
    }

    pub(super) fn look_at(&self, key: &[u8], entry: &Entry) -> Result<Got> {
        let is_hit = match entry.place {
            Place::Pages(object) => self.pages.has_run(object, 0, entry.pages())?,
            Place::Small(handle) => self.small.has(handle)?,
        };
        self.settle(key, entry, is_hit)
    }

    /// Returns the result of a read, and removes a lost entry.
    fn settle(&self, key: &[u8], entry: &Entry, is_hit: bool) -> Result<Got> {
        let mut list = self.lock()?;
        if list.entries.get(key).is_none_or(|listed| listed.put != entry.put) {
            return Ok(Got::Changed);
        }
        if is_hit {
            return Ok(Got::Whole);
        }
        list.entries.remove(key);
        list.lost += 1;
        drop(list);
        self.drop_bytes(entry)?;
        Ok(Got::Lost)
    }

    pub(super) fn remove(&self, key: &[u8]) -> Result<bool> {
        let removed = self.lock()?.entries.remove(key);
        removed.map(|entry| self.drop_bytes(&entry)).transpose().map(|done| done.is_some())
    }

    pub(super) fn clear(&self) -> Result<()> {
        let entries = std::mem::take(&mut self.lock()?.entries);
        entries.into_values().try_for_each(|entry| self.drop_bytes(&entry))
    }

    pub(super) fn keys(&self) -> Result<Vec<Box<[u8]>>> {
        Ok(self.lock()?.entries.keys().cloned().collect())
    }

    pub(super) fn len(&self) -> Result<usize> {
        Ok(self.lock()?.entries.len())
    }

    pub(super) fn lost(&self) -> Result<u64> {
        Ok(self.lock()?.lost)
    }
}
