//! What a region's lock guards.

use std::sync::Arc;

use super::adopted::Adopted;
use super::engine::Backend;
use super::marks::Marks;
use super::refilled::Refilled;
use super::resident::Pins;
use crate::error::OsError;
use crate::extent::Extent;
use crate::sys::swap;
use crate::units::Pages;

/// Up to so many pages the question for swap would cost more than the mark.
const SMALL_PAGES: u64 = 16;
const SWAP_KNOWN_FOR: u32 = 256;

/// What the lock guards.
#[derive(Debug)]
pub(super) struct State {
    pub(super) marks: Marks,
    pub(super) pins: Pins,
    pub(super) refilled: Arc<Refilled>,
    pub(super) backend: Backend,
    /// Where the memory is the caller's.
    pub(super) adopted: Option<Adopted>,
    /// Pages of the region.
    pub(super) pages: u64,
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
}
