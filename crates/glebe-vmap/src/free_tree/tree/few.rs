//! A tree of few extents is one leaf, searched extent by extent, because the general path costs
//! more.

use super::super::lanes::{usable, Lane};
use super::{count_visit, Need, Tree};

const FEW: usize = 3;

impl<L: Lane, const B: usize> Tree<L, B> {
    #[inline(always)]
    fn few(&self) -> Option<usize> {
        const { assert!(FEW < B, "a lane more than few") };
        (self.height == 0 && self.len <= FEW).then_some(self.len)
    }

    /// Takes the lowest place if this only moves an extent's start. Returns `None` if the general
    /// path must decide.
    #[inline(always)]
    pub(in crate::free_tree) fn take_of_few(&mut self, need: &Need<L>) -> Option<L> {
        let count = self.few().filter(|_| need.low == L::ZERO)?;
        count_visit();
        let leaf = &mut self.leaves[self.root as usize];
        for (start, len) in leaf.start.iter_mut().zip(&mut leaf.len).take(count) {
            if usable(*start, *len, need.mask) < need.len {
                continue;
            }
            let place = *start;
            let whole = place.pad(need.mask) == L::ZERO && *len > need.len;
            if !whole || place + need.len > need.high {
                return None;
            }
            (*start, *len) = (place + need.len, *len - need.len);
            return Some(place);
        }
        None
    }

    /// Adds an extent. Returns false if the general path must decide.
    #[inline(always)]
    pub(in crate::free_tree) fn add_to_few(&mut self, start: L, len: L) -> bool {
        let Some(count) = self.few() else { return false };
        count_visit();
        let limit = self.limit;
        let leaf = &mut self.leaves[self.root as usize];
        let end = start + len;
        let mut at = 0;
        while at < count && leaf.start[at] <= start {
            at += 1;
        }
        let before = if at > 0 { leaf.start[at - 1] + leaf.len[at - 1] } else { L::ZERO };
        // An unused lane starts at `MAX`, after every end, and is never joined.
        let after = leaf.start[at];
        if before > start || after < end {
            return false;
        }
        match (at > 0 && before == start, at < count && after == end) {
            (true, true) => {
                leaf.len[at - 1] = leaf.len[at - 1] + len + leaf.len[at];
                for lane in at..count {
                    leaf.start[lane] = leaf.start[lane + 1];
                    leaf.len[lane] = leaf.len[lane + 1];
                }
                self.set_few(count - 1);
            }
            (true, false) => leaf.len[at - 1] = leaf.len[at - 1] + len,
            (false, true) => (leaf.start[at], leaf.len[at]) = (start, leaf.len[at] + len),
            (false, false) => {
                if count == FEW || count == limit {
                    return false;
                }
                for lane in (at..count).rev() {
                    leaf.start[lane + 1] = leaf.start[lane];
                    leaf.len[lane + 1] = leaf.len[lane];
                }
                (leaf.start[at], leaf.len[at]) = (start, len);
                self.set_few(count + 1);
            }
        }
        true
    }

    #[inline(always)]
    fn set_few(&mut self, count: usize) {
        self.leaf_counts[self.root as usize] = count as u8;
        self.len = count;
    }
}
