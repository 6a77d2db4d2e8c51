//! [`Tree`]: a B+tree of free extents, its nodes named by index in bounded storage.
//!
//! Owns the extents, their order and the maxima of each subtree; knows nothing of spans or errors.
//!
//! # Layout
//!
//! ```text
//!  inner node                                maxima of that node, a row for each alignment class
//!  key    [ k0 | k1 | k2 | .. | MAX ]        class 0  [ m0 | m1 | m2 | .. | 0 ]
//!  child  [ c0 | c1 | c2 | .. |  -  ]        class 1  [ m0 | m1 | m2 | .. | 0 ]
//!            |    |                             :
//!            |    +----------------+
//!  leaf      v                     v
//!  start  [ s0 | s1 | .. | MAX ]   [ s0 | s1 | .. ]     up to `B` lanes a node, the used ones
//!  len    [ l0 | l1 | .. |  0  ]   [ l0 | l1 | .. ]     first, unused ones filled as shown
//! ```
//!
//! Lane `i` of row `c` is the most that one extent below child `i` has from its first multiple of
//! the alignment of class `c` on. A request whose alignment is a class fits below a child exactly
//! if this is no less than its length, so that a search goes down and never back up. Another one
//! takes the row of the next smaller class, which may send it down in vain, and tests in the leaf
//! what it really needs.
//!
//! # Invariants
//!
//! - Extents lie in order and do not touch. All leaves are at the same depth, `height`.
//! - Every start below a child is no less than its key and less than the key of the next one; of
//!   the first child of all, no key is read. The key of a node is its first child's. A key may be
//!   less than the first start, since starts move and keys stay.
//! - Every node but the root uses [`Tree::MIN`] lanes or more, an inner root two. So `limit`
//!   extents never need more nodes than there is storage for, and no split can fail.
//! - A lane of a row is the maximum over the row or the extents of its child; but above a few
//!   leaves that shrank, rows of classes but the first may still tell of extents that were there.
//!
//! # Cost
//!
//! A search reads one row and one child, or one array of keys, at each level: height + 1 nodes, as
//! few as 5 for 10^6 extents. A change writes one leaf and those maxima that it moves; of large
//! alignments, short extents have none. A maximum that shrank is looked for later, if it has not
//! come back by then: see [`maxima`]. Where lanes are moved between nodes, which a leaf makes once
//! in many changes, all classes of two lanes are computed again. A tree of very few extents is one
//! leaf, and is looked at without any of this: see [`few`]. A tree of very many is not in any cache
//! near the processor, and lies on huge pages: else a call would also look into page tables for
//! each line that it reads, which a virtual machine does twice at each level.
//!
//! Source: Bayer and McCreight 1972; the maxima follow `subtree_max_size` of the kernel's
//! `mm/vmalloc.c` and the gaps of its maple tree, with one row for each class of alignments.

mod balance;
mod change;
#[cfg(any(test, fuzzing))]
mod check;
mod few;
mod maxima;
mod search;
mod work;

pub(super) use change::Refused;
pub(super) use search::Need;

use super::lanes::{at_least, fits, largest, most_usable, rank, Lane};
use super::Classes;
use crate::sys::madvise;
use maxima::{Stale, GROUP};

/// Most levels, leaves included; see [`Tree::new`].
const LEVELS: usize = 17;

/// Alignments that have only so few multiples among all positions, as a logarithm, are no class.
const FEW_MULTIPLES_LOG: usize = 4;

/// Classes at most, which have a bit each in a word.
const CLASSES_MAX: usize = 64;

#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Leaf<L, const B: usize> {
    start: [L; B],
    len: [L; B],
}

#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Inner<L, const B: usize> {
    key: [L; B],
    child: [u32; B],
}

// Whole cache lines, and as many for the lanes of a search as there must be.
const _: () = assert!(size_of::<Leaf<u32, 32>>() == 256 && size_of::<Inner<u32, 32>>() == 256);

/// Storage of fewer huge pages than so many has none: most of one could be unused.
const HUGE_PAGES_MIN: usize = 16;

/// Memory that could not be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoRoom {
    pub(super) bytes: u128,
}

/// An empty vector with room for `count`, if that can be had; on huge pages if it is large.
fn room<T>(count: usize) -> Result<Vec<T>, NoRoom> {
    let mut all = Vec::new();
    let bytes = count as u128 * size_of::<T>() as u128;
    all.try_reserve_exact(count).map_err(|_| NoRoom { bytes })?;
    if bytes >> 20 > 0 && !cfg!(miri) {
        let huge = madvise::transparent_huge_page().map_or(u64::MAX, |page| page.bytes().get());
        if bytes / u128::from(huge) >= HUGE_PAGES_MIN as u128 {
            madvise::prefer_huge(all.spare_capacity_mut());
        }
    }
    Ok(all)
}

