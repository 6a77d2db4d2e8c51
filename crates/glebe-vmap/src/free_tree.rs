//! [`FreeTree`] holds free extents in address order and finds the lowest place that fits.
//!
//! The caller chooses the unit and locks a shared tree.
//!
//! # Structure
//!
//! A wide, flat B+tree has nodes of a few cache lines. An inner node has a row for each alignment
//! of the [`Classes`]. The row holds, for each child, the length of the largest aligned place below
//! the child:
//!
//! ```text
//!                 +----------------------------------------+
//!  keys           |   0    |  900   |  4000  |      |      |    finds a position's child
//!  align 1        |   16   |   300  |   80   |      |      |    one pass over an alignment's row
//!  align 2        |   15   |   300  |   80   |      |      |    finds the first child with room
//!  ..             |   ..   |   ..   |   ..   |      |      |
//!                 +---|--------|--------|------------------+
//!            +--------+        +-----------------+-- ..
//!  start     |   3    |   64   |  128   | ..     | ..
//!  length    |   2    |   16   |    1   | ..     | ..
//! ```
//!
//! Nodes hold positions as 32 bits above a multiple of 2^32 if the span allows it, else as 64 bits.
//!
//! # Invariants
//!
//! Free extents lie in the span, in order, and never touch. A failed call changes nothing.
//!
//! # Cost
//!
//! A call reads O(log n) nodes for n free extents if the alignment is in the [`Classes`], except
//! [`FreeTree::iter`]. Only creating a tree allocates.
//!
//! Source: "improve vmap allocation" (Linux 2019), whose nodes hold one maximum.

mod lanes;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod oracle;
#[cfg(test)]
mod tests;
mod tree;

use std::io::ErrorKind;

use glebe_os::error::OsError;
use glebe_os::extent::Extent;
use lanes::Lane;
use tree::{Entry, Need, NoRoom, Path, Paths, Refused, Tree};

/// Most entries of a node. A row of 32-bit positions fills two cache lines.
const FAN_OUT: usize = 32;

/// A refusal of a free tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FreeTreeError {
    /// A request for zero positions.
    #[error("length 0 requested; at least 1 is needed")]
    ZeroLen,
    /// An alignment that is not a power of two.
    #[error("alignment {align:#x} is not a power of two")]
    BadAlign {
        /// The alignment given.
        align: u64,
    },
    /// An extent that is not wholly in the span.
    #[error("{given} is not wholly in the span {span}")]
    OutsideSpan {
        /// The extent given.
        given: Extent,
        /// The span of the tree.
        span: Extent,
    },
    /// Positions to free are free already.
    #[error("{given} cannot be freed: {overlaps} is free already")]
    AlreadyFree {
        /// The extent given.
        given: Extent,
        /// The lowest free extent that overlaps it.
        overlaps: Extent,
    },
    /// Positions to take are not free.
    #[error("{given} cannot be taken: {held} is not free")]
    NotFree {
        /// The extent given.
        given: Extent,
        /// The lowest run in it that is not free.
        held: Extent,
    },
    /// No storage for another free extent.
    #[error("the call would leave more than {limit} free extents, the limit")]
    OutOfNodes {
        /// The most free extents.
        limit: usize,
    },
}

/// The alignments for which a tree finds a place in O(log n).
///
/// For other alignments, a search may visit many extents that are long enough but misaligned.
/// [`Classes::All`] costs about 8 bytes per extent with 32-bit positions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Classes {
    /// All powers of two, except those with few multiples in the span.
    #[default]
    All,
    /// Only 1.
    None,
}

