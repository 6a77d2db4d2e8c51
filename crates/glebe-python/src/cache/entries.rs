//! What all caches of one name share: the list of what was put, and where its bytes are.
//!
//! The list has for each key the place and the length of the value. A long value is the run of the
//! pages of one object of the library's page cache, from index 0 on. A value of up to half a page
//! is an object of the pool that all caches of a reserve share ([`small`](super::small)), so that
//! many of them have one page. First class, or other values, may take any page, which nobody tells
//! the list: the call that finds a page gone takes the entry off it. Where the list is half as long
//! again as at the last such walk, or as the reserve has pages, all entries are looked at.
//!
//! A put takes its entry off the list, copies the bytes in, and lists it again, so that one thread
//! at a time writes an object. A get copies without the lock and looks again: only if the same put
//! is still listed are the bytes one value.
//!
//! Lock: the list's, for a look or a change, and for the walk over all of it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use glebe::page_size;
use glebe::reserve::{self, Namespace, Put, Reserve};
use glebe::sys::fork::ForkGuard;
use glebe::zpool::Handle;

use super::small::Small;
use crate::Result;

/// A put of one page or more for each such number of the reserve's pages asks first how many are
/// idle. The answer takes a look at each granule of the reserve.
const PAGES_PER_LOOK: u64 = 512;

/// Where the bytes of a value are.
#[derive(Clone, Copy)]
enum Place {
    /// The pages of an object of this number.
    Pages(u64),
    Small(Handle),
}

/// What a put left.
#[derive(Clone)]
pub(super) struct Entry {
    place: Place,
    pub(super) len: usize,
    /// Unlike that of every other put.
    put: u64,
    /// How an array is made of the bytes.
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
    /// Entries beyond which those that are gone are looked for.
    crowded: usize,
    /// That of the last array: of many arrays there are few forms.
    form: Option<Arc<[u8]>>,
}

impl List {
    /// The form, as one of an earlier put if that had the same.
    fn form(&mut self, form: &[u8]) -> Arc<[u8]> {
        match &self.form {
            Some(last) if **last == *form => Arc::clone(last),
            _ => Arc::clone(self.form.insert(form.into())),
        }
    }
}

/// What a get found.
pub(super) enum Got {
    Whole,
    Lost,
    /// Another thread put or removed the key meanwhile.
    Changed,
}

/// What all caches of one name share.
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
    /// `Forked`: in a child the lock may be held by a thread that is not there.
    fn lock(&self) -> Result<MutexGuard<'_, List>> {
        if self.guard.is_child() {
            return Err(reserve::Error::Forked.into());
        }
        Ok(self.list.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Drops the pages of an object from page `first` on.
    fn drop_pages(&self, object: u64, first: u64, end: u64) -> Result<()> {
        for page in first..end {
            self.pages.invalidate_page(object, page)?;
        }
        Ok(())
    }

    /// Drops the bytes of an entry that is not on the list.
    fn drop_bytes(&self, entry: &Entry) -> Result<()> {
        match entry.place {
            Place::Pages(object) => self.drop_pages(object, 0, entry.pages()),
            Place::Small(handle) => self.small.remove(handle),
        }
    }

    /// Copies a value in, in place of the pages of `old`; none if it is not kept. No bytes of `old`
    /// are left.
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

    /// Copies a value to pages; all of them are kept, or none. A value that is longer than what no
    /// block holds is not tried: it would take the place of all others before it is refused.
    fn store_run(&self, object: u64, value: &[u8]) -> Result<bool> {
        let pages = value.len().div_ceil(page_bytes()) as u64;
        Ok(self.has_room(pages) && self.pages.put_run(object, 0, value)? == Put::Stored)
    }

    /// Returns whether there may be room for a value of `pages`. It looks only where that takes
    /// little beside the copies.
    fn has_room(&self, pages: u64) -> bool {
        if pages <= self.reserve.len().get() / PAGES_PER_LOOK {
            return true;
        }
        let stats = self.reserve.stats();
        pages <= (stats.free + stats.live).get()
    }

    /// Stores a value. Returns whether it is kept; if not, the key has nothing.
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
        // Put by another thread meanwhile.
        other.map_or(Ok(()), |other| self.drop_bytes(&other))?;
        Ok(true)
    }

    /// Takes the entries off the list whose first page is gone.
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

    /// Copies the value of `entry` out, if it is whole and still that of `key`.
    pub(super) fn copy(&self, key: &[u8], entry: &Entry, out: &mut [u8]) -> Result<Got> {
        let is_hit = match entry.place {
            Place::Pages(object) => self.pages.get_run(object, 0, out)?,
            Place::Small(handle) => self.small.read(handle, out)?,
        };
        self.settle(key, entry, is_hit)
    }

    /// Returns whether the value of `entry` is whole, and `key` still has it.
    pub(super) fn look_at(&self, key: &[u8], entry: &Entry) -> Result<Got> {
        let is_hit = match entry.place {
            Place::Pages(object) => self.pages.has_run(object, 0, entry.pages())?,
            Place::Small(handle) => self.small.has(handle)?,
        };
        self.settle(key, entry, is_hit)
    }

    /// What was found of `entry`: one that is lost goes off the list.
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

    /// Whether there was an entry.
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

    /// Entries that were found lost.
    pub(super) fn lost(&self) -> Result<u64> {
        Ok(self.lock()?.lost)
    }
}
