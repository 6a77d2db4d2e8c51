//! [`Sharded`]: one span for many threads, each of which mostly works on a free tree of its own.
//!
//! The span is cut into *zones*, aligned and of equal length. Each zone has an owner: the common
//! tree, or one of a fixed number of *shards*, every one a free tree behind its own lock.
//!
//! ```text
//!  zones    |  0  |  1  |  2  |  3  |  4  |  5  |  6  | ..
//!  owner    |  -  |  A  |  A  |  B  |  -  |  A  |  -  | ..      -: the common tree
//! ```
//!
//! **Invariant: a position is free in its zone's owner's tree or in none.** So there is one place
//! to ask, and a second free, a free of what was never taken and a claim on what is held are the
//! errors that they are in a [`FreeTree`], whichever threads make them. (Caches of freed extents by
//! size, as the kernel's and many an allocator's, could not tell: an extent freed twice lies in two
//! of them, and is given to two.)
//!
//! A thread allocates from its shard. A shard without a fit takes over the lowest zone that is
//! wholly free; where none is, the common tree serves the request itself, then other shards do.
//! An extent goes back to the owner of its zone, whoever frees it. A shard keeps one zone that has
//! become wholly free, and returns others, looking every [`LOOK_EVERY`] frees. Before a request is
//! refused everything is *drained* into the common tree, so that none fails that would not fail
//! there. Requests longer than an eighth of a zone or with a window go to the common tree at once.
//!
//! What this gives up: the lowest place. Threads get the lowest of their own zones. A
//! [`FreeTree`] behind one lock is exact, and as fast for one thread.
//!
//! # Locks
//! Shards, in ascending order, then the common tree. A zone changes hands under both owners'
//! locks, so that either keeps it; a free looks at the owner before it has a lock, and again when
//! it has. Nothing is allocated under a lock.
//!
//! # Cost
//! A lock that others seldom want, and O(log n) of a shard's extents. To take over or return a
//! zone: both locks, O(log n). To drain: all locks, O(n log n) for n extents in shards; after that
//! they hold nothing, so that requests refused in a row drain nothing but once.
//!
//! Storage is bounded: the common tree's is for as many extents as asked for and the borders of
//! zones, a shard's for half as many; a shard that is full gives its zones back.
//!
//! Source: per-processor heaps with owners by address, as in Hoard (Berger and others, 2000), and
//! the `vmap_node` zones of the kernel's `mm/vmalloc.c`.

use super::{Classes, Error, FreeTree};
use crate::extent::Extent;
use crate::sync::{lock, AtomicU64, Mutex, MutexGuard, Ordering};

/// Shards of a span; the model checker has enough with two.
pub(crate) const SHARDS: usize = if cfg!(loom) { 2 } else { 16 };
/// The owner that is no shard.
const COMMON: u64 = u64::MAX;
/// log2 of the zones of a long span, and of the positions of the shortest zone.
const ZONES_LOG: u32 = 10;
const ZONE_LOG_MIN: u32 = 10;
/// A zone serves requests up to one such part of it.
const PARTS: u64 = 8;
/// Frees of a shard between two looks for zones to return.
const LOOK_EVERY: u32 = if cfg!(loom) { 1 } else { 64 };
/// Least storage of a shard.
const SHARD_EXTENTS_MIN: usize = 64;

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
    zone_log: u32,
    /// The owner of each zone that the span has a part of.
    owners: Box<[AtomicU64]>,
    shards: Box<[Shard]>,
    common: Mutex<FreeTree>,
}

/// On cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Shard(Mutex<Own>);

#[derive(Debug)]
struct Own {
    tree: FreeTree,
    /// Until the next look for zones to return.
    frees: u32,
}

/// Every lock, shards first.
struct All<'a> {
    shards: [MutexGuard<'a, Own>; SHARDS],
    common: MutexGuard<'a, FreeTree>,
}

impl Sharded {
    /// A span of which nothing is free yet, with storage for `max_extents` free extents at least,
    /// and a class for every alignment.
    ///
    /// # Panics
    /// As [`FreeTree::new`].
    #[must_use]
    pub fn new(span: Extent, max_extents: usize) -> Self {
        Self::with_classes(span, max_extents, Classes::ALL)
    }

