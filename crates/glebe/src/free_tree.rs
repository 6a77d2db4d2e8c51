//! Free extents in address order: [`FreeTree`] finds the lowest place that fits.
//!
//! Owns which positions of a span are free, and nothing else: no memory, no pointer. The unit of a
//! position is the caller's (the reserve counts pages). No lock: a caller that shares a tree brings
//! its own.
//!
//! # Structure
//!
//! A B+tree of the free extents, wide and flat, whose nodes are the lanes of a few cache lines and
//! are named by index in storage that is bounded when the tree is made. Each inner node knows, for
//! each child and each [class](Classes) of alignments, the most that one extent below has:
//!
//! ```text
//!                 +----------------------------------------+
//!  keys           |   0    |  900   |  4000  |      |      |      which child has a position
//!  align 1        |   16   |   300  |   80   |      |      |      which child has a fit: the first
//!  align 2        |   15   |   300  |   80   |      |      |      that is no less than the need,
//!  ..             |   ..   |   ..   |   ..   |      |      |      found in one pass over a row
//!                 +---|--------|--------|------------------+
//!            +--------+        +-----------------+-- ..
//!  start     |   3    |   64   |  128   | ..     | ..
//!  length    |   2    |   16   |    1   | ..     | ..
//! ```
//!
//! Positions are kept in 32 bits where the span allows it, from the multiple of 2^32 below its
//! start: a span of less than 2^32 positions is 16 TiB of 4 KiB pages. Others are kept in 64 bits.
//!
//! # Invariants
//!
//! Free extents lie in the span, in order, and never touch: two that would are one. A call that
//! returns an error has changed nothing.
//!
//! # Cost
//!
//! Every call but [`FreeTree::iter`] looks at O(log n) nodes for n free extents, whatever the
//! window, and whatever the alignment if it is one of the tree's [`Classes`], as all are unless
//! told otherwise. No call allocates: [`FreeTree::new`] does once. A
//! change writes one leaf and the maxima that it moves, classes x levels at worst.
//!
//! Source: the idea is "improve vmap allocation" (Linux 2019): free blocks in a tree that is
//! augmented by the size of the largest block below, split by where the taken part lies. Its search
//! can pass the size test of a subtree in which an aligned request fits nowhere; with a maximum for
//! each alignment this one cannot.

mod lanes;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod oracle;
#[cfg(test)]
mod tests;
mod tree;

use std::io::ErrorKind;

use crate::error::OsError;
use crate::extent::Extent;
use lanes::Lane;
use tree::{Entry, Need, NoRoom, Path, Paths, Refused, Tree};

/// Lanes of a node: two cache lines of 32-bit positions.
const FAN_OUT: usize = 32;

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

/// The alignments for which a free tree knows in advance what fits where.
///
/// A request of such an alignment is found in O(log n) in whatever state the tree is. Of others,
/// the answer is the same, but a state can be made in which a search passes by many extents that
/// are long enough and lie badly.
///
/// Each class costs one length for each child of an inner node: with all of them and 32-bit
/// positions, some 8 bytes an extent. A change also has to look at each class of which the changed
/// extent has a multiple inside, which is those up to its length and seldom more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Classes {
    /// All powers of two.
    #[default]
    All,
    /// None but 1.
    None,
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
    /// What the tree counts from.
    base: u64,
    free_len: u64,
    tree: Width,
    /// The ways to what was changed last.
    paths: Paths,
}

/// The tree, by the bits of a position and by fan-out.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // a tree has one of them for life
enum Width {
    Narrow(Tree<u32, FAN_OUT>),
    Wide(Tree<u64, FAN_OUT>),
    /// Few lanes make a deep tree of few extents.
    #[cfg(any(test, fuzzing))]
    DeepNarrow(Tree<u32, 4>),
    #[cfg(any(test, fuzzing))]
    DeepWide(Tree<u64, 4>),
}

/// Calls the same of each.
macro_rules! on {
    ($width:expr, $tree:ident => $call:expr) => {
        match $width {
            Width::Narrow($tree) => $call,
            Width::Wide($tree) => $call,
            #[cfg(any(test, fuzzing))]
            Width::DeepNarrow($tree) => $call,
            #[cfg(any(test, fuzzing))]
            Width::DeepWide($tree) => $call,
        }
    };
}

