//! [`Shrinkable`] lets a reclaimer take memory of a reserve, and does not keep the reserve alive.

use super::error::ReserveError;
use super::memory::Memory;
use super::resize::{bytes, whole};
use super::shared::Weak;
use super::{Reserve, ReserveCore, GRANULE};
use crate::contig::Source;
use glebe_os::internal::sync::lock;
use glebe_os::internal::sys::page_size;
use glebe_os::internal::sys::processes::claim::Holder;
use glebe_os::units::{Bytes, Pages};

#[derive(Debug)]
pub(crate) struct Shrinkable {
    inner: Weak<ReserveCore>,
    least: Bytes,
    is_charged: bool,
}

impl Shrinkable {
    pub(crate) fn spare(&self) -> Option<Bytes> {
        let shared = self.inner.upgrade()?;
        let inner = shared.get().ok()?;
        let spare = || {
            let memory = inner.memory().ok().filter(|memory| !memory.is_kept())?;
            let unit = memory.unit().ok()?.bytes().max(GRANULE);
            let unit_pages = unit.pages_down(page_size()).get();
            let free = lock(&inner.positions).units(unit_pages);
            let least = whole(self.least.max(unit), unit).ok()?;
            Some(bytes(free.min(memory.present().get().saturating_sub(least))))
        };
        Some(spare().unwrap_or(Bytes::ZERO))
    }

    /// Rounds `most` up to a unit.
    pub(crate) fn shed(&self, most: Bytes) -> Bytes {
        let Some(shared) = self.inner.upgrade() else { return Bytes::ZERO };
        let Some(spare) = self.spare().filter(|spare| *spare > Bytes::ZERO) else {
            return Bytes::ZERO;
        };
        let Ok(inner) = shared.get() else { return Bytes::ZERO };
        let before = inner.memory().map_or(Pages::ZERO, Memory::present);
        let given = match inner.shrink(most.min(spare)) {
            Err(ReserveError::NotGiven { free, .. }) if free > Bytes::ZERO => {
                inner.shrink(free.min(most))
            }
            other => other,
        };
        // A failed call may have given back a part.
        let after = inner.memory().map_or(Pages::ZERO, Memory::present);
        given.map_or_else(|_| bytes(before.get().saturating_sub(after.get())), |given| given.len)
    }

    pub(crate) fn is_charged(&self) -> bool {
        self.is_charged
    }

    pub(crate) fn claim(&self, holder: Holder) -> bool {
        let shared = self.inner.upgrade();
        shared.is_some_and(|shared| shared.get().is_ok_and(|inner| inner.claim.take(holder)))
    }

    pub(crate) fn release(&self, holder: Holder) {
        if let Some(shared) = self.inner.upgrade() {
            let _ = shared.get().map(|inner| inner.claim.release(holder));
        }
    }
}

impl Reserve {
    pub(crate) fn shrinkable(&self, least: Bytes) -> Result<Shrinkable, ReserveError> {
        self.inner.get()?.memory()?.unit()?;
        let is_charged = matches!(self.contig.source(), Source::Thp | Source::Plain);
        Ok(Shrinkable { inner: self.inner.downgrade()?, least, is_charged })
    }
}
