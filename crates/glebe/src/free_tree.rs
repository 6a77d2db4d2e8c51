//! Free extents in address order: [`FreeTree`] finds the lowest place that fits.
//!
//! Owns which positions of a span are free, and nothing else: no memory, no pointer. The unit of a
//! position is the caller's (the reserve counts pages). No lock: a caller that shares a tree brings
//! its own.
//!
//! # Invariants
//!
//! Free extents lie in the span, in order, and never touch: two that would are one. A call that
//! returns an error has changed nothing.
//!
//! # Cost
//!
//! Every call but [`FreeTree::iter`], [`FreeTree::find_best`] and
//! [`FreeTree::check_invariants`] takes O(log n) levels of a
//! balanced tree for n free extents, whatever the alignment and the window, and allocates nothing:
//! [`FreeTree::new`] allocates once, `32 + 8 * classes` bytes for each extent, where there is a
//! class for each power of two up to the span's end. A change also computes the maxima of the
//! levels above it again, O(levels x classes) words at worst.
//!
//! Source: the idea is "improve vmap allocation" (Linux 2019): free blocks in a tree that is
//! augmented by the size of the largest block below, split by where the taken part lies. Its search
//! can pass the size test of a subtree in which an aligned request fits nowhere; with a maximum for
//! each alignment this one cannot.

mod nodes;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod oracle;
#[cfg(test)]
mod tests;

use crate::extent::Extent;
use nodes::{between, usable, Index, Nodes, NIL};

/// Why a free tree refused a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A request for no positions.
    #[error("length 0 requested; at least 1 is needed")]
    ZeroLen,
    /// An alignment that is not a power of two.
    #[error("alignment {align:#x} is not a power of two")]
    BadAlign {
        /// What was given.
        align: u64,
    },
    /// An extent that the tree does not manage.
    #[error("{given} is not wholly in the span {span}")]
    OutsideSpan {
        /// What was given.
        given: Extent,
        /// What the tree manages.
        span: Extent,
    },
    /// A second free, whole or in part.
    #[error("{given} cannot be freed: {overlaps} is free already")]
    AlreadyFree {
        /// What was given.
        given: Extent,
        /// The lowest free extent that shares a position with it, whole.
        overlaps: Extent,
    },
    /// A claim on positions that are not free.
    #[error("{given} cannot be taken: {held} is not free")]
    NotFree {
        /// What was given.
        given: Extent,
        /// The lowest run inside it that is not free.
        held: Extent,
    },
    /// One more free extent than the tree has storage for.
    #[error("the call would leave more than {limit} free extents, the limit")]
    OutOfNodes {
        /// The most free extents that this tree can hold.
        limit: usize,
    },
}

/// The free extents of a span.
///
/// ```
/// use glebe::extent::Extent;
/// use glebe::free_tree::FreeTree;
///
/// let span = Extent::new(0, 1024).unwrap();
/// let mut tree = FreeTree::new(span, 64);
/// tree.free(span)?;
/// let first = tree.alloc(10, 1, None)?;
/// assert_eq!(first, Extent::new(0, 10));
/// assert_eq!(tree.alloc(512, 512, None)?, Extent::new(512, 512));
/// assert_eq!(tree.alloc(512, 512, None)?, None);
/// assert_eq!(tree.largest(), 502);
/// # Ok::<(), glebe::free_tree::Error>(())
/// ```
#[derive(Debug)]
pub struct FreeTree {
    span: Extent,
    free_len: u64,
    nodes: Nodes,
}

impl FreeTree {
    /// A tree that manages `span`, of which nothing is free yet, and can hold `max_extents` free
    /// extents.
    ///
    /// Storage for them is allocated here and nowhere else, and touched when first used. Where the
    /// span is too short for so many that do not touch, there is storage for as many as can be.
    ///
    /// # Panics
    /// If the storage is larger than the address space. As with every collection, memory that
    /// cannot be had aborts.
    #[must_use]
    pub fn new(span: Extent, max_extents: usize) -> Self {
        let most = usize::try_from(span.len().div_ceil(2)).unwrap_or(usize::MAX);
        Self { span, free_len: 0, nodes: Nodes::new(span.end(), max_extents.min(most)) }
    }

    /// Takes the lowest `len` positions that start at a multiple of `align` and lie in one free
    /// extent and in `within`; `None` if there are none.
    ///
    /// # Errors
    /// [`Error::ZeroLen`], [`Error::BadAlign`]; [`Error::OutOfNodes`] if the lowest place would
    /// split an extent and there is no storage for the second part.
    pub fn alloc(
        &mut self,
        len: u64,
        align: u64,
        within: Option<Extent>,
    ) -> Result<Option<Extent>, Error> {
        let Some((n, found)) = self.find_node(len, align, within)? else { return Ok(None) };
        self.carve(n, found)?;
        Ok(Some(found))
    }

    /// What [`Self::alloc`] would take, taking nothing.
    ///
    /// # Errors
    /// [`Error::ZeroLen`], [`Error::BadAlign`].
    pub fn find(
        &self,
        len: u64,
        align: u64,
        within: Option<Extent>,
    ) -> Result<Option<Extent>, Error> {
        Ok(self.find_node(len, align, within)?.map(|(_, found)| found))
    }

