//! [`Options`] describes the wanted memory.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::pool::{Place, PoolLock};
use super::{Node, Source};
use glebe_os::internal::mapping::BrickSize;
use glebe_os::internal::sys::page_size;
use glebe_os::units::{Bytes, PageSize};

/// The progress of populating.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes populated.
    pub done: Bytes,
    /// Bytes to populate.
    pub total: Bytes,
}

#[derive(Clone)]
pub(super) struct Listener(Arc<dyn Fn(Progress) + Send + Sync>);

impl Listener {
    pub fn tell(&self, progress: Progress) {
        (self.0)(progress);
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Listener")
    }
}

/// The ways to serve a length that is no multiple of the source's page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Plan {
    /// Whole pages, with the excess.
    #[default]
    Whole,
    /// Whole pages, but transparent huge pages are cut to the length. Hugetlb pages cannot be cut.
    RoundUp,
    /// Hugetlb and transparent huge pages of every size, largest first, then base pages.
    Divide,
}

/// The wanted memory.
///
/// ```
/// use glebe_contig::{Contig, Error, Source};
/// use glebe_contig::units::Bytes;
///
/// let run = Bytes::mib(4);
/// match Contig::options().source(Source::HUGETLB_2M).require_run(run).build(run) {
///     Ok(memory) => println!("one run of {}", memory.len()),
///     Err(Error::NotContiguous { longest, .. }) => println!("{longest} at most"),
///     Err(error) => println!("{error}"),
/// }
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Options {
    pub(super) source: Option<Source>,
    pub(super) plan: Plan,
    pub(super) required: Option<Bytes>,
    pub(super) preferred: Option<Bytes>,
    pub(super) align: Bytes,
    pub(super) at: Option<usize>,
    pub(super) search: Option<Bytes>,
    pub(super) search_time: Option<Duration>,
    pub(super) began: Option<Instant>,
    pub(super) any_order: bool,
    pub(super) for_runs: bool,
    /// Nodes in ascending order.
    pub(super) nodes: Option<Vec<Node>>,
    pub(super) preferred_node: Option<Node>,
    pub(super) pin: Option<bool>,
    pub(super) dma_heap: Option<PathBuf>,
    pub(super) threads: Option<usize>,
    pub(super) grow_pool: Option<bool>,
    pub(super) lock_patience: Option<Duration>,
    pub(super) mappable: bool,
    pub(super) bricks: Option<PageSize>,
    pub(super) progress: Option<Listener>,
    pub(super) place: Place,
}

impl Options {
    /// Uses only this source. The default tries hugetlb pages from 2 MiB on, transparent huge
    /// pages, then base pages. `build` skips hugetlb sizes that do not divide the length, except
    /// the smallest. For a wanted run, blocks of the [`bank`](super::bank) may come first.
    pub fn source(self, source: impl Into<Option<Source>>) -> Self {
        Self { source: source.into(), ..self }
    }

    /// Sets the [`Plan`].
    pub fn plan(self, plan: Plan) -> Self {
        Self { plan, ..self }
    }

    /// Aligns the first byte's address to `align`, a power of two.
    pub fn align(self, align: Bytes) -> Self {
        Self { align, ..self }
    }

    /// Maps at this address, which must be free.
    pub fn at(self, addr: usize) -> Self {
        Self { at: Some(addr), ..self }
    }

    /// Uses only pages of this NUMA node. A search needs a processor of the node that the caller
    /// may use.
    pub fn node(self, node: Node) -> Self {
        self.nodes([node])
    }

    /// Uses only pages of these NUMA nodes. The kernel takes pages from the node of the thread that
    /// populates them first, and from the others in the order of their distance. If a hugetlb pool
    /// grows, the first node of the set grows first. [`Error::NoNodes`](super::Error::NoNodes) if
    /// the set is empty.
    pub fn nodes(self, nodes: impl IntoIterator<Item = Node>) -> Self {
        let nodes: BTreeSet<Node> = nodes.into_iter().collect();
        Self { nodes: Some(nodes.into_iter().collect()), ..self }
    }

    /// Uses only pages of this NUMA node if it has enough, and otherwise pages of any node, also if
    /// a container denies the choice. [`Contig::why_not_better`](super::Contig::why_not_better)
    /// then says why, and [`Contig::nodes`](super::Contig::nodes) which nodes gave pages. The node
    /// comes before the source: base pages of the node before huge pages of another one. Each of
    /// the two attempts has the whole time of a search. [`Options::node`] and
    /// [`Options::nodes`] override this wish. None of them has an effect on a dma-heap.
    pub fn prefer_node(self, node: Node) -> Self {
        Self { preferred_node: Some(node), ..self }
    }

    /// Sets whether hugetlb pages are put in physical order (default: yes). Ordering costs 8 µs a
    /// stretch of adjacent pages. Pages of a file are freed, taken and zeroed again.
    pub fn in_order(self, order: bool) -> Self {
        Self { any_order: !order, ..self }
    }

    /// Limits the memory that a search looks at; 0 turns the search off. The default searches only
    /// for a wanted run ([`Options::require_run`], [`Options::prefer_run`]), and leaves a tenth of
    /// the available memory, at least 1 GiB. With a limit and no wanted run, the search looks for
    /// the longest runs. Without `/proc/kpageflags`, the search sees only pages that it has taken
    /// and zeroed.
    pub fn search(self, len: Bytes) -> Self {
        Self { search: Some(len), ..self }
    }

