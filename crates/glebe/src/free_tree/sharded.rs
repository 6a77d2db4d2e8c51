//! [`Sharded`]: one span for many threads, each of which mostly works on a part of its own.
//!
//! The span is cut into *parts* of equal length, each a [`FreeTree`] behind its own lock. **A
//! position is free in the tree of its part or nowhere**, so that a second free, a free of what was
//! never taken and a claim on what is held are the errors that they are in one tree, whichever
//! threads make them. (Caches of freed extents by size, as the kernel's and many an allocator's,
//! could not tell: an extent freed twice lies in two of them, and is given to two.)
//!
//! A thread allocates from the part of its lane, then from the others in turn. What no part has may
//! still lie across borders of parts: before a request is refused, that is looked for under all
//! locks. So none fails that one tree would not refuse, and what is given up is the lowest place.
//! A [`FreeTree`] behind one lock is exact, and as fast for one thread.
//!
//! Locks: those of the parts, in ascending order. Nothing is allocated under them. Cost: one lock
//! that others seldom want and O(log n); across borders all locks. Source: arenas by address, as in
//! Hoard (Berger and others, 2000).

use super::{between, Error, FreeTree};
use crate::extent::Extent;
use crate::sync::{lock, Mutex, MutexGuard};

/// Parts of a span; the model checker has enough with two.
pub(crate) const PARTS: usize = if cfg!(loom) { 2 } else { 16 };
/// Least storage of a part.
const EXTENTS_MIN: usize = 64;

/// The free extents of a span, for many threads.
///
/// ```
/// use glebe::extent::Extent;
/// use glebe::free_tree::Sharded;
///
/// let span = Extent::new(0, 1 << 20).unwrap();
/// let tree = Sharded::new(span, 1 << 10);
/// tree.free(span)?;
/// std::thread::scope(|scope| {
///     for _ in 0..4 {
///         scope.spawn(|| {
///             let mine = tree.alloc(10, 1)?.expect("there is room");
///             tree.free(mine)
///         });
///     }
/// });
/// assert_eq!((tree.free_len(), tree.largest()), (1 << 20, 1 << 20));
/// # Ok::<(), glebe::free_tree::Error>(())
/// ```
#[derive(Debug)]
pub struct Sharded {
    span: Extent,
    /// log2 of the positions of a part; of the first and the last the span may have fewer.
    part_log: u32,
    parts: Box<[Part]>,
}

/// On cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Part(Mutex<FreeTree>);

/// Every part, locked.
type All<'a> = Vec<MutexGuard<'a, FreeTree>>;

impl Sharded {
    /// A span of which nothing is free yet, with storage for `max_extents` free extents, of which
    /// half may lie in one part.
    ///
    /// # Panics
    /// As [`FreeTree::new`].
    #[must_use]
    pub fn new(span: Extent, max_extents: usize) -> Self {
        let part_log = span.len().div_ceil(PARTS as u64).next_power_of_two().ilog2();
        let mut all = Self { span, part_log, parts: Box::new([]) };
        let own = (max_extents / 2).max(EXTENTS_MIN);
        let made = (0..=all.part_of(span.end() - 1)).map(|n| FreeTree::new(all.part(n), own));
        all.parts = made.map(|tree| Part(Mutex::new(tree))).collect();
        all
    }

    /// Takes `len` positions that start at a multiple of `align`, near others of the calling
    /// thread's; `None` if nowhere are so many.
    ///
    /// # Errors
    /// [`Error::ZeroLen`], [`Error::BadAlign`]; [`Error::OutOfNodes`] as [`FreeTree::alloc`].
    #[inline]
    pub fn alloc(&self, len: u64, align: u64) -> Result<Option<Extent>, Error> {
        self.alloc_on(crate::stats::lane(), len, align)
    }

    /// As [`Sharded::alloc`], for a thread of the lane `home`.
    #[inline]
    pub(crate) fn alloc_on(
        &self,
        home: usize,
        len: u64,
        align: u64,
    ) -> Result<Option<Extent>, Error> {
        let own = &self.parts[home % self.parts.len()];
        let taken = lock(&own.0).alloc(len, align, None);
        match taken {
            Ok(None) | Err(Error::OutOfNodes { .. }) => self.alloc_elsewhere(home, len, align),
            taken => taken,
        }
    }

