//! [`Shrinkable`]: a reserve as a reclaimer sees it: what it could give back to the system.
//!
//! It keeps no reserve alive. What goes, goes by [`Reserve::shrink`], whose locks and cost it has:
//! tenants lose what they have there, blocks and promises lose nothing.

use super::error::Error;
use super::memory::Memory;
use super::resize::{bytes, whole};
use super::shared::Weak;
use super::{Inner, Reserve, GRANULE};
use crate::contig::Source;
use crate::sync::lock;
use crate::sys::claim::Holder;
use crate::sys::page_size;
use crate::units::{Bytes, Pages};

/// A reserve that a reclaimer may shrink, and does not keep alive.
#[derive(Debug)]
pub(crate) struct Shrinkable {
    inner: Weak<Inner>,
    /// What stays.
    least: Bytes,
    is_charged: bool,
}

impl Shrinkable {
    /// What can be given now, in whole units; `None` once the reserve has ended.
    pub(crate) fn spare(&self) -> Option<Bytes> {
        let shared = self.inner.upgrade()?;
        let inner = shared.get().ok()?;
        let spare = || {
            let memory = inner.memory().ok()?;
            let unit = memory.unit().ok()?.bytes().max(GRANULE);
            let unit_pages = unit.pages_down(page_size()).get();
            let free = lock(&inner.positions).units(unit_pages);
            let least = whole(self.least.max(unit), unit).ok()?;
            Some(bytes(free.min(memory.present().get().saturating_sub(least))))
        };
        Some(spare().unwrap_or(Bytes::ZERO))
    }

    /// Gives up to `most`, rounded up to a unit, back to the system; returns how much.
    pub(crate) fn shed(&self, most: Bytes) -> Bytes {
        let Some(shared) = self.inner.upgrade() else { return Bytes::ZERO };
        let Some(spare) = self.spare().filter(|spare| *spare > Bytes::ZERO) else {
            return Bytes::ZERO;
        };
        let Ok(inner) = shared.get() else { return Bytes::ZERO };
        let before = inner.memory().map_or(Pages::ZERO, Memory::present);
        let given = match inner.shrink(most.min(spare)) {
            // First class took some meanwhile.
            Err(Error::NotGiven { free, .. }) if free > Bytes::ZERO => inner.shrink(free.min(most)),
            other => other,
        };
        // Of what failed some may have gone.
        let after = inner.memory().map_or(Pages::ZERO, Memory::present);
        given.map_or_else(|_| bytes(before.get().saturating_sub(after.get())), |given| given.len)
    }

    /// Whether its memory counts in memory cgroups.
    pub(crate) fn is_charged(&self) -> bool {
        self.is_charged
    }

    /// Gives the reserve to a reclaimer; false if another has it, or it has ended.
    pub(crate) fn claim(&self, holder: Holder) -> bool {
        let shared = self.inner.upgrade();
        shared.is_some_and(|shared| shared.get().is_ok_and(|inner| inner.claim.take(holder)))
    }

    /// Takes it back.
    pub(crate) fn release(&self, holder: Holder) {
        if let Some(shared) = self.inner.upgrade() {
            let _ = shared.get().map(|inner| inner.claim.release(holder));
        }
    }
}

impl Reserve {
    /// What a reclaimer keeps of the reserve, `least` of which is to stay.
    ///
    /// # Errors
    /// [`Error::FixedLen`] where it cannot shrink, [`Error::Forked`].
    pub(crate) fn shrinkable(&self, least: Bytes) -> Result<Shrinkable, Error> {
        self.inner.get()?.memory()?.unit()?;
        let is_charged = matches!(self.contig.source(), Source::Thp | Source::Plain);
        Ok(Shrinkable { inner: self.inner.downgrade()?, least, is_charged })
    }
}