    /// Limits the wall time from the call of [`Options::build`] to the end of the search. The
    /// search skips steps that would exceed the limit. At the limit, `build` finishes zeroing the
    /// current slices (64 MiB or one page) and refuses a required run. Idle pages that may contain
    /// the run are zeroed regardless.
    ///
    /// The default is 2 s of processor time per started GiB (6 s for a required run), without
    /// compaction, and five times as much wall time.
    pub fn search_time(self, time: Duration) -> Self {
        Self { search_time: Some(time), ..self }
    }

    /// If true, requires a long-term pin; if false, pins nothing. The default tries a pin if
    /// nothing else holds the pages and they belong to no file.
    pub fn pin(self, pin: bool) -> Self {
        Self { pin: Some(pin), ..self }
    }

    /// Uses only a buffer of the dma-heap at `path`.
    pub fn dma_heap(mut self, path: impl Into<PathBuf>) -> Self {
        self.source = Some(Source::DmaHeap);
        self.dma_heap = Some(path.into());
        self
    }

    /// Requires a physically contiguous run of `len`.
    pub fn require_run(self, len: Bytes) -> Self {
        Self { required: Some(len), ..self }
    }

    /// Tries to get a physically contiguous run of `len`.
    pub fn prefer_run(self, len: Bytes) -> Self {
        Self { preferred: Some(len), ..self }
    }

    /// Populates with up to `n` threads (default: one a processor, at most 8).
    pub fn threads(self, n: usize) -> Self {
        Self { threads: Some(n), ..self }
    }

    /// Calls `told` on the populating threads after each slice of memory. [`Progress::done`]
    /// restarts at zero for each mapping.
    pub fn progress(self, told: impl Fn(Progress) + Send + Sync + 'static) -> Self {
        Self { progress: Some(Listener(Arc::new(told))), ..self }
    }

    /// Sets whether a hugetlb pool may grow (default: if the caller may change it).
    pub fn grow_pool(self, grow: bool) -> Self {
        Self { grow_pool: Some(grow), ..self }
    }

    /// Sets how long `build` waits for the [`PoolLock`] (default: [`PoolLock::PATIENCE`], in a
    /// search at most the rest of [`Options::search_time`]).
    pub fn lock_patience(self, patience: Duration) -> Self {
        Self { lock_patience: Some(patience), ..self }
    }

    /// Takes pages from a file in memory, which can be mapped again
    /// ([`Contig::file`](super::Contig::file), [`vmap`](glebe_vmap)). Few machines allow
    /// transparent huge pages in such files.
    pub fn mappable(self) -> Self {
        Self { mappable: true, ..self }
    }

    /// Takes each hugetlb page from a file of its own, so that the owner can hand pages to other
    /// processes one by one. The source must be a hugetlb pool (default: of 2 MiB pages). For a
    /// wanted run, blocks of the [`bank`](super::bank) may come first.
    pub fn bricks(self) -> Self {
        self.bricks_of(page_size())
    }

    /// Takes memory from files of `each` bytes, at least a hugetlb page; otherwise like
    /// [`Options::bricks`]. Lengths are rounded up to files. Frames of a file are adjacent, and
    /// aligned to its length, if the pool has such pages.
    pub fn bricks_of(self, each: PageSize) -> Self {
        Self { bricks: Some(each), source: self.source.or(Some(Source::HUGETLB_2M)), ..self }
    }

    /// Returns the nodes that the pages must be of; none if any node will do.
    pub(super) fn node_set(&self) -> &[Node] {
        self.nodes.as_deref().unwrap_or_default()
    }

    pub(super) fn is_of_files(&self) -> bool {
        self.mappable || self.bricks.is_some()
    }

    /// Returns the bricks of hugetlb pages of this size, if asked for.
    pub(super) fn brick_of(&self, page: PageSize) -> Option<BrickSize> {
        self.bricks.map(|each| BrickSize { each: each.max(page), page })
    }

    pub(super) fn patience(&self) -> Duration {
        self.lock_patience.unwrap_or(PoolLock::PATIENCE)
    }

    pub(super) fn run(&self, len: Bytes) -> Option<Bytes> {
        self.required.max(self.preferred).or(self.for_runs.then_some(len))
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.required?;
        self.began?.checked_add(self.search_time?)
    }

    /// Returns how long a search waits for the lock: by default at most the rest of its time.
    pub(super) fn patience_in_search(&self) -> Duration {
        let left = |time: Duration| Some(time.saturating_sub(self.began?.elapsed()));
        match (self.lock_patience, self.search_time.and_then(left)) {
            (None, Some(left)) => left.min(PoolLock::PATIENCE),
            _ => self.patience(),
        }
    }

    pub(super) fn is_too_late(&self) -> bool {
        self.deadline().is_some_and(|deadline| deadline <= Instant::now())
    }
}

/// Searches for a run of the whole length.
pub fn chosen_for_runs(options: Options) -> Options {
    Options { for_runs: true, ..options }
}

/// Returns the options for further memory of `len` bytes at any address.
pub fn options_for_more(options: &Options, len: Bytes) -> Options {
    let [required, preferred] =
        [options.required, options.preferred].map(|run| run.map(|run| run.min(len)));
    Options { required, preferred, align: Bytes::ZERO, at: None, progress: None, ..options.clone() }
}
