//! Granules that come to have memory, and that have none any more.
//!
//! An absent granule is closed, so no tenant begins anything there, and the caller keeps its
//! positions from first class. Who claimed or read a page of it before is told apart by the epoch,
//! which the recall in front of [`Lent::depart`] moved on. A reader may still be copying when the
//! memory goes: there must be something to read at its address from then on.

use std::ops::Range;

use super::Lent;
use crate::reserve::words::GranuleWord;

impl Lent {
    /// Says that the memory of whole granules, which the caller has recalled, is gone.
    pub(crate) fn depart(&self, granules: Range<usize>) {
        let pages = self.granule_pages() as u64;
        for granule in granules {
            self.granules.change(granule, |now| now.departed(pages));
        }
    }

    /// Says that absent granules have memory, all zeros. The tenants have it from now on.
    pub(crate) fn arrive(&self, granules: Range<usize>) {
        for granule in granules {
            self.granules.change(granule, GranuleWord::arrived);
        }
    }
}