impl FreeTree {
    /// A tree that manages `span`, of which nothing is free yet, and can hold `max_extents` free
    /// extents, with a class for every alignment.
    ///
    /// Storage for them is allocated here and nowhere else, and touched when first used. Where the
    /// span is too short for so many that do not touch, there is storage for as many as can be.
    ///
    /// # Panics
    /// If memory for the storage cannot be had; [`Self::with_classes`] says so instead.
    #[must_use]
    pub fn new(span: Extent, max_extents: usize) -> Self {
        let made = Self::with_classes(span, max_extents, Classes::All);
        made.unwrap_or_else(|why| panic!("{why}"))
    }

    /// As [`Self::new`], but only requests of the given classes of alignments are sure to take
    /// O(log n), and memory may be short.
    ///
    /// # Errors
    /// If memory for the storage cannot be had, with how much that is.
    pub fn with_classes(
        span: Extent,
        max_extents: usize,
        classes: Classes,
    ) -> Result<Self, OsError> {
        let mut all = Self::without_storage(span, max_extents, classes);
        all.make_storage()?;
        Ok(all)
    }

    fn without_storage(span: Extent, max_extents: usize, classes: Classes) -> Self {
        let most = usize::try_from(span.len().div_ceil(2)).unwrap_or(usize::MAX);
        let limit = max_extents.min(most);
        let base = span.start() & !u64::from(u32::MAX);
        let (base, tree) = if span.end() - base <= u64::from(u32::MAX) {
            let end = span.end() - base;
            (base, Width::Narrow(Tree::without_storage(end, limit, classes)))
        } else {
            (0, Width::Wide(Tree::without_storage(span.end(), limit, classes)))
        };
        Self { span, base, free_len: 0, tree, paths: Paths::new() }
    }

    fn make_storage(&mut self) -> Result<(), OsError> {
        let (made, limit) = on!(&mut self.tree, tree => (tree.make_storage(), tree.limit()));
        made.map_err(|NoRoom { bytes }| {
            let what = format!("{bytes} bytes for {limit} free extents");
            OsError::new("malloc", what, ErrorKind::OutOfMemory.into())
        })
    }

    /// A tree of the smallest fan-out, which few extents make deep.
    #[cfg(any(test, fuzzing))]
    #[doc(hidden)]
    #[must_use]
    pub fn deep(span: Extent, max_extents: usize, classes: Classes) -> Self {
        let mut all = Self::without_storage(span, 0, classes);
        let most = usize::try_from(span.len().div_ceil(2)).unwrap_or(usize::MAX);
        let (end, limit, logs) = (span.end() - all.base, max_extents.min(most), classes);
        all.tree = match all.tree {
            Width::Narrow(_) => Width::DeepNarrow(Tree::without_storage(end, limit, logs)),
            _ => Width::DeepWide(Tree::without_storage(end, limit, logs)),
        };
        all.make_storage().expect("memory");
        all
    }

    /// Takes the lowest `len` positions that start at a multiple of `align` and lie in one free
    /// extent and in `within`; `None` if there are none.
    ///
    /// # Errors
    /// [`Error::ZeroLen`], [`Error::BadAlign`]; [`Error::OutOfNodes`] if the lowest place would
    /// split an extent and there is no storage for the second part.
    #[inline]
    pub fn alloc(
        &mut self,
        len: u64,
        align: u64,
        within: Option<Extent>,
    ) -> Result<Option<Extent>, Error> {
        let Some(window) = self.window(len, align, within)? else { return Ok(None) };
        let few = on!(&mut self.tree, tree => {
            tree.take_of_few(&Need::of(len, align, window)).map(Lane::get)
        });
        let start = match few {
            Some(start) => start,
            None => match self.alloc_of_many(len, align, window)? {
                Some(start) => start,
                None => return Ok(None),
            },
        };
        self.free_len -= len;
        Ok(Extent::new(self.base + start, len))
    }