/// The way to a leaf: the inner node at each level and the lane taken in it. Always passed by
/// reference: to copy what was just written a byte at a time costs more than a level.
///
/// One that is kept from call to call saves a later call the way down, if it leads to the same
/// leaf: what was taken last is often given back first.
#[derive(Clone, Debug)]
pub(super) struct Path {
    /// [`Tree::shape`] when it was made.
    shape: u64,
    /// The leaf, or [`NOWHERE`].
    leaf: u32,
    node: [u32; LEVELS],
    lane: [u8; LEVELS],
}

/// Of a path that leads to no leaf.
const NOWHERE: u32 = u32::MAX;

impl Path {
    #[inline(always)]
    pub(super) fn new() -> Self {
        Self { shape: 0, leaf: NOWHERE, node: [0; LEVELS], lane: [0; LEVELS] }
    }

    /// Leads where `other` leads, in a tree of that height.
    #[inline(always)]
    fn become_like(&mut self, other: &Self, height: usize) {
        (self.shape, self.leaf) = (other.shape, other.leaf);
        for level in 0..height {
            (self.node[level], self.lane[level]) = (other.node[level], other.lane[level]);
        }
    }

    #[inline(always)]
    fn node(&self, level: usize) -> usize {
        self.node[level] as usize
    }

    #[inline(always)]
    fn lane(&self, level: usize) -> usize {
        usize::from(self.lane[level])
    }
}

/// The ways of the last two calls, since what is taken by two is often given back by the next two.
#[derive(Clone, Debug)]
pub(super) struct Paths {
    both: [Path; 2],
    last: usize,
}

impl Paths {
    #[inline(always)]
    pub(super) fn new() -> Self {
        Self { both: [Path::new(), Path::new()], last: 0 }
    }

    /// The one of the call before the last, which is this call's now.
    #[inline(always)]
    pub(super) fn next(&mut self) -> &mut Path {
        self.last ^= 1;
        &mut self.both[self.last]
    }
}

/// A lane of a leaf; or past the last one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spot {
    leaf: usize,
    lane: usize,
}

/// An extent as lanes hold it: start and length.
pub(super) type Entry<L> = (L, L);

/// The ordered tree of fan-out `B`: see the module's documentation.
#[derive(Debug)]
pub(super) struct Tree<L, const B: usize> {
    leaves: Vec<Leaf<L, B>>,
    leaf_counts: Vec<u8>,
    spare_leaves: Vec<u32>,
    inners: Vec<Inner<L, B>>,
    inner_counts: Vec<u8>,
    spare_inners: Vec<u32>,
    /// Row `c` of inner node `n` is at `n * classes + c`.
    maxima: Vec<[L; B]>,
    classes: usize,
    /// Alignment of each class, less one; ascending.
    masks: [L; CLASSES_MAX],
    /// The class of the largest alignment that has one.
    last_class: usize,
    stale: Stale<L>,
    /// Whether the processor has the wide vectors of [`work`].
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    wide: bool,
    /// Goes up when lanes move between nodes: paths from before are wrong.
    /// It never goes down. It goes up by one a change, so it cannot come round: 2^64 changes of a
    /// nanosecond each take 584 years.
    shape: u64,
    root: u32,
    /// Levels of inner nodes.
    height: usize,
    len: usize,
    limit: usize,
}

impl<L: Lane, const B: usize> Tree<L, B> {
    /// Lanes that a node which is not the root uses at least.
    const MIN: usize = if B * 3 / 8 > 2 { B * 3 / 8 } else { 2 };
    /// Two neighbours that use no more lanes become one, if one has too few. Less than `B`, so that
    /// the next insertion does not split them again.
    const MERGE_MAX: usize = B - B / 8;
    const SIZES: () =
        assert!(B.is_power_of_two() && B >= 4 && B <= 32 && Self::MERGE_MAX >= 2 * Self::MIN);

