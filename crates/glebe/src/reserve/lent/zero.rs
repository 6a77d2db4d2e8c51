//! [`Lent::zero_granule`] zeroes a granule (2 MiB) ahead of time, with a tenant's rights.
//!
//! A granule is *tracked* while its pages are zeroed one by one. A tenant's claim of an unused page
//! ends the tracking. A tenant's other calls change a page word or the count of *live* (claimed or
//! filled) pages. The granule is zero if, at the end, it is tracked, has no live page, and all page
//! words say zero.

use std::cmp::Reverse;

use super::{Adds, Lent, Meta, NoClaim, NotFilled};
use crate::reserve::words::{PageState, ZeroState};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Zeroed {
    pub(crate) complete: bool,
    pub(crate) evicted: u64,
    pub(crate) recalled: u64,
}

impl Lent {
    pub(crate) fn zero_granule(&self, granule: usize, zeros: &[u8]) -> Zeroed {
        let mut zeroed = Zeroed::default();
        let track = self.granules.update(granule, |now| {
            let may = now.is_open() && now.held() == 0 && !now.is_zero();
            may.then(|| now.with_zero(ZeroState::Tracking))
        });
        if track.is_err() {
            return zeroed;
        }
        let first = granule << self.shift;
        for page in first..first + self.granule_pages() {
            if !self.zero_page(page, zeros, &mut zeroed) {
                return zeroed;
            }
        }
        zeroed.complete = self.is_made_zero(granule);
        zeroed
    }

    fn is_made_zero(&self, granule: usize) -> bool {
        let seen = self.granule(granule);
        let first = granule << self.shift;
        let is_zero = |page| self.word(page).state(seen.epoch()) == PageState::Zero;
        seen.is_tracking()
            && seen.live() == 0
            && (first..first + self.granule_pages()).all(is_zero)
            && self
                .granules
                .update(granule, |now| (now == seen).then(|| now.with_zero(ZeroState::Zero)))
                .is_ok()
    }

    fn zero_page(&self, page: usize, zeros: &[u8], zeroed: &mut Zeroed) -> bool {
        let granule = self.granule_of(page);
        if self.word(page).state(self.granule(granule).epoch()) == PageState::Zero {
            return true;
        }
        let held = self.holds(page).map(|(word, ..)| word);
        let claim = match self.claim_adding(page, held, Adds::ZeroPage) {
            Ok(claim) => claim,
            Err(NoClaim::Taken) => return false,
            Err(NoClaim::Recalled) => {
                zeroed.recalled += 1;
                return false;
            }
        };
        zeroed.evicted += u64::from(claim.evicted);
        match self.fill_as(claim, PageState::Zero, Meta::default(), zeros) {
            Ok(seen) => {
                let counted = self.uncount(granule, seen);
                zeroed.recalled += u64::from(!counted);
                counted
            }
            Err(NotFilled::Recalled) => {
                zeroed.recalled += 1;
                false
            }
            Err(NotFilled::Interrupted) => false,
        }
    }

    /// Returns the granule to zero next: the one with the fewest pages of tenants, and of equals
    /// the highest, because first class places blocks low. Leaves out closed and already zeroed
    /// granules, and those with pages of first class.
    pub(crate) fn zero_candidate(&self) -> Option<usize> {
        let words = (0..self.granules()).map(|granule| (granule, self.granule(granule)));
        words
            .filter(|(_, word)| word.is_open() && word.held() == 0 && !word.is_zero())
            .min_by_key(|(granule, word)| (word.live(), Reverse(*granule)))
            .map(|(granule, _)| granule)
    }

    pub(crate) fn keeps_zero(&self, target: u64) -> bool {
        target > 0 && self.zero_granules() <= target
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::reserve::options::with_writers;
    use crate::reserve::{Reserve, Writers};
    use glebe_os::internal::sys::page_size;
    use glebe_os::units::Bytes;

    #[test]
    fn a_page_that_is_about_to_be_claimed_is_not_called_zero() {
        for writers in [Writers::Restartable, Writers::Counted] {
            let reserve = with_writers(Reserve::options(), writers).build(Bytes::mib(2)).unwrap();
            let lent = reserve.inner.get().unwrap().lent();
            let zeros = vec![0; page_size().bytes().as_usize()];
            lent.granules.change(0, |now| now.with_zero(ZeroState::Unknown));
            assert!(lent.zero_granule(0, &zeros).complete);
            let seen = lent.granule(0);
            assert!(lent.enter(0, seen, Adds::Page));
            assert!(!lent.zero_granule(0, &zeros).complete);
            assert!(!lent.granule(0).is_zero());
            lent.granules.change(0, |now| if now.writers() > 0 { now.unpinned() } else { now });
            assert!(lent.uncount(0, seen));
            assert!(lent.zero_granule(0, &zeros).complete && lent.granule(0).is_zero());
        }
    }
}