    /// As [`Self::find`], but the highest such place; `within` nothing.
    ///
    /// # Errors
    /// [`Error::ZeroLen`], [`Error::BadAlign`].
    pub fn find_last(&self, len: u64, align: u64) -> Result<Option<Extent>, Error> {
        check_request(len, align)?;
        let class = self.nodes.class(align);
        let root = self.nodes.root();
        if self.nodes.max(root, class) < len {
            return Ok(None);
        }
        let end = self.nodes.get(self.nodes.last_fit(root, len, class)).end;
        Ok(Extent::new((end - len) & !(align - 1), len))
    }

    /// The lowest place in the shortest free extent in which one is; of equals, the lowest.
    ///
    /// Complexity: O(log n) for each extent that fits, up to one that fits exactly.
    ///
    /// # Errors
    /// [`Error::ZeroLen`], [`Error::BadAlign`].
    pub fn find_best(&self, len: u64, align: u64) -> Result<Option<Extent>, Error> {
        check_request(len, align)?;
        let n = self.nodes.best_fit(len, self.nodes.class(align));
        let place = |n| {
            let start: u64 = self.nodes.get(n).start;
            Extent::new(start + (start.wrapping_neg() & (align - 1)), len)
        };
        Ok(if n == NIL { None } else { place(n) })
    }

    /// Takes `extent`, all of which must be free.
    ///
    /// # Errors
    /// [`Error::OutsideSpan`], [`Error::NotFree`]; [`Error::OutOfNodes`] if that would split a free
    /// extent and there is no storage for the second part.
    pub fn take(&mut self, extent: Extent) -> Result<(), Error> {
        self.check_span(extent)?;
        let (before, after, _) = self.nodes.around(extent.start());
        let (mut held, mut held_end) = (extent.start(), extent.end());
        if before != NIL {
            let end = self.nodes.get(before).end;
            if extent.end() <= end {
                return self.carve(before, extent);
            }
            held = held.max(end);
        }
        if after != NIL {
            held_end = held_end.min(self.nodes.get(after).start);
        }
        Err(Error::NotFree { given: extent, held: between(held, held_end) })
    }

    /// Makes `extent` free, as one with the free extents that it touches.
    ///
    /// # Errors
    /// [`Error::OutsideSpan`]; [`Error::AlreadyFree`] if any of it is free; [`Error::OutOfNodes`]
    /// if it touches no free extent and there is no storage for one more.
    pub fn free(&mut self, extent: Extent) -> Result<(), Error> {
        self.check_span(extent)?;
        let (before, after, after_is_lower) = self.nodes.around(extent.start());
        let (mut joins_before, mut joins_after) = (false, false);
        if before != NIL {
            let node = self.nodes.get(before);
            if node.end > extent.start() {
                return Err(Error::AlreadyFree { given: extent, overlaps: node.extent() });
            }
            joins_before = node.end == extent.start();
        }
        if after != NIL {
            let node = self.nodes.get(after);
            if node.start < extent.end() {
                return Err(Error::AlreadyFree { given: extent, overlaps: node.extent() });
            }
            joins_after = node.start == extent.end();
        }
        match (joins_before, joins_after) {
            (true, true) => self.nodes.join(before, after, after_is_lower),
            (true, false) => {
                let start = self.nodes.get(before).start;
                self.nodes.resize(before, start, extent.end());
            }
            (false, true) => {
                let end = self.nodes.get(after).end;
                self.nodes.resize(after, extent.start(), end);
            }
            (false, false) => {
                self.check_spare_node()?;
                self.nodes.insert(extent, before, after, after_is_lower);
            }
        }
        self.free_len += extent.len();
        Ok(())
    }

    /// Length of the largest free extent, 0 if nothing is free; O(1).
    #[must_use]
    pub fn largest(&self) -> u64 {
        self.nodes.max(self.nodes.root(), 0)
    }

    /// The lowest free extent, whole, that ends after `from` and has at least `min_len` positions.
    #[must_use]
    pub fn next_fit(&self, from: u64, min_len: u64) -> Option<Extent> {
        let min_len = min_len.max(1);
        let (before, rest) = self.search_from(from, min_len, 0);
        if before != NIL {
            let extent = self.nodes.get(before).extent();
            if extent.end() > from && extent.len() >= min_len {
                return Some(extent);
            }
        }
        let n = self.resolve(rest, min_len, 0);
        (n != NIL).then(|| self.nodes.get(n).extent())
    }

    /// The free extent, whole, that `position` lies in.
    #[must_use]
    pub fn containing(&self, position: u64) -> Option<Extent> {
        let (before, ..) = self.nodes.around(position);
        let node = self.nodes.get(before);
        (before != NIL && position < node.end).then(|| node.extent())
    }

    /// Free positions in all.
    #[must_use]
    pub fn free_len(&self) -> u64 {
        self.free_len
    }

    /// Number of free extents.
    #[must_use]
    pub fn extents(&self) -> usize {
        self.nodes.len()
    }