    /// Takes what [`Self::alloc`] is asked for from a tree of any size; where it lies.
    #[inline(never)] // so that little is to be kept while a tree of few extents is looked at
    fn alloc_of_many(
        &mut self,
        len: u64,
        align: u64,
        window: (u64, u64),
    ) -> Result<Option<u64>, Error> {
        on!(&mut self.tree, tree => {
            match tree.take_lowest(&mut self.paths, &Need::of(len, align, window)) {
                Ok(place) => Ok(place.map(Lane::get)),
                Err(_) => Err(Error::OutOfNodes { limit: tree.limit() }),
            }
        })
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
        let Some(window) = self.window(len, align, within)? else { return Ok(None) };
        let place = on!(&self.tree, tree => {
            let need = Need::of(len, align, window);
            tree.find(&need, &mut Path::new()).map(|(_, at)| at.get())
        });
        Ok(place.and_then(|start| Extent::new(self.base + start, len)))
    }

    /// Takes `extent`, all of which must be free.
    ///
    /// # Errors
    /// [`Error::OutsideSpan`], [`Error::NotFree`]; [`Error::OutOfNodes`] if that would split a free
    /// extent and there is no storage for the second part.
    pub fn take(&mut self, extent: Extent) -> Result<(), Error> {
        self.check_span(extent)?;
        let at = extent.start() - self.base;
        let (before, after) = on!(&mut self.tree, tree => {
            let (spot, path) = tree.locate(Lane::of(at), &mut self.paths);
            let mut way = path.clone();
            let before = tree.before(&mut way, spot).map(|spot| (spot, tree.entry(spot)));
            let before = before.map(|(spot, (start, len))| (spot, start.get() + len.get()));
            if let Some((spot, end)) = before {
                if at + extent.len() <= end {
                    *path = way;
                    let carved = tree.carve(path, spot, Lane::of(at), Lane::of(extent.len()));
                    carved.map_err(|_| Error::OutOfNodes { limit: tree.limit() })?;
                    self.free_len -= extent.len();
                    return Ok(());
                }
            }
            let after = tree.after(path, spot).map(|spot| tree.entry(spot).0.get());
            (before.map(|(_, end)| end), after)
        });
        let held = extent.start().max(before.map_or(0, |end| self.base + end));
        let held_end = extent.end().min(after.map_or(u64::MAX, |start| self.base + start));
        Err(Error::NotFree { given: extent, held: between(held, held_end) })
    }

    /// Makes `extent` free, as one with the free extents that it touches.
    ///
    /// # Errors
    /// [`Error::OutsideSpan`]; [`Error::AlreadyFree`] if any of it is free; [`Error::OutOfNodes`]
    /// if it touches no free extent and there is no storage for one more.
    #[inline]
    pub fn free(&mut self, extent: Extent) -> Result<(), Error> {
        self.check_span(extent)?;
        let at = extent.start() - self.base;
        let few = on!(&mut self.tree, tree => {
            tree.add_to_few(Lane::of(at), Lane::of(extent.len()))
        });
        if !few {
            self.add_to_many(extent)?;
        }
        self.free_len += extent.len();
        Ok(())
    }

    /// Adds what [`Self::free`] is given to a tree of any size.
    #[inline(never)] // as `alloc_of_many`
    fn add_to_many(&mut self, extent: Extent) -> Result<(), Error> {
        let at = extent.start() - self.base;
        on!(&mut self.tree, tree => {
            match tree.add(&mut self.paths, Lane::of(at), Lane::of(extent.len())) {
                Ok(()) => Ok(()),
                Err(Refused::Full) => Err(Error::OutOfNodes { limit: tree.limit() }),
                Err(Refused::Overlaps((start, len))) => {
                    let start = self.base + start.get();
                    let overlaps = between(start, start + len.get());
                    Err(Error::AlreadyFree { given: extent, overlaps })
                }
            }
        })
    }

    /// Length of the largest free extent, 0 if nothing is free; O(1).
    #[must_use]
    pub fn largest(&self) -> u64 {
        on!(&self.tree, tree => tree.largest().get())
    }

    /// The lowest free extent, whole, that ends after `from` and has at least `min_len` positions.
    #[must_use]
    pub fn next_fit(&self, from: u64, min_len: u64) -> Option<Extent> {
        if let Some(extent) = self.containing(from).filter(|extent| extent.len() >= min_len) {
            return Some(extent);
        }
        if min_len > self.span.len() {
            return None;
        }
        let window = (from.saturating_sub(self.base), u64::MAX);
        on!(&self.tree, tree => {
            let found = tree.find(&Need::of(min_len.max(1), 1, window), &mut Path::new());
            found.map(|(spot, _)| self.extent(tree.entry(spot)))
        })
    }

