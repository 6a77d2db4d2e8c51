//! Copies bytes into and out of a [`Region`].
//!
//! Copies share the region's lock, which excludes marks, unmarks and drops. The kernel may still
//! free a marked page; [`Region::try_read`] then reports the loss.

use super::engine::Backend;
use super::state::RegionState;
use super::stats::Counter;
use super::{Error, Region};
use glebe_os::extent::Extent;
use glebe_os::internal::sync::{read, RwLockReadGuard};
use glebe_os::internal::sys::memory::peek;
use glebe_os::internal::sys::processes::atfork;
use glebe_os::units::{Bytes, Pages};

impl Region {
    /// Copies bytes out of marked or unmarked memory, without changing marks.
    ///
    /// # Errors
    /// [`Error::Beyond`]; [`Error::Purged`] if a page is or may be lost, with unspecified contents
    /// of `buf`; [`Error::Os`].
    pub fn try_read(&self, offset: Bytes, buf: &mut [u8]) -> Result<(), Error> {
        let Some(pages) = self.touched(offset, buf.len())? else { return Ok(()) };
        let state = self.shared();
        let marked = self.marked.first_in(pages);
        if marked.is_none() {
            self.mapping.read(offset, buf);
            return Ok(());
        }
        // An unarmed child's lost page may read as zeros, so a marked page counts as lost.
        let told = state.as_deref().filter(|state| !state.is_unarmed).map(|state| &state.backend);
        let lost = match told {
            None => marked,
            Some(Backend::Scan(_)) => {
                let copied = peek::peek(self.addr() + offset.as_usize(), buf)?;
                let stopped = offset + Bytes::new(copied as u64);
                (copied < buf.len()).then(|| stopped.pages_down(self.page).get())
            }
            Some(Backend::Tag(tag)) => tag.try_read(offset, buf)?,
        };
        let Some(page) = lost else { return Ok(()) };
        self.counts.add(Counter::ReadsLost, 1);
        Err(Error::Purged { offset: Pages::new(page).bytes(self.page) })
    }

    /// Copies bytes out of unmarked memory.
    ///
    /// # Errors
    /// [`Error::Beyond`], [`Error::Marked`].
    pub fn read(&self, offset: Bytes, buf: &mut [u8]) -> Result<(), Error> {
        let Some(pages) = self.touched(offset, buf.len())? else { return Ok(()) };
        let _state = self.shared();
        self.refuse_marked(pages)?;
        self.mapping.read(offset, buf);
        Ok(())
    }

    /// Copies bytes into unmarked memory.
    ///
    /// # Errors
    /// [`Error::Beyond`], [`Error::Marked`]: nothing is written.
    pub fn write(&self, offset: Bytes, bytes: &[u8]) -> Result<(), Error> {
        let Some(pages) = self.touched(offset, bytes.len())? else { return Ok(()) };
        let _state = self.shared();
        self.refuse_marked(pages)?;
        self.mapping.write(offset, bytes);
        Ok(())
    }

    pub(super) fn shared(&self) -> Option<RwLockReadGuard<'_, RegionState>> {
        (!atfork::is_without_steps()).then(|| read(&self.locked.state))
    }

    fn touched(&self, offset: Bytes, count: usize) -> Result<Option<Extent>, Error> {
        let end = offset.checked_add(Bytes::new(count as u64)).unwrap_or(Bytes::new(u64::MAX));
        if end > self.len() {
            return Err(Error::Beyond { end, limit: self.len() });
        }
        if count == 0 {
            return Ok(None);
        }
        let first = offset.pages_down(self.page).get();
        Ok(Extent::new(first, end.pages_up(self.page).get() - first))
    }

    fn refuse_marked(&self, pages: Extent) -> Result<(), Error> {
        match self.marked.first_in(pages) {
            None => Ok(()),
            Some(page) => Err(Error::Marked { offset: Pages::new(page).bytes(self.page) }),
        }
    }
}
