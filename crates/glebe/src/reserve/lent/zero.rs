//! Zeroing ahead of time: a tenant whose pages are all zeros.
//!
//! A granule is *tracked* while its pages are made zero one by one; whoever else begins to use a
//! page of it ends that, and who began before is live until its page's word says what it did. So a
//! granule still tracked after its last page, without live pages and with no word that says other
//! than zero, holds nothing but zeros.
//! First class takes the granule at any moment, as from any tenant.

use std::cmp::Reverse;

use super::{Adds, Lent, Meta, NoClaim, NotFilled};
use crate::reserve::words::{State, ZeroState};

/// What became of an attempt to make a granule zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Zeroed {
    /// Every page is zero.
    pub(crate) complete: bool,
    /// Tenant pages dropped for it.
    pub(crate) evicted: u64,
    /// Pages that first class took, and counted as recalled, while they were being made zero.
    pub(crate) recalled: u64,
}

impl Lent {
    /// Makes every page of a granule zero, unless first class holds one or somebody comes
    /// between. `zeros` is one page of them.
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

    /// Says that a granule is zero, if it is tracked and so are all of its pages. A tenant that
    /// stood for a page before the granule was tracked may take it only now: as long as it may it
    /// is live, and what it did before is seen in the page's word.
    fn is_made_zero(&self, granule: usize) -> bool {
        let seen = self.granule(granule);
        let first = granule << self.shift;
        let is_zero = |page| self.word(page).state(seen.epoch()) == State::Zero;
        seen.is_tracking()
            && seen.live() == 0
            && (first..first + self.granule_pages()).all(is_zero)
            && self
                .granules
                .update(granule, |now| (now == seen).then(|| now.with_zero(ZeroState::Zero)))
                .is_ok()
    }

    /// Makes one page zero; false if somebody else is at it.
    fn zero_page(&self, page: usize, zeros: &[u8], zeroed: &mut Zeroed) -> bool {
        let granule = self.granule_of(page);
        if self.word(page).state(self.granule(granule).epoch()) == State::Zero {
            return true;
        }
        let claim = match self.claim_adding(page, Adds::ZeroPage) {
            Ok(claim) => claim,
            Err(NoClaim::Taken) => return false,
            Err(NoClaim::Recalled) => {
                zeroed.recalled += 1;
                return false;
            }
        };
        zeroed.evicted += u64::from(claim.evicted);
        match self.fill_as(claim, State::Zero, Meta::default(), zeros) {
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

    /// Where to keep zeros: of the granules that are not zero and cost least the highest, away from
    /// blocks that want no zeros.
    pub(crate) fn zero_candidate(&self) -> Option<usize> {
        let words = (0..self.granules()).map(|granule| (granule, self.granule(granule)));
        words
            .filter(|(_, word)| word.is_open() && word.held() == 0 && !word.is_zero())
            .min_by_key(|(granule, word)| (word.live(), Reverse(*granule)))
            .map(|(granule, _)| granule)
    }

    /// Whether tenants should leave a zero granule alone to keep `target` of them.
    pub(crate) fn keeps_zero(&self, target: u64) -> bool {
        target > 0 && self.zero_granules() <= target
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::reserve::{Reserve, Writers};
    use crate::sys::page_size;
    use crate::units::Bytes;

    /// A tenant stands for a page, and takes it after it was looked at.
    #[test]
    fn a_page_that_is_about_to_be_claimed_is_not_called_zero() {
        for writers in [Writers::Restartable, Writers::Counted] {
            let reserve = Reserve::options().writers(writers).build(Bytes::mib(2)).unwrap();
            let lent = reserve.inner.get().unwrap().lent();
            let zeros = vec![0; page_size().bytes().as_usize()];
            // All pages are known to be zero, the granule no more.
            lent.granules.change(0, |now| now.with_zero(ZeroState::Unknown));
            assert!(lent.zero_granule(0, &zeros).complete);
            let seen = lent.granule(0);
            assert!(lent.enter(0, seen, Adds::Page));
            assert!(!lent.zero_granule(0, &zeros).complete);
            assert!(!lent.granule(0).is_zero());
            // It came too late for one, and the next may.
            lent.granules.change(0, |now| if now.writers() > 0 { now.unpinned() } else { now });
            assert!(lent.uncount(0, seen));
            assert!(lent.zero_granule(0, &zeros).complete && lent.granule(0).is_zero());
        }
    }
}