    /// As [`Sharded::new`], with the given classes of alignments: see [`FreeTree::with_classes`].
    ///
    /// # Panics
    /// As [`FreeTree::new`].
    #[must_use]
    pub fn with_classes(span: Extent, max_extents: usize, classes: Classes) -> Self {
        let log = span.len().ilog2().saturating_sub(ZONES_LOG).max(ZONE_LOG_MIN);
        Self::with_zones(span, max_extents, classes, log)
    }

    /// With zones of 2^`zone_log` positions.
    pub(crate) fn with_zones(
        span: Extent,
        max_extents: usize,
        classes: Classes,
        zone_log: u32,
    ) -> Self {
        let zones = ((span.end() - 1) >> zone_log) - (span.start() >> zone_log) + 1;
        let zones = usize::try_from(zones).unwrap_or(usize::MAX);
        let own = (max_extents / 2).max(SHARD_EXTENTS_MIN);
        let shard = |_: usize| {
            let tree = FreeTree::with_classes(span, own, classes);
            Shard(Mutex::new(Own { tree, frees: 0 }))
        };
        // Zones of shards may split what would be one extent of the common tree.
        let most = max_extents.saturating_add(zones);
        Self {
            span,
            zone_log,
            owners: (0..zones).map(|_| AtomicU64::new(COMMON)).collect(),
            shards: (0..SHARDS).map(shard).collect(),
            common: Mutex::new(FreeTree::with_classes(span, most, classes)),
        }
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

    /// Takes `len` positions that start at a multiple of `align` and lie in `within`: the lowest of
    /// the common tree, or if it has none, the lowest of all; `None` if there are none.
    ///
    /// # Errors
    /// As [`Sharded::alloc`].
    pub fn alloc_within(
        &self,
        len: u64,
        align: u64,
        within: Extent,
    ) -> Result<Option<Extent>, Error> {
        let taken = lock(&self.common).alloc(len, align, Some(within))?;
        match taken {
            Some(taken) => Ok(Some(taken)),
            None => self.drained()?.common.alloc(len, align, Some(within)),
        }
    }

    /// As [`Sharded::alloc`], for a thread of the shard `home`.
    #[inline]
    pub(crate) fn alloc_on(
        &self,
        home: usize,
        len: u64,
        align: u64,
    ) -> Result<Option<Extent>, Error> {
        if len > self.zone_len() / PARTS || align > self.zone_len() {
            return self.alloc_long(len, align);
        }
        let home = home % SHARDS;
        let mut own = lock(&self.shards[home].0);
        match own.tree.alloc(len, align, None) {
            Ok(Some(taken)) => Ok(Some(taken)),
            // Full: another tree may have room for the second part of what is split.
            Ok(None) | Err(Error::OutOfNodes { .. }) => self.alloc_more(home, own, len, align),
            Err(refused) => Err(refused),
        }
    }

    #[cold]
    fn alloc_long(&self, len: u64, align: u64) -> Result<Option<Extent>, Error> {
        let taken = lock(&self.common).alloc(len, align, None)?;
        if taken.is_some() {
            return Ok(taken);
        }
        self.alloc_anywhere(len, align)
    }

    /// For a shard that has not what is asked for.
    #[cold]
    fn alloc_more(
        &self,
        home: usize,
        mut own: MutexGuard<'_, Own>,
        len: u64,
        align: u64,
    ) -> Result<Option<Extent>, Error> {
        let mut common = lock(&self.common);
        if self.take_over(home, &mut own, &mut common) {
            if let Ok(taken @ Some(_)) = own.tree.alloc(len, align, None) {
                return Ok(taken);
            }
        }
        drop(own);
        if let taken @ Some(_) = common.alloc(len, align, None)? {
            return Ok(taken);
        }
        drop(common);
        self.alloc_anywhere(len, align)
    }

    /// From whichever shard has it, or from what they have together.
    #[cold]
    fn alloc_anywhere(&self, len: u64, align: u64) -> Result<Option<Extent>, Error> {
        for shard in self.shards.iter() {
            if let Ok(taken @ Some(_)) = lock(&shard.0).tree.alloc(len, align, None) {
                return Ok(taken);
            }
        }
        self.drained()?.common.alloc(len, align, None)
    }

    /// Takes `extent`, all of which must be free.
    ///
    /// # Errors
    /// As [`FreeTree::take`]. Of an extent that is not free, `held` may begin or end at a border of
    /// zones.
    pub fn take(&self, extent: Extent) -> Result<(), Error> {
        self.change(extent, |tree| tree.take(extent))
    }

    /// Makes `extent` free, as one with the free extents of its zone's owner that it touches.
    ///
    /// # Errors
    /// As [`FreeTree::free`], whichever thread freed it before. Of an extent that is free already,
    /// `overlaps` may begin or end at a border of zones.
    #[inline]
    pub fn free(&self, extent: Extent) -> Result<(), Error> {
        if self.span.contains(extent) {
            let zone = self.zone_of(extent.start());
            let owner = self.owners[zone].load(Ordering::Acquire);
            if owner != COMMON && zone == self.zone_of(extent.end() - 1) {
                let mut own = lock(&self.shards[owner as usize % SHARDS].0);
                if self.owners[zone].load(Ordering::Relaxed) == owner {
                    match own.tree.free(extent) {
                        Err(Error::OutOfNodes { .. }) => {}
                        freed => {
                            self.return_spare(&mut own);
                            return freed;
                        }
                    }
                }
            }
        }
        self.change(extent, |tree| tree.free(extent))
    }

    /// Changes the tree of the owner of all of `extent`.
    #[cold]
    fn change(
        &self,
        extent: Extent,
        change: impl Fn(&mut FreeTree) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if !self.span.contains(extent) {
            return Err(Error::OutsideSpan { given: extent, span: self.span });
        }
        let (first, last) = (self.zone_of(extent.start()), self.zone_of(extent.end() - 1));
        loop {
            let owner = self.owners[first].load(Ordering::Acquire);
            if owner == COMMON || first != last {
                let mut common = lock(&self.common);
                let is_common = |zone: usize| self.owners[zone].load(Ordering::Relaxed) == COMMON;
                if (first..=last).all(is_common) {
                    return change(&mut common);
                }
                drop(common);
                if first == last {
                    continue; // a shard has taken it over
                }
                return change(&mut self.drained()?.common);
            }
            let mut own = lock(&self.shards[owner as usize % SHARDS].0);
            if self.owners[first].load(Ordering::Relaxed) != owner {
                continue;
            }
            match change(&mut own.tree) {
                Err(Error::OutOfNodes { .. }) => {}
                changed => return changed,
            }
            // With the lock of the shard, nobody else takes its zones.
            let mut common = lock(&self.common);
            self.give_back(owner as usize, &mut own, &mut common)?;
            return change(&mut common);
        }
    }

    /// Gives the common tree everything that shards hold free.
    ///
    /// # Errors
    /// [`Error::OutOfNodes`] if it has no storage for that: the rest stays where it was.
    pub fn trim(&self) -> Result<(), Error> {
        self.drained().map(drop)
    }

    /// Length of the largest free extent, 0 if nothing is free. Drains the shards as far as the
    /// common tree has storage.
    #[must_use]
    pub fn largest(&self) -> u64 {
        let mut all = self.all();
        let _ = self.drain(&mut all);
        all.largest()
    }

    /// Free positions in all.
    #[must_use]
    pub fn free_len(&self) -> u64 {
        self.all().free_len()
    }

    /// Positions that shards hold free.
    #[must_use]
    pub fn cached_len(&self) -> u64 {
        let all = self.all();
        all.free_len() - all.common.free_len()
    }

    /// Checks all of the structure; for tests.
    ///
    /// # Panics
    /// With the broken state, if an invariant does not hold.
    pub fn check_invariants(&self) {
        let all = self.all();
        let trees = all.shards.iter().map(|own| &own.tree).zip(0..);
        for (tree, owner) in trees.chain([(&*all.common, COMMON)]) {
            tree.check_invariants();
            for extent in tree.iter() {
                for zone in self.zone_of(extent.start())..=self.zone_of(extent.end() - 1) {
                    let of = self.owners[zone].load(Ordering::Relaxed);
                    assert_eq!(of, owner, "owner of zone {zone}, in which {extent} is free");
                }
            }
        }
    }

    fn zone_len(&self) -> u64 {
        1 << self.zone_log
    }

    #[inline]
    fn zone_of(&self, position: u64) -> usize {
        ((position >> self.zone_log) - (self.span.start() >> self.zone_log)) as usize
    }

    /// Has a shard take over the lowest zone that is wholly free; whether there is one, and room.
    fn take_over(&self, home: usize, own: &mut Own, common: &mut FreeTree) -> bool {
        let len = self.zone_len();
        let Ok(Some(zone)) = common.alloc(len, len, None) else { return false };
        if own.tree.free(zone).is_err() {
            common.free(zone).expect("taken just now");
            return false;
        }
        self.owners[self.zone_of(zone.start())].store(home as u64, Ordering::Release);
        true
    }

    /// Now and then: returns a zone that is wholly free, if it is not the only one.
    #[inline]
    fn return_spare(&self, own: &mut Own) {
        own.frees += 1;
        let len = self.zone_len();
        if own.frees < LOOK_EVERY || own.tree.free_len() < 2 * len || own.tree.largest() < len {
            return;
        }
        own.frees = 0;
        self.return_zones(own);
    }

    #[cold]
    fn return_zones(&self, own: &mut Own) {
        let len = self.zone_len();
        let mut common = None;
        while let (Ok(Some(kept)), Ok(Some(zone))) =
            (own.tree.find(len, len, None), own.tree.find_last(len, len))
        {
            if kept == zone || own.tree.take(zone).is_err() {
                break;
            }
            let common = common.get_or_insert_with(|| lock(&self.common));
            if common.free(zone).is_err() {
                own.tree.free(zone).expect("taken just now");
                break;
            }
            self.owners[self.zone_of(zone.start())].store(COMMON, Ordering::Release);
        }
    }

    /// Gives all zones of a shard back, in ascending order.
    fn give_back(&self, owner: usize, own: &mut Own, common: &mut FreeTree) -> Result<(), Error> {
        for (zone, of) in self.owners.iter().enumerate() {
            if of.load(Ordering::Relaxed) == owner as u64 {
                self.give_back_zone(zone, own, common)?;
                of.store(COMMON, Ordering::Release);
            }
        }
        Ok(())
    }

    /// Moves what is free in a zone, or nothing. Lower zones of the shard have nothing free, so
    /// that no extent of it is split in two.
    fn give_back_zone(
        &self,
        zone: usize,
        own: &mut Own,
        common: &mut FreeTree,
    ) -> Result<(), Error> {
        let start = ((self.span.start() >> self.zone_log) + zone as u64) << self.zone_log;
        let end = start.saturating_add(self.zone_len());
        for part in parts(&own.tree, start, end) {
            if let Err(full) = common.free(part) {
                for moved in parts(&own.tree, start, part.start()) {
                    common.take(moved).expect("freed just now, and apart from the others");
                }
                return Err(full);
            }
        }
        loop {
            let part = parts(&own.tree, start, end).next();
            let Some(part) = part else { return Ok(()) };
            own.tree.take(part).expect("found free, at the start of what is");
        }
    }

    fn all(&self) -> All<'_> {
        // In the order of the lock list: the fields' values are made in the order written.
        All {
            shards: std::array::from_fn(|shard| lock(&self.shards[shard].0)),
            common: lock(&self.common),
        }
    }

    fn drain(&self, all: &mut All<'_>) -> Result<(), Error> {
        let All { shards, common } = all;
        for (owner, own) in shards.iter_mut().enumerate() {
            self.give_back(owner, own, common)?;
        }
        Ok(())
    }

    /// All locks, and everything in the common tree.
    #[cold]
    fn drained(&self) -> Result<All<'_>, Error> {
        let mut all = self.all();
        self.drain(&mut all)?;
        Ok(all)
    }
}

/// The free extents of `start..end`, ascending.
fn parts(tree: &FreeTree, start: u64, end: u64) -> impl Iterator<Item = Extent> + '_ {
    let mut from = start;
    std::iter::from_fn(move || {
        let rest = Extent::new(from, end.checked_sub(from)?)?;
        let part = tree.next_fit(from, 1)?.intersection(rest)?;
        from = part.end();
        Some(part)
    })
}

impl All<'_> {
    fn free_len(&self) -> u64 {
        let own: u64 = self.shards.iter().map(|own| own.tree.free_len()).sum();
        own + self.common.free_len()
    }

    fn largest(&self) -> u64 {
        let own = self.shards.iter().map(|own| own.tree.largest()).max().unwrap_or(0);
        own.max(self.common.largest())
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
