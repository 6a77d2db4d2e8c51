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
//! - A row is the maximum over the row or the extents of its child; but above one leaf, that of the
//!   last change, the rows of classes but the first may still tell of extents that it had before.
//!
//! # Cost
//!
//! A search reads one row and one child, or one array of keys, at each level: height + 1 nodes, as
//! few as 5 for 10^6 extents. A change writes one leaf and those maxima that it moves; of large
//! alignments, short extents have none. Where lanes are moved between nodes, which a leaf makes
//! once in many changes, all classes of two lanes are computed again.
//!
//! Source: Bayer and McCreight 1972; the maxima follow `subtree_max_size` of the kernel's
//! `mm/vmalloc.c` and the gaps of its maple tree, with one row for each class of alignments.

mod balance;
mod change;
mod check;
mod search;

pub(super) use change::Refused;
pub(super) use search::Need;

use super::lanes::{largest, most_usable, rank, usable, Lane};

/// Most levels, leaves included; see [`Tree::new`].
const LEVELS: usize = 17;

/// So few lanes are looked at one by one. Only a root has as few.
const FEW: usize = 2;

/// Entries of the class tables: the logarithm of an alignment is less.
const LOGS: usize = 65;

#[derive(Clone, Debug)]
#[repr(align(64))]
struct Leaf<L, const B: usize> {
    start: [L; B],
    len: [L; B],
}

#[derive(Clone, Debug)]
#[repr(align(64))]
struct Inner<L, const B: usize> {
    key: [L; B],
    child: [u32; B],
}

// Whole cache lines, and as many for the lanes of a search as there must be.
const _: () = assert!(size_of::<Leaf<u32, 32>>() == 256 && size_of::<Inner<u32, 32>>() == 256);

/// The way to a leaf: the inner node at each level and the lane taken in it. Always passed by
/// reference: to copy what was just written a byte at a time costs more than a level.
///
/// One that is kept from call to call saves the next call the way down, if it leads to the same
/// leaf: what was taken last is often given back first.
#[derive(Clone, Debug)]
pub(super) struct Path {
    /// The leaf, or [`NOWHERE`].
    leaf: u32,
    node: [u32; LEVELS],
    lane: [u8; LEVELS],
}

/// Of a path that leads to no leaf, or that a change of nodes has made wrong.
const NOWHERE: u32 = u32::MAX;

impl Path {
    #[inline]
    pub(super) fn new() -> Self {
        Self { leaf: NOWHERE, node: [0; LEVELS], lane: [0; LEVELS] }
    }

    #[inline]
    fn node(&self, level: usize) -> usize {
        self.node[level] as usize
    }

