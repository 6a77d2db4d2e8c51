//! [`Caps`] limits how much marked memory a region may hold, and for how long. Reclaimers shed
//! marked memory here.
//!
//! Two caps apply: the program's, and the cap of the reclaimer that claimed the region. The
//! reclaimer's cap follows the free memory and applies only in its process: in a forked child
//! nobody would lift it. A mark reads both under the region's lock. Unit: pages, at most
//! [`NO_CAP`]. Cost: O(log n) per dropped range, for n marked ranges.

use std::time::{Duration, Instant};

use super::state::RegionState;
use super::stats::Counter;
use super::{Error, Options, Priority, Region};
use glebe_os::extent::Extent;
use glebe_os::internal::sync::{MappedWord, Ordering};
use glebe_os::internal::sys::page_size;
use glebe_os::internal::sys::processes::claim::{Claim, Holder};
use glebe_os::units::{Bytes, Pages};

const NO_CAP: u64 = u64::MAX;

/// The limits on marked memory.
#[derive(Debug)]
pub(super) struct Caps {
    own: MappedWord,
    /// Applies while this process holds the claim.
    reclaimers: MappedWord,
    claim: Claim,
    max_age: Option<Duration>,
}

impl Caps {
    pub(super) fn new(options: &Options) -> Self {
        let (own, claim) = (MappedWord::new(pages_of(options.cap)), Claim::default());
        Self { own, reclaimers: MappedWord::new(NO_CAP), claim, max_age: options.max_age }
    }

    /// Returns the lower of both caps.
    #[inline]
    fn cap(&self) -> u64 {
        let own = self.own.load(Ordering::Relaxed);
        match self.reclaimers.load(Ordering::Relaxed) {
            NO_CAP => own,
            cap if self.claim.is_held() => own.min(cap),
            _ => own,
        }
    }
}

fn pages_of(cap: Option<Bytes>) -> u64 {
    cap.map_or(NO_CAP, |cap| cap.pages_down(page_size()).get())
}

impl Region {
    /// Changes the cap that the region was [made with](Options::cap), or removes it. Drops marked
    /// memory beyond it, the oldest of the lowest priority first.
    ///
    /// # Errors
    /// [`Error::ZeroCap`], [`Error::Cloned`]: nothing has changed. [`Error::Os`] if memory cannot
    /// be dropped: the cap applies, and the next mark tries again.
    pub fn set_cap(&self, cap: Option<Bytes>) -> Result<(), Error> {
        if cap == Some(Bytes::ZERO) {
            return Err(Error::ZeroCap);
        }
        let mut state = self.alone()?;
        state.marks.start_queue();
        self.caps.own.store(pages_of(cap), Ordering::Relaxed);
        self.keep_caps(&mut state)
    }

    /// Gives the region to a reclaimer; returns false if another has it. Marks record their time
    /// from now on.
    #[doc(hidden)]
    pub fn claim(&self, holder: Holder) -> Result<bool, Error> {
        let mut state = self.alone()?;
        if !self.caps.claim.take(holder) {
            return Ok(false);
        }
        self.caps.reclaimers.store(NO_CAP, Ordering::Relaxed);
        state.marks.start_queue();
        Ok(true)
    }

    /// Takes the region back and removes the reclaimer's cap.
    #[doc(hidden)]
    pub fn release(&self, holder: Holder) {
        self.caps.claim.release(holder);
    }

    /// Sets the reclaimer's cap. Zero is a cap; `None` removes it.
    #[doc(hidden)]
    pub fn limit_marked(&self, cap: Option<Bytes>) -> Result<(), Error> {
        let cap = pages_of(cap);
        if self.caps.reclaimers.swap(cap, Ordering::Relaxed) == cap {
            return Ok(());
        }
        let mut state = self.alone()?;
        self.keep_caps(&mut state)
    }

    /// Returns marked memory that glebe has not dropped, by priority. The kernel may have freed
    /// some.
    #[doc(hidden)]
    pub fn held_by_priority(&self) -> [Bytes; Priority::COUNT] {
        let Ok(state) = self.alone() else { return [Bytes::ZERO; Priority::COUNT] };
        state.marks.held_by_priority().map(|pages| Pages::new(pages).bytes(self.page))
    }

    /// Returns the time of a priority's oldest mark that is not dropped.
    #[doc(hidden)]
    pub fn oldest(&self, priority: Priority) -> Option<Instant> {
        let (_, since) = self.alone().ok()?.marks.oldest(priority)?;
        self.made.checked_add(since)
    }

    /// Drops the oldest marked memory of a priority, up to `most` rounded up to a granule. Stops at
    /// a range marked after `until`, unless it is the first. Returns the bytes freed, without those
    /// that the kernel had freed.
    #[doc(hidden)]
    pub fn shed(
        &self,
        priority: Priority,
        most: Bytes,
        until: Option<Instant>,
    ) -> Result<Bytes, Error> {
        let mut state = self.alone()?;
        self.settle_refilled(&mut state)?;
        let most = most.pages_up(self.page).get();
        let (mut freed, mut is_first) = (0, true);
        while freed < most {
            let Some((oldest, since)) = state.marks.oldest(priority) else { break };
            let is_young = until.is_some_and(|until| self.made + since > until);
            if is_young && !is_first {
                break;
            }
            is_first = false;
            freed += self.shed_of(&mut state, oldest, most - freed)?;
        }
        self.counts.add_alone(Counter::Shed, freed);
        Ok(Pages::new(freed).bytes(self.page))
    }

    /// Drops the first `wanted` pages, in whole granules. Returns the number that was in memory.
    fn shed_of(&self, state: &mut RegionState, range: Extent, wanted: u64) -> Result<u64, Error> {
        let granule = self.granule.pages_down(self.page).get();
        let len = wanted.next_multiple_of(granule).min(range.len());
        let part = Extent::new(range.start(), len).unwrap_or(range);
        // Counts pages as present if the engine cannot tell.
        let resident = state.backend.resident(part).map_or(part.len(), Pages::get);
        state.drop_held(part)?;
        Ok(resident)
    }

    /// Returns the time since the region was made, or zero if ages do not matter.
    #[inline]
    pub(super) fn now(&self) -> Duration {
        match self.caps.max_age.is_some() || self.caps.claim.is_held() {
            true => self.made.elapsed(),
            false => Duration::ZERO,
        }
    }

    /// Drops marked memory beyond the cap or too old.
    #[inline]
    pub(super) fn keep_caps(&self, state: &mut RegionState) -> Result<(), Error> {
        let cap = self.caps.cap();
        if cap == NO_CAP && self.caps.max_age.is_none() {
            return Ok(());
        }
        let mut dropped = Pages::ZERO;
        if let Some(age) = self.caps.max_age {
            while let Some(old) = state.marks.aged(age, self.now()) {
                dropped = dropped + state.drop_held(old)?;
            }
        }
        let granule = self.granule.pages_down(self.page).get();
        while state.marks.held_pages() > cap {
            let excess = (state.marks.held_pages() - cap).next_multiple_of(granule);
            let Some(first) = state.marks.first_to_drop() else { break };
            let part = Extent::new(first.start(), excess.min(first.len()));
            dropped = dropped + state.drop_held(part.unwrap_or(first))?;
        }
        self.counts.add_alone(Counter::DroppedByCap, dropped.get());
        Ok(())
    }
}
