//! [`Caps`] limits the size and age of marked memory, and sheds it for a reclaimer.
//!
//! The lower of two caps applies: the program's and the reclaimer's. A forked child ignores the
//! reclaimer's, because nobody would lift it. Unit: pages. Lock: the region's.

use std::time::{Duration, Instant};

use super::shed::Shed;
use super::state::RegionState;
use super::stats::Counter;
use super::{Error, Options, Priority, Region};
use glebe_os::extent::Extent;
use glebe_os::internal::sync::{MappedWord, Ordering};
use glebe_os::internal::sys::page_size;
use glebe_os::internal::sys::processes::claim::{Claim, Holder};
use glebe_os::units::{Bytes, Pages};

const NO_CAP: u64 = u64::MAX;

#[derive(Debug)]
pub(super) struct Caps {
    own: MappedWord,
    reclaimers: MappedWord,
    claim: Claim,
    max_age: Option<Duration>,
}

impl Caps {
    pub(super) fn new(options: &Options) -> Self {
        let (own, claim) = (MappedWord::new(pages_of(options.cap)), Claim::default());
        Self { own, reclaimers: MappedWord::new(NO_CAP), claim, max_age: options.max_age }
    }

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
    /// Changes or removes the [cap](Options::cap). Drops the excess, the oldest of the lowest
    /// priority first.
    ///
    /// # Errors
    /// [`Error::ZeroCap`], [`Error::Cloned`]: nothing has changed. [`Error::Os`] if memory cannot
    /// be dropped: the cap may be set, and the next mark tries again.
    pub fn set_cap(&self, cap: Option<Bytes>) -> Result<(), Error> {
        if cap == Some(Bytes::ZERO) {
            return Err(Error::ZeroCap);
        }
        let mut state = self.alone()?;
        state.marks.start_queue();
        self.caps.own.store(pages_of(cap), Ordering::Relaxed);
        self.keep_caps(&mut state)
    }

    fn shed_of(&self, state: &mut RegionState, range: Extent, wanted: u64) -> Result<u64, Error> {
        let granule = self.granule.pages_down(self.page).get();
        let len = wanted.next_multiple_of(granule).min(range.len());
        let part = Extent::new(range.start(), len).unwrap_or(range);
        let resident = state.backend.resident(part).map_or(part.len(), Pages::get);
        state.drop_held(part)?;
        Ok(resident)
    }

    #[inline]
    pub(super) fn now(&self) -> Duration {
        match self.caps.max_age.is_some() || self.caps.claim.is_held() {
            true => self.made.elapsed(),
            false => Duration::ZERO,
        }
    }

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

impl Shed for Region {
    /// Records times of marks from now on.
    fn claim_for(&self, holder: Holder) -> Result<bool, Error> {
        let mut state = self.alone()?;
        if !self.caps.claim.take(holder) {
            return Ok(false);
        }
        self.caps.reclaimers.store(NO_CAP, Ordering::Relaxed);
        state.marks.start_queue();
        Ok(true)
    }

    fn release(&self, holder: Holder) {
        self.caps.claim.release(holder);
    }

    fn sheddable(&self) -> [Bytes; Priority::COUNT] {
        let Ok(state) = self.alone() else { return [Bytes::ZERO; Priority::COUNT] };
        state.marks.held_by_priority().map(|pages| Pages::new(pages).bytes(self.page))
    }

    fn oldest(&self, priority: Priority) -> Option<Instant> {
        let (_, since) = self.alone().ok()?.marks.oldest(priority)?;
        self.made.checked_add(since)
    }

    /// Rounds up to granules, and counts resident bytes.
    fn shed(
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
}

/// Limits marked memory for the reclaimer; `None` removes the limit.
///
/// # Errors
/// See [`Region::set_cap`].
pub fn limit_marked(region: &Region, cap: Option<Bytes>) -> Result<(), Error> {
    let cap = pages_of(cap);
    if region.caps.reclaimers.swap(cap, Ordering::Relaxed) == cap {
        return Ok(());
    }
    let mut state = region.alone()?;
    region.keep_caps(&mut state)
}
