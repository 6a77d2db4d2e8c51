//! Keeping a range in memory for a while: [`Resident`], a guard for what must not meet a lost page.
//!
//! A system call that is given a lost page answers EFAULT, maybe after part of its work, and a
//! device knows no page faults at all. While a guard lives its pages are unmarked; what of them was
//! marked is marked again, with its priority, when the last guard that covers them is dropped. A
//! mark meanwhile is kept back until then; an unmark meanwhile cancels what was kept back.
//!
//! Pure arithmetic on page positions, under the region's lock. Invariants: what is kept back is
//! covered by a guard; its extents do not overlap. Cost: O(guards and extents kept back).

use std::ops::Range;

use super::marks::Parts;
use super::{fork, Error, Priority, Purged, Region};
use crate::extent::Extent;
use crate::sync::write;
use crate::sys::atfork;
use crate::units::{Bytes, Pages};

/// The guards of a region and what they keep back.
#[derive(Debug, Default)]
pub(super) struct Pins {
    /// One for each guard.
    held: Vec<Extent>,
    /// To be marked when no guard covers it any more.
    kept_back: Vec<(Extent, Priority)>,
    /// Those of `held` whose guard was left.
    left: Vec<Extent>,
}

impl Pins {
    /// A guard of `pages`, of which `parts` were marked.
    fn hold(&mut self, pages: Extent, parts: Vec<(Extent, Priority)>) {
        self.held.push(pages);
        self.kept_back.extend(parts);
    }

    /// What of `pages` no guard covers.
    #[inline]
    pub(super) fn uncovered(&self, pages: Extent) -> Parts {
        if self.held.is_empty() {
            return Parts::One(pages);
        }
        Parts::Many(without(vec![pages], &self.held))
    }

    /// A mark of `pages` but those that are `uncovered`: kept back, with an older priority where
    /// they have one.
    #[inline]
    pub(super) fn keep_back(&mut self, pages: Extent, uncovered: &[Extent], priority: Priority) {
        if uncovered == [pages] {
            return;
        }
        let known: Vec<Extent> = self.kept_back.iter().map(|(part, _)| *part).collect();
        let new = without(without(vec![pages], uncovered), &known);
        self.kept_back.extend(new.into_iter().map(|part| (part, priority)));
    }

    /// An unmark of `pages`.
    #[inline]
    pub(super) fn forget(&mut self, pages: Extent) {
        if self.kept_back.is_empty() {
            return;
        }
        let kept_back = std::mem::take(&mut self.kept_back).into_iter();
        self.kept_back = kept_back
            .flat_map(|(part, priority)| {
                without(vec![part], &[pages]).into_iter().map(move |part| (part, priority))
            })
            .collect();
    }

    /// Takes a guard of exactly `pages` off those that were left; whether there was one.
    fn take_left(&mut self, pages: Extent) -> bool {
        let place = self.left.iter().position(|left| *left == pages);
        place.map(|place| self.left.swap_remove(place)).is_some()
    }

    /// The end of a guard of `pages`: what is to be marked now.
    fn release(&mut self, pages: Extent) -> Vec<(Extent, Priority)> {
        if let Some(own) = self.held.iter().position(|held| *held == pages) {
            self.held.swap_remove(own);
        }
        let uncovered = without(vec![pages], &self.held);
        let due = uncovered.iter().flat_map(|free| {
            let within =
                |(part, priority): &(Extent, _)| Some((part.intersection(*free)?, *priority));
            self.kept_back.iter().filter_map(within).collect::<Vec<_>>()
        });
        let due: Vec<_> = due.collect();
        due.iter().for_each(|(part, _)| self.forget(*part));
        due
    }
}

/// What of `extents` is in none of `others`.
pub(super) fn without(extents: Vec<Extent>, others: &[Extent]) -> Vec<Extent> {
    others.iter().fold(extents, |left, other| {
        let cut = |extent: Extent| {
            let before = Extent::new(
                extent.start(),
                other.start().min(extent.end()).saturating_sub(extent.start()),
            );
            let start = other.end().max(extent.start());
            let after = Extent::new(start, extent.end().saturating_sub(start));
            before.into_iter().chain(after)
        };
        left.into_iter().flat_map(cut).collect()
    })
}

/// While it lives, no page of its range is lost: for system calls and devices. When it is dropped,
/// what of the range was marked is marked again, and counts as marked just then.
#[derive(Debug)]
#[must_use = "the range is marked again when this is dropped"]
pub struct Resident<'a> {
    region: &'a Region,
    pages: Extent,
    purged: Purged,
}

impl Region {
    /// Unmarks a range of whole granules until the guard is dropped.
    ///
    /// # Errors
    /// As [`Region::unmark`].
    pub fn resident(&self, range: Range<Bytes>) -> Result<Resident<'_>, Error> {
        let pages = self.checked(&range)?;
        if atfork::is_without_steps() {
            return Err(Error::Cloned);
        }
        let mut call = self.calls.begin();
        let mut state = self.alone()?;
        let parts = state.marks.priorities_within(pages);
        let mut lost = self.unmark_now(&mut state, pages)?;
        state.pins.hold(pages, parts);
        call.share(pages, &mut lost);
        Ok(Resident { region: self, pages, purged: Purged::from_runs(lost) })
    }
}

impl Resident<'_> {
    /// What had been lost before, and is zeros now.
    pub fn purged(&self) -> &Purged {
        &self.purged
    }

    /// The range that is kept.
    #[must_use]
    pub fn range(&self) -> Range<Bytes> {
        let at = |page| Pages::new(page).bytes(self.region.page);
        at(self.pages.start())..at(self.pages.end())
    }
}

impl Drop for Resident<'_> {
    fn drop(&mut self) {
        self.region.release_pages(self.pages);
    }
}

impl Resident<'_> {
    /// Ends the value but not what it does: the range is kept until [`Region::release`], as by an
    /// owner that cannot hold the value. What had been lost before, and is zeros now.
    pub fn leave(mut self) -> Purged {
        let purged = std::mem::take(&mut self.purged);
        if !atfork::is_without_steps() {
            fork::give_way();
            write(&self.region.state).pins.left.push(self.pages);
        }
        std::mem::forget(self);
        purged
    }
}

impl Region {
    /// Ends a guard of exactly this range that was [left](Resident::leave).
    ///
    /// # Errors
    /// [`Error::Unaligned`], [`Error::Empty`], [`Error::Beyond`], [`Error::Cloned`]; and
    /// [`Error::NotHeld`] where there is no such guard.
    pub fn release(&self, range: Range<Bytes>) -> Result<(), Error> {
        let pages = self.checked(&range)?;
        if atfork::is_without_steps() {
            return Err(Error::Cloned);
        }
        fork::give_way();
        if !write(&self.state).pins.take_left(pages) {
            return Err(Error::NotHeld { offset: range.start });
        }
        self.release_pages(pages);
        Ok(())
    }

    /// The end of a guard.
    fn release_pages(&self, pages: Extent) {
        let Ok(mut state) = self.alone() else {
            // In a child that cannot be followed the pages stay unmarked.
            if !atfork::is_without_steps() {
                write(&self.state).pins.release(pages);
            }
            return;
        };
        for (part, priority) in state.pins.release(pages) {
            // Where it cannot be armed it stays unmarked; a mark that is refused counts as marked,
            // and the next unmark settles it.
            if state.arm_adopted(&[part]).is_ok() {
                let _ = self.mark_armed(&mut state, part, priority);
            }
        }
    }
}

#[cfg(test)]
mod tests;