    /// The free extents in address order; O(1) for each on average.
    pub fn iter(&self) -> impl Iterator<Item = Extent> + '_ {
        let some = |n: Index| (n != NIL).then_some(n);
        let first = some(self.nodes.leftmost(self.nodes.root()));
        std::iter::successors(first, move |&n| some(self.nodes.next(n)))
            .map(|n| self.nodes.get(n).extent())
    }

    /// Checks all of the structure in O(n x classes); for tests.
    ///
    /// # Panics
    /// With the broken state, if an invariant does not hold.
    pub fn check_invariants(&self) {
        self.nodes.check();
        let mut free_len = 0;
        for extent in self.iter() {
            assert!(self.span.contains(extent), "{extent} is not in the span {}", self.span);
            free_len += extent.len();
        }
        assert_eq!(self.free_len, free_len, "free positions counted, free positions in extents");
        let largest = self.iter().map(Extent::len).max().unwrap_or(0);
        assert_eq!(self.largest(), largest, "largest free extent by the maxima, by looking");
    }

    /// The node and the place in it that [`Self::alloc`] takes.
    fn find_node(
        &self,
        len: u64,
        align: u64,
        within: Option<Extent>,
    ) -> Result<Option<(Index, Extent)>, Error> {
        check_request(len, align)?;
        let (low, high) = within.map_or((0, u64::MAX), |w| (w.start(), w.end()));
        let Some((n, start)) = self.lowest_place(low, len, align) else { return Ok(None) };
        // No place that the window's start allows is lower, so if this one ends past the window's
        // end, all do.
        let found = Extent::new(start, len).filter(|found| found.end() <= high);
        Ok(found.map(|found| (n, found)))
    }

    /// The lowest place for `len` positions at `low` or above, and the node that it lies in.
    fn lowest_place(&self, low: u64, len: u64, align: u64) -> Option<(Index, u64)> {
        let class = self.nodes.class(align);
        let root = self.nodes.root();
        if self.nodes.max(root, class) < len {
            return None;
        }
        let aligned = |start: u64| start + (start.wrapping_neg() & (align - 1));
        if low <= self.span.start() {
            let n = self.nodes.first_fit(root, len, class);
            return Some((n, aligned(self.nodes.get(n).start)));
        }
        let (before, rest) = self.search_from(low, len, class);
        if before != NIL {
            let end = self.nodes.get(before).end;
            if end > low && usable(low, end, align - 1) >= len {
                return Some((before, aligned(low)));
            }
        }
        let n = self.resolve(rest, len, class);
        (n != NIL).then(|| (n, aligned(self.nodes.get(n).start)))
    }

    /// Splits the search for the first extent with `len` in `class` at `low`: the last extent that
    /// starts before `low`, which the caller must clip, and the lowest node that starts at or after
    /// it of which itself or the right subtree fits. Either may be [`NIL`].
    fn search_from(&self, low: u64, len: u64, class: usize) -> (Index, Index) {
        let (mut before, mut rest) = (NIL, NIL);
        let mut n = self.nodes.root();
        while n != NIL {
            let node = self.nodes.get(n);
            if node.start < low {
                before = n;
                n = node.right;
                continue;
            }
            let own = usable(node.start, node.end, (1 << class) - 1);
            if own.max(self.nodes.max(node.right, class)) >= len {
                rest = n;
            }
            n = node.left;
        }
        (before, rest)
    }

    /// The first fit at or to the right of `rest`, as [`Self::search_from`] left it.
    fn resolve(&self, rest: Index, len: u64, class: usize) -> Index {
        if rest == NIL {
            return NIL;
        }
        let node = self.nodes.get(rest);
        if usable(node.start, node.end, (1 << class) - 1) >= len {
            return rest;
        }
        self.nodes.first_fit(node.right, len, class)
    }

    /// Takes `taken` out of the extent of node `n`, which holds all of it.
    fn carve(&mut self, n: Index, taken: Extent) -> Result<(), Error> {
        let (start, end) = (self.nodes.get(n).start, self.nodes.get(n).end);
        match (start == taken.start(), end == taken.end()) {
            (true, true) => self.nodes.remove(n),
            (true, false) => self.nodes.resize(n, taken.end(), end),
            (false, true) => self.nodes.resize(n, start, taken.start()),
            (false, false) => {
                self.check_spare_node()?;
                self.nodes.split(n, taken.start(), between(taken.end(), end));
            }
        }
        self.free_len -= taken.len();
        Ok(())
    }

    fn check_span(&self, given: Extent) -> Result<(), Error> {
        if self.span.contains(given) {
            return Ok(());
        }
        Err(Error::OutsideSpan { given, span: self.span })
    }

    fn check_spare_node(&self) -> Result<(), Error> {
        if self.nodes.is_full() {
            return Err(Error::OutOfNodes { limit: self.nodes.limit() });
        }
        Ok(())
    }
}

fn check_request(len: u64, align: u64) -> Result<(), Error> {
    if len == 0 {
        return Err(Error::ZeroLen);
    }
    if !align.is_power_of_two() {
        return Err(Error::BadAlign { align });
    }
    Ok(())
}
