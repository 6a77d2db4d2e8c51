//! `Cache`: values of any length by key, in the idle pages of a reserve.
//!
//! [`Shared`] owns the list of what was put: for each key the library's object number and the
//! length of the value. A value is the run of that object's pages from index 0 on, one page at
//! least, so that there are never more whole values than pages. First class, or other values, may
//! take any page, which nobody tells the list: who finds a page gone takes the entry off it. Where
//! the list is longer than the reserve has pages, half as long again, all entries are looked at:
//! a third of them at least is gone, so it costs each put some looks.
//!
//! A put takes its entry off the list, fills the pages, and lists it again, so that one thread at a
//! time writes an object. A get copies without the lock and looks again: only if the same put is
//! still listed are the bytes one value.
//!
//! Lock: the list's, for a look or a change, and for the walk over all of it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use glebe::page_size;
use glebe::reserve::{self, Namespace, Put};
use glebe::sys::fork::ForkGuard;
use pyo3::exceptions::{PyKeyError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::buffers::{detached, new_bytes, Given, Wanted};
use crate::key::{decode, encode};
use crate::reserve::Reserve;
use crate::{Failure, Result};

/// How often a get tries again where others put the same key meanwhile.
const TRIES: u32 = 8;

/// What a put left.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Entry {
    object: u64,
    len: usize,
    /// Unlike that of every other put.
    put: u64,
}

impl Entry {
    fn pages(&self) -> u64 {
        (self.len.max(1)).div_ceil(page_size().bytes().as_usize()) as u64
    }
}

#[derive(Default)]
struct List {
    entries: HashMap<Box<[u8]>, Entry>,
    puts: u64,
    lost: u64,
}

/// What all caches of one name share.
pub(crate) struct Shared {
    pages: Namespace,
    list: Mutex<List>,
    /// Entries beyond which those that are gone are looked for.
    crowded: usize,
    guard: ForkGuard,
}

impl Shared {
    pub(crate) fn new(reserve: &reserve::Reserve, name: &str) -> Result<Self> {
        let crowded = reserve.len().as_usize() / 2 * 3;
        let pages = reserve.page_cache().namespace(name)?;
        Ok(Self { pages, list: Mutex::default(), crowded, guard: ForkGuard::new() })
    }

    /// # Errors
    /// `Forked`: in a child the lock may be held by a thread that is not there.
    fn lock(&self) -> Result<MutexGuard<'_, List>> {
        if self.guard.is_child() {
            return Err(reserve::Error::Forked.into());
        }
        Ok(self.list.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Drops the pages of an entry from page `first` on.
    fn drop_pages(&self, entry: Entry, first: u64) -> Result<()> {
        for page in first..entry.pages() {
            self.pages.invalidate_page(entry.object, page)?;
        }
        Ok(())
    }

    /// Whether the value is kept.
    fn put(&self, key: Box<[u8]>, value: &[u8]) -> Result<bool> {
        let (old, put) = {
            let mut list = self.lock()?;
            list.puts += 1;
            (list.entries.remove(&key), list.puts)
        };
        let object = old.map_or(put, |old| old.object);
        let entry = Entry { object, len: value.len(), put };
        // One page at least.
        let bytes = if value.is_empty() { &[0] } else { value };
        let is_stored = self.pages.put_run(object, 0, bytes)? == Put::Stored;
        if let Some(old) = old {
            self.drop_pages(old, if is_stored { entry.pages() } else { 0 })?;
        }
        if is_stored {
            let mut list = self.lock()?;
            let other = list.entries.insert(key, entry);
            if list.entries.len() > self.crowded {
                self.forget_lost(&mut list);
            }
            drop(list);
            // Put by another thread meanwhile, as an object of its own.
            other.map_or(Ok(()), |other| self.drop_pages(other, 0))?;
        }
        Ok(is_stored)
    }

    /// Takes off the list whose first page is gone.
    fn forget_lost(&self, list: &mut List) {
        let before = list.entries.len();
        let is_there = |entry: &Entry| self.pages.get_part(entry.object, 0, &mut [0]);
        list.entries.retain(|_, entry| is_there(entry).unwrap_or(false));
        list.lost += (before - list.entries.len()) as u64;
    }

    fn find(&self, key: &[u8]) -> Result<Option<Entry>> {
        Ok(self.lock()?.entries.get(key).copied())
    }

    /// Copies the value of `entry` out, if it is whole and still that of `key`.
    fn copy(&self, key: &[u8], entry: Entry, out: &mut [u8]) -> Result<Got> {
        let is_hit = match out.len() {
            0 => self.pages.get_part(entry.object, 0, &mut [0])?,
            _ => self.pages.get_run(entry.object, 0, out)?,
        };
        let mut list = self.lock()?;
        if list.entries.get(key) != Some(&entry) {
            return Ok(Got::Changed);
        }
        if is_hit {
            return Ok(Got::Whole);
        }
        list.entries.remove(key);
        list.lost += 1;
        drop(list);
        self.drop_pages(entry, 0)?;
        Ok(Got::Lost)
    }

    /// Whether there was an entry.
    fn remove(&self, key: &[u8]) -> Result<bool> {
        let removed = self.lock()?.entries.remove(key);
        removed.map(|entry| self.drop_pages(entry, 0)).transpose().map(|done| done.is_some())
    }
}

/// The bytes of a key that is looked for: those of no key for one of a type that no cache has.
fn wanted(key: &Bound<'_, PyAny>) -> Result<Box<[u8]>> {
    match encode(key) {
        Err(Failure::Python(error)) if error.is_instance_of::<PyTypeError>(key.py()) => {
            Ok(Box::default())
        }
        encoded => encoded,
    }
}

enum Got {
    Whole,
    Lost,
    /// Another thread put or removed the key meanwhile.
    Changed,
}

/// The mapping without what its keys, values and items are by: the package adds that.
#[pyclass(frozen, subclass, module = "glebe._glebe")]
pub(crate) struct Cache(Arc<Shared>);

impl Cache {
    /// The value of `key`, made by `get` of its entry; none if there is none, or it was lost.
    fn look<T>(
        &self,
        key: &[u8],
        mut get: impl FnMut(Entry) -> Result<(Got, T)>,
    ) -> Result<Option<T>> {
        for _ in 0..TRIES {
            let Some(entry) = self.0.find(key)? else { break };
            match get(entry)? {
                (Got::Whole, value) => return Ok(Some(value)),
                (Got::Lost, _) => break,
                (Got::Changed, _) => {}
            }
        }
        Ok(None)
    }
}

#[pymethods]
impl Cache {
    #[new]
    fn new(reserve: &Bound<'_, Reserve>, name: &str) -> Result<Self> {
        Ok(Self(reserve.get().shared(name)?))
    }

