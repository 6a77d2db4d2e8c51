//! [`Options`]: what memory is wanted.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::pool::{Place, PoolLock};
use super::{Node, Source};
use crate::units::Bytes;

/// How far populating is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes populated.
    pub done: Bytes,
    /// Bytes to populate.
    pub total: Bytes,
}

/// Who is told of the progress.
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

/// What to do with a length that is no whole number of a source's pages. No plan rounds to a power
/// of two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Plan {
    /// Whole pages of one source; what is beyond the length is the caller's too.
    #[default]
    Whole,
    /// The same, and what is beyond the length is given back, as far as the source takes part of a
    /// page back: transparent huge pages do, a hugetlb pool does not
    /// ([`Contig::spare`](super::Contig::spare)).
    RoundUp,
    /// The largest blocks first, then smaller ones for the remainder, side by side in the mapping:
    /// hugetlb pages of each size, largest first, then small pages.
    Divide,
}

/// What memory is wanted. Made by [`Contig::options`](super::Contig::options), ended by
/// [`Options::build`].
///
/// ```
/// use glebe::contig::{Contig, Error, Source};
/// use glebe::units::Bytes;
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
    /// The one to use; the best if none.
    pub(super) source: Option<Source>,
    pub(super) plan: Plan,
    pub(super) required: Option<Bytes>,
    pub(super) preferred: Option<Bytes>,
    pub(super) align: Bytes,
    pub(super) at: Option<usize>,
    pub(super) search: Option<Bytes>,
    pub(super) search_time: Option<Duration>,
    /// When the call began whose time that is.
    pub(super) began: Option<Instant>,
    pub(super) any_order: bool,
    pub(super) for_runs: bool,
    pub(super) node: Option<Node>,
    pub(super) pin: Option<bool>,
    pub(super) dma_heap: Option<PathBuf>,
    pub(super) threads: Option<usize>,
    pub(super) grow_pool: Option<bool>,
    pub(super) lock_patience: Option<Duration>,
    pub(super) mappable: bool,
    pub(super) progress: Option<Listener>,
    /// Where the pools and their lock are.
    pub(super) place: Place,
}

impl Options {
    /// Uses this source or none. By default the best that can be had is used: hugetlb pages of each
    /// size from 2 MiB on that divides the length, largest first (the smallest of them also if the
    /// length must be rounded up to it), then transparent huge pages, then base pages; before all
    /// of them the bank ([`bank`](super::bank)), for a run that it may hold.
    pub fn source(self, source: impl Into<Option<Source>>) -> Self {
        Self { source: source.into(), ..self }
    }

    /// What to do with a length that is no whole number of pages.
    pub fn plan(self, plan: Plan) -> Self {
        Self { plan, ..self }
    }

    /// The address of the first byte is a multiple of `align`, a power of two; it is one of the
    /// source's page in any case, and of a huge page so is the frame's.
    pub fn align(self, align: Bytes) -> Self {
        Self { align, ..self }
    }

    /// Wants the memory at this address, where nothing may be mapped.
    pub fn at(self, addr: usize) -> Self {
        Self { at: Some(addr), ..self }
    }

    /// Takes pages of this NUMA node only. The pool grows by its part on the node, and memory
    /// blocks and available memory are the node's. On a machine with several nodes, pages are
    /// chosen for their frames only on a node with a processor that the caller may use.
    pub fn node(self, node: Node) -> Self {
        Self { node: Some(node), ..self }
    }

    /// Whether pages of a hugetlb pool are put in physical order; by default they are. That costs
    /// some 8 µs for each stretch of pages that did not come so, and of a file's pages
    /// ([`Options::mappable`]) their zeroing once more. Without it runs are as the pool hands them
    /// out.
    pub fn in_order(self, order: bool) -> Self {
        Self { any_order: !order, ..self }
    }

    /// Looks at up to `len` of the machine's memory for a run, and without one asked for
    /// ([`Options::require_run`], [`Options::prefer_run`]) for the longest runs there are. By
    /// default no more is looked at than needed where no run is asked for, and else all that can
    /// be spared: what is available but for a tenth, and at least 1 GiB. Of what is looked at only
    /// what is kept is zeroed where `/proc/kpageflags` can be read, else all of it. With 0 pages
    /// are had as the pool hands them out.
    pub fn search(self, len: Bytes) -> Self {
        Self { search: Some(len), ..self }
    }

