//! What a region's lock guards.

use std::sync::Arc;

use super::adopted::Adopted;
use super::engine::Backend;
use super::marks::Marks;
use super::touches::Refilled;
use super::unmarks::Calls;
use super::Error;
use crate::error::OsError;
use crate::extent::Extent;
use crate::sync::RwLock;
use crate::sys::swap;
use crate::units::Pages;

/// Up to so many pages the question for swap would cost more than the mark.
const SMALL_PAGES: u64 = 16;
const SWAP_KNOWN_FOR: u32 = 256;

/// What of a region a fork locks.
#[derive(Debug)]
pub(super) struct Locked {
    pub(super) state: RwLock<State>,
    pub(super) calls: Calls,
}

/// What the lock guards.
#[derive(Debug)]
pub(super) struct State {
    pub(super) marks: Marks,
    /// Where a callback refills lost pages.
    pub(super) refilled: Option<Arc<Refilled>>,
    pub(super) backend: Backend,
    /// Where the memory is the caller's.
    pub(super) adopted: Option<Adopted>,
    /// All pages of the region.
    pub(super) all: Extent,
    /// Whether this is a child in which the backend could not be made to work: a write to a lost
    /// page may have gone unseen there, so all that is marked is lost.
    pub(super) is_unarmed: bool,
    /// Whether the machine had swap when it was last asked.
    pub(super) swap: bool,
    /// Small marks until it is asked again.
    pub(super) swap_known_for: u32,
}

impl State {
    /// Learns whether there is swap. A small mark may miss that it was turned on just before:
    /// then what is in it is lost early, and told.
    #[inline]
    pub(super) fn look_for_swap(&mut self, pages: u64) {
        if pages <= SMALL_PAGES && self.swap_known_for > 0 {
            self.swap_known_for -= 1;
            return;
        }
        self.swap = swap::exists();
        self.swap_known_for = SWAP_KNOWN_FOR;
    }

    /// Drops what of `pages` is marked and was not dropped before. What is refused is tried again
    /// by the next call.
    pub(super) fn drop_held(&mut self, pages: Extent) -> Result<Pages, OsError> {
        let mut dropped = Pages::ZERO;
        for part in self.marks.held_within(pages) {
            for run in self.droppable(part)? {
                self.backend.drop_pages(run)?;
                dropped = dropped + Pages::new(run.len());
            }
            self.marks.drop_within(part);
        }
        Ok(dropped)
    }

    /// What of a marked part is this region's still: what the caller mapped there since is not to
    /// go.
    pub(super) fn droppable(&self, part: Extent) -> Result<Vec<Extent>, OsError> {
        match (&self.backend, &self.adopted) {
            (Backend::Scan(scan), Some(_)) => scan.still_armed(&[part]),
            _ => Ok(vec![part]),
        }
    }

    /// Before `pages` are marked: arms what of the caller's memory is not marked yet, all of it or
    /// nothing.
    #[inline]
    pub(super) fn arm(&mut self, pages: Extent) -> Result<(), Error> {
        let Self { marks, backend: Backend::Scan(scan), adopted: Some(adopted), .. } = self else {
            return Ok(());
        };
        let parts = marks.outside(pages);
        for (index, part) in parts.iter().enumerate() {
            if let Err(error) = adopted.arm(*part, scan.uffd()) {
                parts[..index].iter().for_each(|done| adopted.disarm(*done, scan.uffd()));
                return Err(error);
            }
        }
        Ok(())
    }

    /// After `parts` were unmarked, of the caller's memory.
    pub(super) fn disarm(&mut self, parts: &[Extent]) {
        let Self { backend: Backend::Scan(scan), adopted: Some(adopted), .. } = self else {
            return;
        };
        for part in parts {
            // A child that has no descriptor of its own: nothing is armed in it, and the
            // parent's would be disarmed.
            if scan.is_inherited() {
                adopted.forget(*part);
            } else {
                adopted.disarm(*part, scan.uffd());
            }
        }
    }

    /// In a child, before other code runs in it.
    pub(super) fn follow_fork(&mut self) {
        self.is_unarmed |= self.arm_again().is_err();
    }

    /// In a child that could not be armed at first, where something is to be marked: what is
    /// marked already is lost.
    #[inline]
    pub(super) fn arm_late(&mut self) -> Result<(), OsError> {
        if self.is_unarmed {
            self.arm_again()?;
            if let Err(error) = self.fill_again() {
                // An unmarked hole must not be SIGBUS.
                self.disarm_again();
                return Err(error);
            }
            self.is_unarmed = false;
        }
        Ok(())
    }

    /// Makes a child's memory what an armed region's is.
    fn fill_again(&self) -> Result<(), OsError> {
        // What a write had filled is a hole again, and what an unmark dropped is none.
        self.backend.lose(&self.marks.all())?;
        if let (Backend::Scan(scan), None) = (&self.backend, &self.adopted) {
            self.marks.outside(self.all).into_iter().try_for_each(|gap| scan.fill_holes(gap))?;
        }
        Ok(())
    }

    fn disarm_again(&self) {
        let Backend::Scan(scan) = &self.backend else { return };
        match &self.adopted {
            Some(adopted) => adopted.armed().for_each(|run| scan.disarm(run)),
            None => scan.disarm(self.all),
        }
    }

    fn arm_again(&mut self) -> Result<(), OsError> {
        let scan = match &mut self.backend {
            Backend::Scan(scan) => scan,
            Backend::Tag(tag) => {
                tag.follow_fork();
                return Ok(());
            }
        };
        scan.follow_fork()?;
        match &self.adopted {
            Some(adopted) => adopted.armed().try_for_each(|run| scan.arm(run)),
            None => scan.arm(self.all),
        }
    }
}