    /// The free extent, whole, that `position` lies in.
    #[must_use]
    pub fn containing(&self, position: u64) -> Option<Extent> {
        let at = position.checked_sub(self.base)?;
        let before = on!(&self.tree, tree => {
            let mut path = Path::new();
            let spot = tree.descend(Lane::of(at), &mut path);
            tree.before(&mut path, spot).map(|spot| self.extent(tree.entry(spot)))
        });
        before.filter(|extent| position < extent.end())
    }

    /// Free positions in all.
    #[must_use]
    pub fn free_len(&self) -> u64 {
        self.free_len
    }

    /// Number of free extents.
    #[must_use]
    pub fn extents(&self) -> usize {
        on!(&self.tree, tree => tree.len())
    }

    /// The free extents in address order; O(log n) for each.
    pub fn iter(&self) -> impl Iterator<Item = Extent> + '_ {
        let mut from = 0;
        std::iter::from_fn(move || {
            let extent = self.next_fit(from, 1)?;
            from = extent.end();
            Some(extent)
        })
    }

    /// Bytes of storage that hold the free extents now, spare nodes left out.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        on!(&self.tree, tree => tree.used_bytes())
    }

    /// Checks all of the structure in O(n x classes); panics, with the broken state, if an
    /// invariant does not hold.
    #[cfg(any(test, fuzzing))]
    fn check_invariants(&self) {
        on!(&self.tree, tree => tree.check());
        let mut free_len = 0;
        for extent in self.iter() {
            assert!(self.span.contains(extent), "{extent} is not in the span {}", self.span);
            free_len += extent.len();
        }
        assert_eq!(self.free_len, free_len, "free positions counted, free positions in extents");
        let largest = self.iter().map(Extent::len).max().unwrap_or(0);
        assert_eq!(self.largest(), largest, "largest free extent by the maxima, by looking");
    }

    /// As on a processor that has none but those that all have.
    #[cfg(test)]
    fn use_plain_vectors(&mut self) {
        on!(&mut self.tree, tree => tree.use_plain_vectors());
    }

    /// What the storage has room for, which no call may change.
    #[cfg(test)]
    fn capacity(&self) -> [usize; 5] {
        on!(&self.tree, tree => tree.capacity())
    }

    /// The window of a request in the tree's positions, from its low end up to its high one; `None`
    /// if no place can be as it asks.
    #[inline]
    fn window(
        &self,
        len: u64,
        align: u64,
        within: Option<Extent>,
    ) -> Result<Option<(u64, u64)>, Error> {
        if len == 0 {
            return Err(Error::ZeroLen);
        }
        if !align.is_power_of_two() {
            return Err(Error::BadAlign { align });
        }
        // The base is a multiple of all alignments that a narrow tree can tell apart, so that for a
        // larger one, only the base itself could be aligned.
        if len > self.span.len() || self.base & (align - 1) != 0 {
            return Ok(None);
        }
        let Some(within) = within else { return Ok(Some((0, u64::MAX))) };
        let low = match within.start() > self.span.start() {
            true => within.start() - self.base,
            false => 0,
        };
        Ok(within.end().checked_sub(self.base).map(|high| (low, high)))
    }

    /// An entry of the tree as the caller counts.
    #[inline]
    fn extent<L: Lane>(&self, (start, len): Entry<L>) -> Extent {
        let start = self.base + start.get();
        between(start, start + len.get())
    }

    #[inline]
    fn check_span(&self, given: Extent) -> Result<(), Error> {
        if self.span.contains(given) {
            return Ok(());
        }
        Err(Error::OutsideSpan { given, span: self.span })
    }
}

/// The extent `start..end`, of bounds whose order an invariant gives.
#[inline]
fn between(start: u64, end: u64) -> Extent {
    let extent = end.checked_sub(start).and_then(|len| Extent::new(start, len));
    extent.unwrap_or_else(|| panic!("bounds {start:#x}..{end:#x} of a free extent"))
}