    /// How long a search for runs may go on, from the call on, whatever is tried. Steps that would
    /// take longer than what is left are left out: a compaction of the machine's memory, 80 ms a
    /// GiB of it at most, and pages of 1 GiB, 250 ms each. A run that is required and not had by
    /// then is refused when the slice of 64 MiB is zeroed that was begun; pages that lie idle in a
    /// pool are zeroed all the same where the run may be among them.
    ///
    /// By default a search may use 2 s of processor time, or 2 s for each GiB, and three times that
    /// for a required run. Compaction does not count. Where other programs use the processors, the
    /// search takes longer, at most five times that in wall time.
    pub fn search_time(self, time: Duration) -> Self {
        Self { search_time: Some(time), ..self }
    }

    /// For memory that is set aside once, for its runs: looks for them as if one was asked for.
    pub(crate) fn chosen_for_runs(self) -> Self {
        Self { for_runs: true, ..self }
    }

    /// Whether pages are held in their frames by a long-term pin, on a hugetlb pool's too: `true`
    /// requires it, `false` does without. By default it is tried where nothing else holds them and
    /// they are no file's.
    pub fn pin(self, pin: bool) -> Self {
        Self { pin: Some(pin), ..self }
    }

    /// Takes a buffer of the dma-heap at `path` and nothing else.
    pub fn dma_heap(mut self, path: impl Into<PathBuf>) -> Self {
        self.source = Some(Source::DmaHeap);
        self.dma_heap = Some(path.into());
        self
    }

    /// Requires a physically contiguous run of `len`: without one,
    /// [`Error::NotContiguous`](super::Error::NotContiguous).
    pub fn require_run(self, len: Bytes) -> Self {
        Self { required: Some(len), ..self }
    }

    /// Tries for a physically contiguous run of `len`;
    /// [`Contig::longest_run`](super::Contig::longest_run) says what came.
    pub fn prefer_run(self, len: Bytes) -> Self {
        Self { preferred: Some(len), ..self }
    }

    /// Populates by up to `n` threads; as many as processors, and at most 8, by default.
    pub fn threads(self, n: usize) -> Self {
        Self { threads: Some(n), ..self }
    }

    /// Calls `told` as populating goes on, from the threads that populate. A source that takes
    /// pages several times to put them in order, or to look for longer runs, counts each round
    /// from zero.
    pub fn progress(self, told: impl Fn(Progress) + Send + Sync + 'static) -> Self {
        Self { progress: Some(Listener(Arc::new(told))), ..self }
    }

    /// Whether a hugetlb pool may be given pages for this that it has not; by default if the caller
    /// may. The kernel has them back when this is dropped or the process ends, also by SIGKILL.
    pub fn grow_pool(self, grow: bool) -> Self {
        Self { grow_pool: Some(grow), ..self }
    }

    /// How long to wait for other programs that change the hugetlb pools at the moment
    /// ([`PoolLock::PATIENCE`] by default); then that source is
    /// refused with the process that was waited for. No wait is needed where the pool has the
    /// pages.
    pub fn lock_patience(self, patience: Duration) -> Self {
        Self { lock_patience: Some(patience), ..self }
    }

    /// Draws the pages from a file in memory, so that they can be mapped elsewhere once more
    /// ([`Contig::file`](super::Contig::file), [`vmap`](crate::vmap)). Transparent huge pages are
    /// had for files only where the machine allows it (`shmem_enabled`), which few do by default.
    pub fn mappable(self) -> Self {
        Self { mappable: true, ..self }
    }

    pub(super) fn patience(&self) -> Duration {
        self.lock_patience.unwrap_or(PoolLock::PATIENCE)
    }

    /// The run to try for in `len` bytes.
    pub(super) fn run(&self, len: Bytes) -> Option<Bytes> {
        self.required.max(self.preferred).or(self.for_runs.then_some(len))
    }

    /// The same wishes for more memory, of `len`: without an address, and no run is longer than it.
    pub(crate) fn again(&self, len: Bytes) -> Self {
        let [required, preferred] =
            [self.required, self.preferred].map(|run| run.map(|run| run.min(len)));
        Self { required, preferred, align: Bytes::ZERO, at: None, progress: None, ..self.clone() }
    }

    /// When a required run must be had, if the caller gave a time.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.required?;
        self.began?.checked_add(self.search_time?)
    }

    /// Whether that is over.
    pub(super) fn is_too_late(&self) -> bool {
        self.deadline().is_some_and(|deadline| deadline <= Instant::now())
    }
}
