//! [`Tree`] is a B+tree of free extents, with nodes in bounded storage.
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
//! An extent's *usable* part begins at the first multiple of a class's alignment. Lane `i` of row
//! `c` is the length of the longest part usable for class `c` below child `i`. A search takes the
//! first child whose lane is at least the request's length. An alignment without a class uses the
//! next smaller class, so a leaf may not fit, and the search goes back up.
//!
//! # Invariants
//!
//! - Extents are in order and do not touch. All leaves are at depth `height`.
//! - Every start below a child is at least its key and less than the next key. The key of an inner
//!   node is the key of its first child; the first key of all is never read.
//! - Every node but the root has at least [`Tree::MIN`] lanes, an inner root two. So storage
//!   suffices for `limit` extents, and no split can fail.
//! - A lane of a row is the maximum below its child. Above a few leaves, which [`maxima`] lists,
//!   lanes after row 0 may be too large until the tree recomputes these lanes.
//!
//! # Cost
//!
//! A search reads about height + 1 nodes, 5 for 10^6 extents. A tree of few extents is one leaf
//! (see [`few`]). A large tree asks for huge pages, because with base pages each cache line also
//! costs a read of page tables.
//!
//! Source: Bayer and McCreight 1972.

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
use glebe_os::internal::sys::memory::madvise;
use maxima::{Stale, GROUP};

const LEVELS: usize = 17;

/// The largest class's alignment has at most `1 << FEW_MULTIPLES_LOG` multiples among positions.
const FEW_MULTIPLES_LOG: usize = 4;

/// Maximum number of classes: each has one bit in a word.
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

const _: () = assert!(size_of::<Leaf<u32, 32>>() == 256 && size_of::<Inner<u32, 32>>() == 256);

const HUGE_PAGES_MIN: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoRoom {
    pub(super) bytes: u128,
}

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

/// A `Path` holds the inner node at each level and the lane taken there. Pass a path by reference,
/// because the processor stalls when it copies bytes just stored.
#[derive(Clone, Debug)]
pub(super) struct Path {
    /// [`Tree::shape`] at the descent.
    shape: u64,
    leaf: u32,
    node: [u32; LEVELS],
    lane: [u8; LEVELS],
}

const NOWHERE: u32 = u32::MAX;

impl Path {
    #[inline(always)]
    pub(super) fn new() -> Self {
        Self { shape: 0, leaf: NOWHERE, node: [0; LEVELS], lane: [0; LEVELS] }
    }

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

/// `Paths` holds the last two calls' paths from root to leaf, because the next calls often free the
/// same positions.
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

    #[inline(always)]
    pub(super) fn next(&mut self) -> &mut Path {
        self.last ^= 1;
        &mut self.both[self.last]
    }
}

/// A `Spot` is a lane of a leaf, or the lane after the last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spot {
    leaf: usize,
    lane: usize,
}

pub type Entry<L> = (L, L);

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
    /// Alignment minus one of each class, ascending.
    masks: [L; CLASSES_MAX],
    last_class: usize,
    stale: Stale<L>,
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    wide: bool,
    /// Count of lane moves between nodes, which invalidate older paths.
    shape: u64,
    root: u32,
    /// Levels of inner nodes.
    height: usize,
    len: usize,
    limit: usize,
}

impl<L: Lane, const B: usize> Tree<L, B> {
    /// Fewest lanes of a node that is not the root.
    const MIN: usize = if B * 3 / 8 > 2 { B * 3 / 8 } else { 2 };
    /// Maximum lanes of two neighbours that merge: less than `B`, so that the next insertion does
    /// not split the merged node.
    const MERGE_MAX: usize = B - B / 8;
    const SIZES: () =
        assert!(B.is_power_of_two() && B >= 4 && B <= 32 && Self::MERGE_MAX >= 2 * Self::MIN);