/// The free extents of a span.
///
/// ```
/// use glebe_vmap::extent::Extent;
/// use glebe_vmap::free_tree::FreeTree;
///
/// let span = Extent::new(0, 1024).unwrap();
/// let mut tree = FreeTree::new(span, 64);
/// tree.free(span)?;
/// let first = tree.alloc(10, 1, None)?;
/// assert_eq!(first, Extent::new(0, 10));
/// assert_eq!(tree.alloc(512, 512, None)?, Extent::new(512, 512));
/// assert_eq!(tree.alloc(512, 512, None)?, None);
/// assert_eq!(tree.largest(), 502);
/// # Ok::<(), glebe_vmap::free_tree::FreeTreeError>(())
/// ```
#[derive(Debug)]
pub struct FreeTree {
    span: Extent,
    base: u64,
    free_len: u64,
    tree: Width,
    paths: Paths,
}

#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // a tree never changes its variant
enum Width {
    Narrow(Tree<u32, FAN_OUT>),
    Wide(Tree<u64, FAN_OUT>),
    #[cfg(any(test, fuzzing))]
    DeepNarrow(Tree<u32, 4>),
    #[cfg(any(test, fuzzing))]
    DeepWide(Tree<u64, 4>),
}

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
    /// Creates a tree with all classes, no free position, and room for `max_extents` free extents,
    /// or fewer if `span` holds fewer.
    ///
    /// # Panics
    /// If memory is short.
    #[must_use]
    pub fn new(span: Extent, max_extents: usize) -> Self {
        let made = Self::with_classes(span, max_extents, Classes::All);
        made.unwrap_or_else(|why| panic!("{why}"))
    }

    /// Creates a tree with `classes`, otherwise like [`FreeTree::new`].
    ///
    /// # Errors
    /// If memory is short.
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

    /// Creates a tree of fan-out 4.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn deep(span: Extent, max_extents: usize, classes: Classes) -> Self {
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

    /// Takes the lowest `len` free positions in a row that start at a multiple of `align` and lie
    /// in `within`. Returns `None` if no place fits.
    ///
    /// # Errors
    /// [`FreeTreeError::ZeroLen`], [`FreeTreeError::BadAlign`]; [`FreeTreeError::OutOfNodes`] if
    /// this splits an extent and storage is full.
    #[inline]
    pub fn alloc(
        &mut self,
        len: u64,
        align: u64,
        within: Option<Extent>,
    ) -> Result<Option<Extent>, FreeTreeError> {
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

    #[inline(never)] // keeps registers free for the path with few extents
    fn alloc_of_many(
        &mut self,
        len: u64,
        align: u64,
        window: (u64, u64),
    ) -> Result<Option<u64>, FreeTreeError> {
        on!(&mut self.tree, tree => {
            match tree.take_lowest(&mut self.paths, &Need::of(len, align, window)) {
                Ok(place) => Ok(place.map(Lane::get)),
                Err(_) => Err(FreeTreeError::OutOfNodes { limit: tree.limit() }),
            }
        })
    }

    /// Returns the extent that [`Self::alloc`] would take.
    ///
    /// # Errors
    /// [`FreeTreeError::ZeroLen`], [`FreeTreeError::BadAlign`].
    pub fn find(
        &self,
        len: u64,
        align: u64,
        within: Option<Extent>,
    ) -> Result<Option<Extent>, FreeTreeError> {
        let Some(window) = self.window(len, align, within)? else { return Ok(None) };
        let place = on!(&self.tree, tree => {
            let need = Need::of(len, align, window);
            tree.find(&need, &mut Path::new()).map(|(_, at)| at.get())
        });
        Ok(place.and_then(|start| Extent::new(self.base + start, len)))
    }

    /// Takes `extent`, which must be wholly free.
    ///
    /// # Errors
    /// [`FreeTreeError::OutsideSpan`], [`FreeTreeError::NotFree`]; [`FreeTreeError::OutOfNodes`] as
    /// for [`Self::alloc`].
    pub fn take(&mut self, extent: Extent) -> Result<(), FreeTreeError> {
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
                    carved.map_err(|_| FreeTreeError::OutOfNodes { limit: tree.limit() })?;
                    self.free_len -= extent.len();
                    return Ok(());
                }
            }
            let after = tree.after(path, spot).map(|spot| tree.entry(spot).0.get());
            (before.map(|(_, end)| end), after)
        });
        let held = extent.start().max(before.map_or(0, |end| self.base + end));
        let held_end = extent.end().min(after.map_or(u64::MAX, |start| self.base + start));
        Err(FreeTreeError::NotFree { given: extent, held: between(held, held_end) })
    }

    /// Frees `extent` and joins it with its free neighbours.
    ///
    /// # Errors
    /// [`FreeTreeError::OutsideSpan`], [`FreeTreeError::AlreadyFree`];
    /// [`FreeTreeError::OutOfNodes`] if `extent` has no free neighbour and storage is full.
    #[inline]
    pub fn free(&mut self, extent: Extent) -> Result<(), FreeTreeError> {
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

    #[inline(never)] // like `alloc_of_many`
    fn add_to_many(&mut self, extent: Extent) -> Result<(), FreeTreeError> {
        let at = extent.start() - self.base;
        on!(&mut self.tree, tree => {
            match tree.add(&mut self.paths, Lane::of(at), Lane::of(extent.len())) {
                Ok(()) => Ok(()),
                Err(Refused::Full) => Err(FreeTreeError::OutOfNodes { limit: tree.limit() }),
                Err(Refused::Overlaps((start, len))) => {
                    let start = self.base + start.get();
                    let overlaps = between(start, start + len.get());
                    Err(FreeTreeError::AlreadyFree { given: extent, overlaps })
                }
            }
        })
    }

    /// Returns the length of the largest free extent, or 0; O(1).
    #[must_use]
    pub fn largest(&self) -> u64 {
        on!(&self.tree, tree => tree.largest().get())
    }

    /// Returns the lowest whole free extent that ends after `from` and has at least `min_len`
    /// positions.
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

    /// Returns the whole free extent around `position`.
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

    /// Returns the number of free positions.
    #[must_use]
    pub fn free_len(&self) -> u64 {
        self.free_len
    }

    /// Returns the number of free extents.
    #[must_use]
    pub fn extents(&self) -> usize {
        on!(&self.tree, tree => tree.len())
    }

    /// Returns the free extents in address order; O(log n) each.
    pub fn iter(&self) -> impl Iterator<Item = Extent> + '_ {
        let mut from = 0;
        std::iter::from_fn(move || {
            let extent = self.next_fit(from, 1)?;
            from = extent.end();
            Some(extent)
        })
    }

    /// Returns the bytes of nodes in use.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        on!(&self.tree, tree => tree.used_bytes())
    }

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

    #[cfg(test)]
    fn use_plain_vectors(&mut self) {
        on!(&mut self.tree, tree => tree.use_plain_vectors());
    }

    #[cfg(test)]
    fn capacity(&self) -> [usize; 5] {
        on!(&self.tree, tree => tree.capacity())
    }

    /// Returns `None` if nothing can fit.
    #[inline]
    fn window(
        &self,
        len: u64,
        align: u64,
        within: Option<Extent>,
    ) -> Result<Option<(u64, u64)>, FreeTreeError> {
        if len == 0 {
            return Err(FreeTreeError::ZeroLen);
        }
        if !align.is_power_of_two() {
            return Err(FreeTreeError::BadAlign { align });
        }
        // A nonzero `base` is a multiple of 2^32, less than 2^32 below the span's end. An `align`
        // that does not divide `base` exceeds 2^32, so has no multiple in the span.
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

    #[inline]
    fn extent<L: Lane>(&self, (start, len): Entry<L>) -> Extent {
        let start = self.base + start.get();
        between(start, start + len.get())
    }

    #[inline]
    fn check_span(&self, given: Extent) -> Result<(), FreeTreeError> {
        if self.span.contains(given) {
            return Ok(());
        }
        Err(FreeTreeError::OutsideSpan { given, span: self.span })
    }
}

#[inline]
fn between(start: u64, end: u64) -> Extent {
    let extent = end.checked_sub(start).and_then(|len| Extent::new(start, len));
    extent.unwrap_or_else(|| panic!("bounds {start:#x}..{end:#x} of a free extent"))
}