    fn put(&self, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> Result<bool> {
        let (encoded, value) = (encode(key)?, Given::new(value)?);
        let bytes = value.bytes();
        detached(key.py(), bytes.len(), || self.0.put(encoded, bytes))
    }

    fn __setitem__(&self, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> Result<()> {
        self.put(key, value).map(drop)
    }

    fn __getitem__<'py>(&self, key: &Bound<'py, PyAny>) -> Result<Bound<'py, PyBytes>> {
        let encoded = wanted(key)?;
        let found = self.look(&encoded, |entry| {
            let mut got = Got::Lost;
            let bytes = new_bytes(key.py(), entry.len, |out| {
                got = self.0.copy(&encoded, entry, out)?;
                Ok(matches!(got, Got::Whole))
            })?;
            Ok((got, bytes))
        })?;
        found.flatten().ok_or_else(|| PyKeyError::new_err(key.clone().unbind()).into())
    }

    /// Bytes written to `out`, none for a miss.
    fn get_into(&self, key: &Bound<'_, PyAny>, out: &Bound<'_, PyAny>) -> Result<Option<usize>> {
        let (encoded, mut out) = (wanted(key)?, Wanted::new(out)?);
        let room = out.bytes();
        self.look(&encoded, |entry| {
            let Some(part) = room.get_mut(..entry.len) else {
                let (len, room) = (entry.len, room.len());
                let text = format!("the value has {len} bytes, the buffer has room for {room}");
                return Err(Failure::argument(text));
            };
            let got = detached(key.py(), entry.len, || self.0.copy(&encoded, entry, part))?;
            Ok((got, entry.len))
        })
    }

    fn __delitem__(&self, key: &Bound<'_, PyAny>) -> Result<()> {
        if self.0.remove(&wanted(key)?)? {
            return Ok(());
        }
        Err(PyKeyError::new_err(key.clone().unbind()).into())
    }

    fn __contains__(&self, key: &Bound<'_, PyAny>) -> Result<bool> {
        Ok(self.0.find(&wanted(key)?)?.is_some())
    }

    fn __len__(&self) -> Result<usize> {
        Ok(self.0.lock()?.entries.len())
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyAny>> {
        let keys: Vec<Box<[u8]>> = self.0.lock()?.entries.keys().cloned().collect();
        let keys: Result<Vec<_>> = keys.iter().map(|key| decode(py, key)).collect();
        Ok(keys?.into_pyobject(py)?.try_iter()?.into_any())
    }

    fn clear(&self, py: Python<'_>) -> Result<()> {
        let entries = std::mem::take(&mut self.0.lock()?.entries);
        py.detach(|| entries.into_values().try_for_each(|entry| self.0.drop_pages(entry, 0)))
    }

    #[getter]
    fn lost(&self) -> Result<u64> {
        Ok(self.0.lock()?.lost)
    }
}
