//! [`Idle`] keeps copies of a [file's](super::file) records in a swap cache, where they may vanish.
//!
//! A record consists of *pieces* of up to a page. A read that misses a piece drops the others. Only
//! the owner of a record accesses the record's handles, so accesses are relaxed. Cost: 8 bytes per
//! unit (512 bytes) of the file ever used. Locks: the pool's.

use super::file::{units, UNIT};
use super::kept::Kept;
use crate::zpool::Handle;
use glebe_os::error::OsError;
use glebe_os::internal::sync::{MappedWord, Ordering};
use glebe_os::internal::sys::page_size;
use glebe_os::internal::sys::processes::fork::ForkGuard;
use glebe_os::internal::words::Words;
use glebe_os::units::Bytes;

#[derive(Debug)]
pub(super) struct Idle {
    kept: Kept,
    /// Per unit of the file: handle of the piece that starts there, or 0.
    handles: Words,
    used: MappedWord,
    page: usize,
    guard: ForkGuard,
}

impl Idle {
    pub(super) fn new(kept: Kept, units: u64) -> Result<Self, OsError> {
        Ok(Self {
            kept,
            handles: Words::new(units as usize)?,
            used: MappedWord::new(0),
            page: page_size().bytes().as_usize(),
            guard: ForkGuard::new(),
        })
    }

    fn words(&self, start: u64, len: usize) -> impl Iterator<Item = &MappedWord> {
        let (start, step) = (start as usize, self.page / UNIT);
        self.handles[start..start + units(len) as usize].iter().step_by(step)
    }

    fn populate(&self, end: u64) -> Result<(), OsError> {
        let used = self.used.load(Ordering::Acquire);
        if end > used {
            let a_page = (self.page / size_of::<MappedWord>()) as u64;
            for page in used / a_page..end.div_ceil(a_page) {
                self.handles.populate(page as usize, Bytes::new(self.page as u64))?;
            }
            self.used.fetch_max(end, Ordering::Release);
        }
        Ok(())
    }

    pub(super) fn insert(&self, start: u64, bytes: &[u8]) {
        if self.populate(start + units(bytes.len())).is_err() {
            return;
        }
        for (word, piece) in self.words(start, bytes.len()).zip(bytes.chunks(self.page)) {
            let Some(handle) = self.kept.insert(piece) else {
                return self.remove(start, bytes.len());
            };
            let old = word.swap(handle.to_raw(), Ordering::Relaxed);
            self.remove_raw(old);
        }
    }

    pub(super) fn read(&self, start: u64, out: &mut [u8]) -> bool {
        let len = out.len();
        let mut pieces = self.words(start, len).zip(out.chunks_mut(self.page));
        let is_there = pieces.all(|(word, piece)| {
            let handle = Handle::from_raw(word.load(Ordering::Relaxed));
            handle.and_then(|handle| self.kept.read_to(handle, piece)) == Some(piece.len())
        });
        if !is_there {
            self.remove(start, len);
        }
        is_there
    }

    pub(super) fn remove(&self, start: u64, len: usize) {
        for word in self.words(start, len) {
            // A load of an unpopulated word needs no memory; a swap would.
            if word.load(Ordering::Relaxed) != 0 {
                self.remove_raw(word.swap(0, Ordering::Relaxed));
            }
        }
    }

    #[cfg(test)]
    pub(super) fn handles_of(&self, start: u64, len: usize) -> Vec<Handle> {
        let handles = self.words(start, len).map(|word| word.load(Ordering::Relaxed));
        handles.filter_map(Handle::from_raw).collect()
    }

    fn remove_raw(&self, handle: u64) {
        Handle::from_raw(handle).into_iter().for_each(|handle| self.kept.remove(handle));
    }
}

impl Drop for Idle {
    fn drop(&mut self) {
        if !self.guard.is_child() {
            let used = self.used.load(Ordering::Relaxed) as usize;
            let handles = self.handles[..used].iter().map(|word| word.load(Ordering::Relaxed));
            handles.for_each(|handle| self.remove_raw(handle));
        }
    }
}