    pub(super) fn without_storage(end: u64, limit: usize, kind: Classes) -> Self {
        let () = Self::SIZES;
        let most = (0..LEVELS - 2).fold(Self::MIN, |most, _| most.saturating_mul(Self::MIN));
        let limit = limit.min(most).min(u32::MAX as usize);
        // Larger alignments have too few multiples to mislead a search often.
        let useful = end.saturating_sub(1).checked_ilog2().map_or(0, |bit| bit as usize + 1);
        let last_class = match kind {
            Classes::All => useful.saturating_sub(FEW_MULTIPLES_LOG),
            Classes::None => 0,
        };
        // Repeats the last class to fill the last group.
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

    /// Allocates into this tree, because moving a tree is slow.
    pub(super) fn make_storage(&mut self) -> Result<(), NoRoom> {
        let leaves = (self.limit / Self::MIN).max(1);
        // One more for a new root above a root that splits.
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

    /// Caps `align - 1` at `L::MAX`, because larger alignments have no multiple but position 0.
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

    pub(super) fn largest(&self) -> L {
        self.max_below(0, self.root as usize, 0)
    }

    #[inline(always)]
    pub(super) fn descend(&self, at: L, path: &mut Path) -> Spot {
        // Unused lanes must not count.
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

    /// Tries the paths of the last two calls before [`Self::descend`].
    #[inline(always)]
    pub fn locate<'a>(&self, at: L, paths: &'a mut Paths) -> (Spot, &'a mut Path) {
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

    #[inline(always)]
    fn spot(&self, leaf: usize, at: L) -> Spot {
        count_visit();
        Spot { leaf, lane: rank(&self.leaves[leaf].start, at) }
    }

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

    /// Returns `None` for the first leaf.
    #[inline(always)]
    fn key(&self, path: &Path) -> Option<L> {
        let level = (0..self.height).rev().find(|&level| path.lane[level] > 0)?;
        Some(self.inners[path.node(level)].key[path.lane(level)])
    }

    #[inline(always)]
    fn next_key(&self, path: &Path) -> Option<L> {
        let level = self.forking(path)?;
        Some(self.inners[path.node(level)].key[path.lane(level) + 1])
    }

    #[inline(always)]
    fn forking(&self, path: &Path) -> Option<usize> {
        (0..self.height)
            .rev()
            .find(|&level| path.lane(level) + 1 < usize::from(self.inner_counts[path.node(level)]))
    }

    #[inline(always)]
    pub(super) fn before(&self, path: &mut Path, spot: Spot) -> Option<Spot> {
        match spot.lane {
            0 => self.retreat(path),
            lane => Some(Spot { lane: lane - 1, ..spot }),
        }
    }

    #[inline(always)]
    pub(super) fn after(&self, path: &mut Path, spot: Spot) -> Option<Spot> {
        match spot.lane < self.count(spot.leaf) {
            true => Some(spot),
            false => self.advance(path),
        }
    }

    #[inline(always)]
    pub(super) fn entry(&self, spot: Spot) -> Entry<L> {
        let leaf = &self.leaves[spot.leaf];
        (leaf.start[spot.lane], leaf.len[spot.lane])
    }

    #[inline(always)]
    fn count(&self, leaf: usize) -> usize {
        usize::from(self.leaf_counts[leaf])
    }

    #[inline(always)]
    fn advance(&self, path: &mut Path) -> Option<Spot> {
        let level = self.forking(path)?;
        path.lane[level] += 1;
        Some(Spot { leaf: self.follow(path, level, |_| 0), lane: 0 })
    }

    #[inline(always)]
    fn retreat(&self, path: &mut Path) -> Option<Spot> {
        let level = (0..self.height).rev().find(|&level| path.lane[level] > 0)?;
        path.lane[level] -= 1;
        let leaf = self.follow(path, level, |inner| self.inner_counts[inner] - 1);
        Some(Spot { leaf, lane: self.count(leaf) - 1 })
    }

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

#[inline(always)]
fn count_visit() {
    #[cfg(test)]
    super::tests::count_visit();
}