    /// For `limit` extents, with maxima for the alignments of `kind`, as far as `end`, the end of
    /// all positions, has use for them. It has no storage yet.
    pub(super) fn without_storage(end: u64, limit: usize, kind: Classes) -> Self {
        let () = Self::SIZES;
        let most = (0..LEVELS - 2).fold(Self::MIN, |most, _| most.saturating_mul(Self::MIN));
        let limit = limit.min(most).min(u32::MAX as usize);
        // Of a larger alignment there are so few multiples that no search is misled often.
        let useful = end.saturating_sub(1).checked_ilog2().map_or(0, |bit| bit as usize + 1);
        let last_class = match kind {
            Classes::All => useful.saturating_sub(FEW_MULTIPLES_LOG),
            Classes::None => 0,
        };
        // The last class again and again, so that there are whole groups.
        let classes = 1 + last_class.next_multiple_of(GROUP);
        let masks = std::array::from_fn(|class| Self::mask(1 << class.min(last_class)));
        Self {
            leaves: Vec::new(),
            leaf_counts: Vec::new(),
            spare_leaves: Vec::new(),
            inners: Vec::new(),
            inner_counts: Vec::new(),
            spare_inners: Vec::new(),
            maxima: Vec::new(),
            classes,
            masks,
            last_class,
            stale: Stale::none(),
            wide: work::is_wide(),
            shape: 0,
            root: 0,
            height: 0,
            len: 0,
            limit,
        }
    }

    /// Makes the storage, once, if it can be had; in place, since a tree is large to pass on.
    pub(super) fn make_storage(&mut self) -> Result<(), NoRoom> {
        let leaves = (self.limit / Self::MIN).max(1);
        // One more for a root that is about to split.
        let (mut inners, mut level) = (1, leaves);
        while level > 1 {
            level = (level / Self::MIN).max(1);
            inners += level;
        }
        self.leaves = room(leaves)?;
        self.leaf_counts = room(leaves)?;
        self.spare_leaves = room(leaves)?;
        self.inners = room(inners)?;
        self.inner_counts = room(inners)?;
        self.spare_inners = room(inners)?;
        self.maxima = room(inners.saturating_mul(self.classes))?;
        self.root = self.acquire_leaf();
        Ok(())
    }

    /// An alignment, a power of two, less one; of positions, one that is larger than all has the
    /// same multiples as one that is larger still.
    pub(super) fn mask(align: u64) -> L {
        L::of(align - 1)
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    #[cfg(test)]
    pub(super) fn use_plain_vectors(&mut self) {
        self.wide = false;
    }

    /// The length of the longest extent, 0 if there is none.
    pub(super) fn largest(&self) -> L {
        self.max_below(0, self.root as usize, 0)
    }

    /// Where a start of `at` belongs, after all that are no later; and the way there.
    #[inline(always)]
    pub(super) fn descend(&self, at: L, path: &mut Path) -> Spot {
        // An unused lane is never counted.
        let at = at.min(L::MAX - L::of(1));
        let mut n = self.root as usize;
        for level in 0..self.height {
            let inner = &self.inners[n];
            count_visit();
            let lane = rank(&inner.key, at).saturating_sub(1);
            (path.node[level], path.lane[level]) = (n as u32, lane as u8);
            n = inner.child[lane] as usize;
        }
        (path.leaf, path.shape) = (n as u32, self.shape);
        self.spot(n, at)
    }

    /// As [`Self::descend`], by the way of one of the last calls if it leads there.
    #[inline(always)]
    pub(super) fn locate<'a>(&self, at: L, paths: &'a mut Paths) -> (Spot, &'a mut Path) {
        let at = at.min(L::MAX - L::of(1));
        for nth in [paths.last, paths.last ^ 1] {
            if self.leads_to(at, &paths.both[nth]) {
                paths.last = nth;
                let path = &mut paths.both[nth];
                return (self.spot(path.leaf as usize, at), path);
            }
        }
        let path = paths.next();
        (self.descend(at, path), path)
    }

    /// Where in its leaf `at` belongs.
    #[inline(always)]
    fn spot(&self, leaf: usize, at: L) -> Spot {
        count_visit();
        Spot { leaf, lane: rank(&self.leaves[leaf].start, at) }
    }

    /// Whether the way to where a start of `at` belongs is known.
    #[inline(always)]
    fn leads_to(&self, at: L, path: &Path) -> bool {
        if path.leaf == NOWHERE || path.shape != self.shape {
            return false;
        }
        if self.height == 0 {
            return true;
        }
        let (leaf, count) = (&self.leaves[path.leaf as usize], self.count(path.leaf as usize));
        (leaf.start[0] <= at || self.key(path).is_none_or(|key| key <= at))
            && (at <= leaf.start[count - 1] || self.next_key(path).is_none_or(|key| at < key))
    }