    /// For a thread whose part has not what is asked for.
    #[cold]
    fn alloc_elsewhere(&self, home: usize, len: u64, align: u64) -> Result<Option<Extent>, Error> {
        for nth in 1..self.parts.len() {
            let other = &self.parts[(home + nth) % self.parts.len()];
            if let taken @ Ok(Some(_)) = lock(&other.0).alloc(len, align, None) {
                return taken;
            }
        }
        let mut all = self.all();
        let mut refused = None;
        for tree in &mut all {
            match tree.alloc(len, align, None) {
                Ok(None) => {}
                Err(full) => refused = Some(full),
                taken => return taken,
            }
        }
        let fit = |run: Extent| {
            let place = Extent::new(run.start().checked_next_multiple_of(align)?, len)?;
            run.contains(place).then_some(place)
        };
        let place = self.joined(&all).find_map(fit);
        if let Some(place) = place {
            self.apply(&mut all, place, FreeTree::take, FreeTree::free)?;
            return Ok(Some(place));
        }
        refused.map_or(Ok(None), Err)
    }

    /// Takes `extent`, all of which must be free.
    ///
    /// # Errors
    /// As [`FreeTree::take`]. Of an extent that is not free, `held` may begin or end at a border of
    /// parts.
    pub fn take(&self, extent: Extent) -> Result<(), Error> {
        self.change(extent, FreeTree::take, FreeTree::free)
    }

    /// Makes `extent` free, as one with the free extents that it touches.
    ///
    /// # Errors
    /// As [`FreeTree::free`], whichever thread freed it before. Of an extent that is free already,
    /// `overlaps` may begin or end at a border of parts.
    #[inline]
    pub fn free(&self, extent: Extent) -> Result<(), Error> {
        self.change(extent, FreeTree::free, FreeTree::take)
    }

    /// Has each part that `extent` lies in changed, or none.
    #[inline]
    fn change(&self, extent: Extent, change: Change, undo: Change) -> Result<(), Error> {
        if !self.span.contains(extent) {
            return Err(Error::OutsideSpan { given: extent, span: self.span });
        }
        let [first, last] = [extent.start(), extent.end() - 1].map(|at| self.part_of(at));
        if first == last {
            return change(&mut lock(&self.parts[first].0), extent);
        }
        self.apply(&mut self.all(), extent, change, undo)
    }

    /// As [`Sharded::change`], where all locks are held.
    #[cold]
    fn apply(
        &self,
        all: &mut All<'_>,
        extent: Extent,
        change: Change,
        undo: Change,
    ) -> Result<(), Error> {
        for n in self.part_of(extent.start())..=self.part_of(extent.end() - 1) {
            let Some(piece) = self.part(n).intersection(extent) else { continue };
            let Err(error) = change(&mut all[n], piece) else { continue };
            if let Some(done) = Extent::new(extent.start(), piece.start() - extent.start()) {
                self.apply(all, done, undo, change).expect("as it was just before");
            }
            return Err(match error {
                Error::NotFree { held, .. } => Error::NotFree { given: extent, held },
                Error::AlreadyFree { overlaps, .. } => {
                    Error::AlreadyFree { given: extent, overlaps }
                }
                error => error,
            });
        }
        Ok(())
    }

    /// Length of the largest free extent, 0 if nothing is free.
    #[must_use]
    pub fn largest(&self) -> u64 {
        let all = self.all();
        let own = all.iter().map(|tree| tree.largest()).max().unwrap_or(0);
        self.joined(&all).map(Extent::len).fold(own, u64::max)
    }

    /// Free positions in all.
    #[must_use]
    pub fn free_len(&self) -> u64 {
        self.all().iter().map(|tree| tree.free_len()).sum()
    }

    /// Checks all of the structure.
    #[cfg(all(test, not(loom)))]
    fn check_invariants(&self) {
        self.all().iter().for_each(|tree| tree.check_invariants());
    }

    /// What is free across each border, and across those before it.
    fn joined<'a>(&'a self, all: &'a All<'_>) -> impl Iterator<Item = Extent> + 'a {
        let mut last: Option<Extent> = None;
        (1..all.len()).filter_map(move |n| {
            let border = self.part(n).start();
            let left = all[n - 1].containing(border - 1)?;
            let right = all[n].containing(border)?;
            let before = last.filter(|last| last.end() == border).unwrap_or(left);
            last = Some(between(before.start(), right.end()));
            last
        })
    }

    #[inline]
    fn part_of(&self, position: u64) -> usize {
        ((position >> self.part_log) - (self.span.start() >> self.part_log)) as usize
    }

    /// What the span has of a part.
    fn part(&self, n: usize) -> Extent {
        let start = ((self.span.start() >> self.part_log) + n as u64) << self.part_log;
        let end = start.saturating_add(1 << self.part_log);
        between(start.max(self.span.start()), end.min(self.span.end()))
    }

    fn all(&self) -> All<'_> {
        let mut all = Vec::with_capacity(self.parts.len());
        all.extend(self.parts.iter().map(|part| lock(&part.0)));
        all
    }
}

/// A change of one part.
type Change = fn(&mut FreeTree, Extent) -> Result<(), Error>;

#[cfg(all(test, not(loom)))]
mod tests;