    #[inline]
    fn lane(&self, level: usize) -> usize {
        usize::from(self.lane[level])
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
    masks: [L; LOGS],
    /// The largest class of no larger alignment, by the logarithm of an alignment.
    class_of: [u8; LOGS],
    /// The classes of which the maxima above one leaf may be too large, a bit each, and that leaf.
    stale: u64,
    stale_leaf: usize,
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

    /// Storage for `limit` extents with maxima for the alignments `1 << k` of which bit `k` is set
    /// in `logs`, as far as `end`, the end of all positions, has use for them.
    pub(super) fn new(end: u64, limit: usize, logs: u64) -> Self {
        let () = Self::SIZES;
        let most = (0..LEVELS - 2).fold(Self::MIN, |most, _| most.saturating_mul(Self::MIN));
        let limit = limit.min(most).min(u32::MAX as usize);
        let (mut masks, mut class_of, mut classes) = ([L::ZERO; LOGS], [0; LOGS], 0_u8);
        // Beyond the first alignment that covers all positions, only 0 is aligned, as to it.
        let useful = end.saturating_sub(1).checked_ilog2().map_or(0, |bit| bit + 1);
        for log in 0..LOGS as u32 {
            let listed = log == 0 || log < 64 && logs >> log & 1 == 1;
            if listed && log <= useful.min(L::BITS) {
                masks[usize::from(classes)] = Self::mask(1_u64 << log);
                classes += 1;
            }
            class_of[log as usize] = classes - 1;
        }
        let leaves = (limit / Self::MIN).max(1);
        // One more for a root that is about to split.
        let (mut inners, mut level) = (1, leaves);
        while level > 1 {
            level = (level / Self::MIN).max(1);
            inners += level;
        }
        let classes = usize::from(classes);
        let rows = inners.checked_mul(classes).expect("too many extents");
        let mut tree = Self {
            leaves: Vec::with_capacity(leaves),
            leaf_counts: Vec::with_capacity(leaves),
            spare_leaves: Vec::with_capacity(leaves),
            inners: Vec::with_capacity(inners),
            inner_counts: Vec::with_capacity(inners),
            spare_inners: Vec::with_capacity(inners),
            maxima: Vec::with_capacity(rows),
            classes,
            masks,
            class_of,
            stale: 0,
            stale_leaf: 0,
            root: 0,
            height: 0,
            len: 0,
            limit,
        };
        tree.root = tree.acquire_leaf();
        tree
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

    /// The length of the longest extent, 0 if there is none.
    pub(super) fn largest(&self) -> L {
        self.max_below(0, self.root as usize, 0)
    }

    /// Where a start of `at` belongs, after all that are no later; and the way there.
    #[inline]
    pub(super) fn descend(&self, at: L, path: &mut Path) -> Spot {
        // An unused lane is never counted.
        let at = at.min(L::MAX - L::of(1));
        if self.leads_to(at, path) {
            return self.spot(path.leaf as usize, at);
        }
        let mut n = self.root as usize;
        for level in 0..self.height {
            let inner = &self.inners[n];
            count_visit();
            let lane = rank(&inner.key, at).saturating_sub(1);
            (path.node[level], path.lane[level]) = (n as u32, lane as u8);
            n = inner.child[lane] as usize;
        }
        path.leaf = n as u32;
        self.spot(n, at)
    }

    /// Where in its leaf `at` belongs.
    #[inline]
    fn spot(&self, leaf: usize, at: L) -> Spot {
        count_visit();
        let (start, count) = (&self.leaves[leaf].start, self.count(leaf));
        if count <= FEW {
            let lane = start[..count].iter().take_while(|&&start| start <= at).count();
            return Spot { leaf, lane };
        }
        Spot { leaf, lane: rank(start, at) }
    }

    /// Whether the way to where a start of `at` belongs is known.
    #[inline]
    fn leads_to(&self, at: L, path: &Path) -> bool {
        if path.leaf == NOWHERE {
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
    fn key(&self, path: &Path) -> Option<L> {
        let level = (0..self.height).rev().find(|&level| path.lane[level] > 0)?;
        Some(self.inners[path.node(level)].key[path.lane(level)])
    }

    /// The key of the leaf after that.
    fn next_key(&self, path: &Path) -> Option<L> {
        let level = self.forking(path)?;
        Some(self.inners[path.node(level)].key[path.lane(level) + 1])
    }

    /// The lowest level at which there is a child after the one that `path` takes.
    fn forking(&self, path: &Path) -> Option<usize> {
        (0..self.height)
            .rev()
            .find(|&level| path.lane(level) + 1 < usize::from(self.inner_counts[path.node(level)]))
    }

    /// Where the last extent before `spot` is; leads `path` there.
    #[inline]
    pub(super) fn before(&self, path: &mut Path, spot: Spot) -> Option<Spot> {
        match spot.lane {
            0 => self.retreat(path),
            lane => Some(Spot { lane: lane - 1, ..spot }),
        }
    }

    /// Where the first extent at `spot` or after it is; leads `path` there.
    #[inline]
    pub(super) fn after(&self, path: &mut Path, spot: Spot) -> Option<Spot> {
        match spot.lane < self.count(spot.leaf) {
            true => Some(spot),
            false => self.advance(path),
        }
    }

    /// The extent at `spot`.
    #[inline]
    pub(super) fn entry(&self, spot: Spot) -> Entry<L> {
        let leaf = &self.leaves[spot.leaf];
        (leaf.start[spot.lane], leaf.len[spot.lane])
    }

    /// Where the first extent belongs, and the way there.
    pub(super) fn first(&self) -> (Path, Spot) {
        let mut path = Path::new();
        let spot = self.descend(L::ZERO, &mut path);
        (path, Spot { lane: 0, ..spot })
    }

    /// The extent at `spot` or the first after it; leads past it.
    pub(super) fn next(&self, path: &mut Path, spot: &mut Spot) -> Option<Entry<L>> {
        let found = self.after(path, *spot)?;
        *spot = Spot { lane: found.lane + 1, ..found };
        Some(self.entry(found))
    }

    /// Lanes used in a leaf.
    #[inline]
    fn count(&self, leaf: usize) -> usize {
        usize::from(self.leaf_counts[leaf])
    }

    /// Leads to the first lane of the next leaf; `None`, and nothing changed, if there is none.
    fn advance(&self, path: &mut Path) -> Option<Spot> {
        let level = self.forking(path)?;
        path.lane[level] += 1;
        Some(Spot { leaf: self.follow(path, level, |_| 0), lane: 0 })
    }

    /// Leads to the last lane of the leaf before; `None`, and nothing changed, if there is none.
    fn retreat(&self, path: &mut Path) -> Option<Spot> {
        let level = (0..self.height).rev().find(|&level| path.lane[level] > 0)?;
        path.lane[level] -= 1;
        let leaf = self.follow(path, level, |inner| self.inner_counts[inner] - 1);
        Some(Spot { leaf, lane: self.count(leaf) - 1 })
    }

    /// Leads from the lane taken at `level` down, by the `lane` of each inner node; the leaf.
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
    #[inline]
    fn class(&self, log: u32) -> usize {
        usize::from(self.class_of[log as usize])
    }

    #[inline]
    fn row(&self, n: usize, class: usize) -> &[L; B] {
        count_visit();
        &self.maxima[n * self.classes + class]
    }

    #[inline]
    fn leaf_fits(&self, n: usize, len: L, mask: L) -> u32 {
        count_visit();
        let leaf = &self.leaves[n];
        let count = self.count(n);
        if count <= FEW {
            let fits = |&i: &usize| usable(leaf.start[i], leaf.len[i], mask) >= len;
            return (0..count).filter(fits).map(|i| 1 << i).sum();
        }
        match mask == L::ZERO {
            true => L::at_least(&leaf.len, len),
            false => L::fits(&leaf.start, &leaf.len, len, mask),
        }
    }

    /// The most that one extent below node `n` at `level` has for `class`.
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