    /// The key of the leaf that `path` leads to, but of the first.
    #[inline(always)]
    fn key(&self, path: &Path) -> Option<L> {
        let level = (0..self.height).rev().find(|&level| path.lane[level] > 0)?;
        Some(self.inners[path.node(level)].key[path.lane(level)])
    }

    /// The key of the leaf after that.
    #[inline(always)]
    fn next_key(&self, path: &Path) -> Option<L> {
        let level = self.forking(path)?;
        Some(self.inners[path.node(level)].key[path.lane(level) + 1])
    }

    /// The lowest level at which there is a child after the one that `path` takes.
    #[inline(always)]
    fn forking(&self, path: &Path) -> Option<usize> {
        (0..self.height)
            .rev()
            .find(|&level| path.lane(level) + 1 < usize::from(self.inner_counts[path.node(level)]))
    }

    /// Where the last extent before `spot` is; leads `path` there.
    #[inline(always)]
    pub(super) fn before(&self, path: &mut Path, spot: Spot) -> Option<Spot> {
        match spot.lane {
            0 => self.retreat(path),
            lane => Some(Spot { lane: lane - 1, ..spot }),
        }
    }

    /// Where the first extent at `spot` or after it is; leads `path` there.
    #[inline(always)]
    pub(super) fn after(&self, path: &mut Path, spot: Spot) -> Option<Spot> {
        match spot.lane < self.count(spot.leaf) {
            true => Some(spot),
            false => self.advance(path),
        }
    }

    /// The extent at `spot`.
    #[inline(always)]
    pub(super) fn entry(&self, spot: Spot) -> Entry<L> {
        let leaf = &self.leaves[spot.leaf];
        (leaf.start[spot.lane], leaf.len[spot.lane])
    }

    /// Lanes used in a leaf.
    #[inline(always)]
    fn count(&self, leaf: usize) -> usize {
        usize::from(self.leaf_counts[leaf])
    }

    /// Leads to the first lane of the next leaf; `None`, and nothing changed, if there is none.
    #[inline(always)]
    fn advance(&self, path: &mut Path) -> Option<Spot> {
        let level = self.forking(path)?;
        path.lane[level] += 1;
        Some(Spot { leaf: self.follow(path, level, |_| 0), lane: 0 })
    }

    /// Leads to the last lane of the leaf before; `None`, and nothing changed, if there is none.
    #[inline(always)]
    fn retreat(&self, path: &mut Path) -> Option<Spot> {
        let level = (0..self.height).rev().find(|&level| path.lane[level] > 0)?;
        path.lane[level] -= 1;
        let leaf = self.follow(path, level, |inner| self.inner_counts[inner] - 1);
        Some(Spot { leaf, lane: self.count(leaf) - 1 })
    }

    /// Leads from the lane taken at `level` down, by the `lane` of each inner node; the leaf.
    #[inline(always)]
    fn follow(&self, path: &mut Path, level: usize, lane: impl Fn(usize) -> u8) -> usize {
        for below in level + 1..self.height {
            count_visit();
            let n = self.inners[path.node(below - 1)].child[path.lane(below - 1)];
            (path.node[below], path.lane[below]) = (n, lane(n as usize));
        }
        count_visit();
        path.leaf = self.inners[path.node(self.height - 1)].child[path.lane(self.height - 1)];
        path.leaf as usize
    }

    /// The largest class of no larger alignment, by its logarithm.
    #[inline(always)]
    fn class(&self, log: u32) -> usize {
        (log as usize).min(self.last_class)
    }

    #[inline(always)]
    fn row(&self, n: usize, class: usize) -> &[L; B] {
        count_visit();
        &self.maxima[n * self.classes + class]
    }

    #[inline(always)]
    fn leaf_fits(&self, n: usize, len: L, mask: L) -> u32 {
        count_visit();
        let leaf = &self.leaves[n];
        match mask == L::ZERO {
            true => at_least(&leaf.len, len),
            false => fits(&leaf.start, &leaf.len, len, mask),
        }
    }

    /// The most that one extent below node `n` at `level` has for `class`.
    #[inline(always)]
    fn max_below(&self, level: usize, n: usize, class: usize) -> L {
        if level < self.height {
            return largest(self.row(n, class));
        }
        count_visit();
        let leaf = &self.leaves[n];
        match class {
            0 => largest(&leaf.len),
            _ => most_usable(&leaf.start, &leaf.len, self.masks[class]),
        }
    }
}

/// Counts a node that was looked at, in tests only.
#[inline(always)]
fn count_visit() {
    #[cfg(test)]
    super::tests::count_visit();
}
