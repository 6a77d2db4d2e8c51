//! [`RegionState`] is the data under a region's lock.

use std::sync::Arc;

use super::adopted::Adopted;
use super::engine::Backend;
use super::marks::Marks;
use super::touches::Refilled;
use super::unmarks::Calls;
use super::Error;
use glebe_os::error::OsError;
use glebe_os::extent::Extent;
use glebe_os::internal::sync::RwLock;
use glebe_os::internal::sys::machine::swap;
use glebe_os::units::Pages;

/// Marks of up to this many pages look for swap at most once in `SWAP_KNOWN_FOR` such marks,
/// because the look costs more than the mark.
const SMALL_PAGES: u64 = 16;
const SWAP_KNOWN_FOR: u32 = 256;

#[derive(Debug)]
pub(super) struct Locked {
    pub(super) state: RwLock<RegionState>,
    pub(super) calls: Calls,
}

#[derive(Debug)]
pub(super) struct RegionState {
    pub(super) marks: Marks,
    pub(super) refilled: Option<Arc<Refilled>>,
    pub(super) backend: Backend,
    pub(super) adopted: Option<Adopted>,
    pub(super) all: Extent,
    /// True in a forked child whose `backend` cannot detect losses yet. All marked pages then count
    /// as lost, because a write may fill a lost page unnoticed.
    pub(super) is_unarmed: bool,
    pub(super) swap: bool,
    pub(super) swap_known_for: u32,
}

impl RegionState {
    /// A small mark may miss new swap; `MADV_FREE` then drops the mark's swapped-out pages.
    #[inline]
    pub(super) fn look_for_swap(&mut self, pages: u64) {
        if pages <= SMALL_PAGES && self.swap_known_for > 0 {
            self.swap_known_for -= 1;
            return;
        }
        self.swap = swap::exists();
        self.swap_known_for = SWAP_KNOWN_FOR;
    }

    /// Drops the marked pages among `pages`, and returns how many were not dropped before. After an
    /// error, the next call retries.
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

    /// With *scan*, skips pages that the program mapped anew.
    pub(super) fn droppable(&self, part: Extent) -> Result<Vec<Extent>, OsError> {
        match (&self.backend, &self.adopted) {
            (Backend::Scan(scan), Some(_)) => scan.still_armed(&[part]),
            _ => Ok(vec![part]),
        }
    }

    /// Arms unmarked `pages` of the caller's memory, all or none.
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

    pub(super) fn disarm(&mut self, parts: &[Extent]) {
        let Self { backend: Backend::Scan(scan), adopted: Some(adopted), .. } = self else {
            return;
        };
        for part in parts {
            // An inherited userfaultfd would unregister the parent's memory. The child has
            // registered nothing.
            if scan.is_inherited() {
                adopted.forget(*part);
            } else {
                adopted.disarm(*part, scan.uffd());
            }
        }
    }

    pub(super) fn follow_fork(&mut self) {
        // An unarmed parent may have left holes in unmarked memory, which `arm_late` fills.
        if !self.is_unarmed {
            self.is_unarmed = self.arm_again().is_err();
        }
    }

    /// Arms the region if `follow_fork` failed, and drops all marked pages.
    #[inline]
    pub(super) fn arm_late(&mut self) -> Result<(), OsError> {
        if self.is_unarmed {
            self.arm_again()?;
            if let Err(error) = self.fill_again() {
                // An unmarked hole must not raise SIGBUS.
                self.disarm_again();
                return Err(error);
            }
            self.is_unarmed = false;
        }
        Ok(())
    }

    fn fill_again(&self) -> Result<(), OsError> {
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
