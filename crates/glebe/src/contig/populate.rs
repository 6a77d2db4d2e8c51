//! Making every page of a mapping present, within the limits of cgroups and machine.
//!
//! The work is cut into slices; before each one the limits are read, so that a limit is an error
//! here before it is an OOM kill. Slices of several threads that are under way count as used
//! already; where that alone exceeds a limit a slice waits until it is the only one.
//!
//! How the slices are shared out hardly matters: the kernel's clearing of base pages is nearly all
//! of the time, and processors wait for the same memory in it. Several threads cost more processor
//! time together, and are done sooner.
//!
//! Lock: [`Gate`]'s, held shared during a slice, exclusively by one that must be alone.

use std::path::Path;
use std::time::Instant;

use super::options::{Listener, Options, Progress};
use super::Error;
use crate::mapping::Mapping;
use crate::sync::{lock, MappedWord, Mutex, Ordering, RwLock};
use crate::sys::cgroup::{Limits, Resource};
use crate::sys::numa::{self, Node};
use crate::sys::thread::start_within;
use crate::sys::{meminfo, node_memory};
use crate::units::{Bytes, PageSize};

/// Bytes populated between two looks at the limits.
const SLICE: Bytes = Bytes::mib(64);
/// Left free in a memory cgroup: page tables and the caller's own small needs are charged too.
const GROUP_MARGIN: Bytes = Bytes::mib(16);
/// Left to the rest of the machine.
const MACHINE_MARGIN: Bytes = Bytes::mib(64);

/// Memory that can be taken from the machine without swapping or killing.
pub(super) fn machine_available() -> Result<Bytes, Error> {
    Ok(meminfo::available()?.saturating_sub(MACHINE_MARGIN))
}

/// The same of a NUMA node, where one is asked for and it is not the only one.
pub(super) fn available_on(node: Option<Node>) -> Result<Bytes, Error> {
    match node.filter(|_| numa::online().len() > 1) {
        Some(node) => Ok(node_memory::of(node)?.available.saturating_sub(MACHINE_MARGIN)),
        None => machine_available(),
    }
}

/// Lets a slice through if the limits do.
pub(super) struct Gate {
    limits: Limits,
    /// Whether the bytes come from the machine's free memory rather than from a pool.
    ordinary: bool,
    node: Option<Node>,
    under_way: MappedWord,
    turn: RwLock<()>,
}

impl Gate {
    /// # Errors
    /// If it cannot be told which limits there are.
    pub fn new(resource: Resource) -> Result<Self, Error> {
        Ok(Self {
            limits: Limits::find(Path::new("/"), resource)?,
            ordinary: resource == Resource::Memory,
            node: None,
            under_way: MappedWord::new(0),
            turn: RwLock::new(()),
        })
    }

    /// The same for bytes of this NUMA node.
    pub fn on(self, node: Option<Node>) -> Self {
        Self { node, ..self }
    }

    /// Whether `asked` more bytes fit now.
    ///
    /// # Errors
    /// The limit that they do not fit, or that cannot be read.
    pub fn check(&self, asked: Bytes) -> Result<(), Error> {
        if let Some(tightest) = self.limits.tightest()? {
            let margin = if self.ordinary { GROUP_MARGIN } else { Bytes::ZERO };
            let fits = asked.checked_add(margin).is_some_and(|all| all <= tightest.headroom());
            if !fits {
                let (path, limit, usage) = (tightest.path, tightest.limit, tightest.usage);
                return Err(Error::CgroupLimit { path, limit, usage, asked });
            }
        }
        if self.ordinary {
            let available = available_on(self.node)?;
            if asked > available {
                return Err(Error::TooLarge { asked, available });
            }
        }
        Ok(())
    }

    fn pass(&self, len: Bytes, work: impl Fn() -> Result<(), Error>) -> Result<(), Error> {
        {
            let _shared = self.turn.read();
            let all = self.under_way.fetch_add(len.get(), Ordering::SeqCst) + len.get();
            let done = self.check(Bytes::new(all)).is_ok().then(&work);
            self.under_way.fetch_sub(len.get(), Ordering::SeqCst);
            if let Some(done) = done {
                return done;
            }
        }
        let _alone = self.turn.write();
        self.check(len)?;
        work()
    }
}

/// How the pages of a mapping are to be touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// From the first to the last, by one thread: what a pool hands out first comes first.
    Strict,
    /// By several threads, each slice after the one before as far as they keep in step.
    Any,
}

/// Populates all of `mapping`, whose pages are `page` large.
///
/// # Errors
/// A limit, or what the kernel refused; part of the mapping is populated then.
pub(super) fn populate(
    mapping: &Mapping,
    page: PageSize,
    order: Order,
    options: &Options,
    gate: &Gate,
) -> Result<(), Error> {
    populate_until(None, mapping, page, order, options, gate).map(drop)
}

/// As [`populate`], but begins no slice after `until`, save the first. Returns whether all is
/// populated.
///
/// # Errors
/// As there.
pub(super) fn populate_until(
    until: Option<Instant>,
    mapping: &Mapping,
    page: PageSize,
    order: Order,
    options: &Options,
    gate: &Gate,
) -> Result<bool, Error> {
    let slice = SLICE.max(page.bytes());
    let [next, done] = [MappedWord::new(0), MappedWord::new(0)];
    let progress = options.progress.as_ref();
    let failed = Mutex::new(None);
    let work = Work { mapping, slice, gate, until, next, done, progress, failed };
    let threads = match order {
        Order::Strict => 1,
        Order::Any => {
            let usual = || std::thread::available_parallelism().map_or(1, usize::from).min(8);
            options.threads.unwrap_or_else(usual).min(work.slices() as usize)
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.max(1) {
            // A thread that cannot be had is not needed: this one takes what is left.
            let _ = start_within(scope, || work.run());
        }
        work.run();
    });
    let failed = lock(&work.failed).take();
    let is_done = work.done.load(Ordering::Relaxed) == mapping.len().get();
    failed.map_or(Ok(is_done), Err)
}

/// The slices of a mapping, taken by one thread after the other.
struct Work<'a> {
    mapping: &'a Mapping,
    slice: Bytes,
    gate: &'a Gate,
    until: Option<Instant>,
    next: MappedWord,
    /// Bytes populated.
    done: MappedWord,
    progress: Option<&'a Listener>,
    failed: Mutex<Option<Error>>,
}

impl Work<'_> {
    fn slices(&self) -> u64 {
        self.mapping.len().get().div_ceil(self.slice.get())
    }

    /// Takes slices until none is left, one has failed or the time is over.
    fn run(&self) {
        loop {
            let taken = self.next.fetch_add(1, Ordering::Relaxed);
            let is_late = || self.until.is_some_and(|until| until <= Instant::now());
            if taken >= self.slices() || lock(&self.failed).is_some() || taken > 0 && is_late() {
                return;
            }
            let offset = Bytes::new(taken * self.slice.get());
            let total = self.mapping.len();
            let len = self.slice.min(total - offset);
            if let Err(error) = self.gate.pass(len, || Ok(self.mapping.populate(offset, len)?)) {
                lock(&self.failed).get_or_insert(error);
                return;
            }
            let done = Bytes::new(self.done.fetch_add(len.get(), Ordering::Relaxed)) + len;
            if let Some(listener) = self.progress {
                listener.tell(Progress { done, total });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::contig::Contig;
    use crate::mapping::Visibility;
    use crate::sys::page_size;
    use crate::sys::pagemap::{Pagemap, Residence, Run};

    #[test]
    fn every_page_is_present_whatever_the_order_and_the_threads() {
        for (order, threads) in [(Order::Strict, 3), (Order::Any, 1), (Order::Any, 3)] {
            let len = Bytes::new((130 << 20) + page_size().bytes().get());
            let mapping = Mapping::aligned(len, page_size(), Visibility::PRIVATE).unwrap();
            let seen = Arc::new(Mutex::new(Vec::new()));
            let told = Arc::clone(&seen);
            let options = Contig::options().threads(threads);
            let options = options.progress(move |progress| lock(&told).push(progress));
            let gate = Gate::new(Resource::Memory).unwrap();
            populate(&mapping, page_size(), order, &options, &gate).unwrap();
            // Each slice is told once; threads may tell theirs in any order.
            let mut seen: Vec<u64> = lock(&seen).iter().map(|told| told.done.get()).collect();
            seen.sort_unstable();
            assert_eq!((seen.len(), seen.last()), (3, Some(&len.get())));
            // Pages that the kernel is just moving elsewhere are not present, but resident.
            let pagemap = Pagemap::open().unwrap();
            let runs = pagemap.runs(mapping.addr(), len, pagemap.reading()).unwrap();
            let resident = |run: &Run| run.residence == Residence::Page;
            assert!(!runs.is_empty() && runs.iter().all(resident), "{runs:?}");
        }
    }

    #[test]
    fn no_slice_but_the_first_is_begun_when_the_time_is_over() {
        let mapping = Mapping::aligned(Bytes::mib(256), page_size(), Visibility::PRIVATE).unwrap();
        let gate = Gate::new(Resource::Memory).unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&seen);
        let options = Contig::options().threads(2);
        let options = options.progress(move |progress| lock(&told).push(progress.done));
        let past = Some(Instant::now());
        let done = populate_until(past, &mapping, page_size(), Order::Any, &options, &gate);
        assert!(!done.unwrap());
        assert_eq!(*lock(&seen), [SLICE]);
        // What is left comes with the next call.
        populate(&mapping, page_size(), Order::Any, &Contig::options(), &gate).unwrap();
    }

    #[test]
    fn a_failure_stops_all_threads_and_is_returned() {
        let mapping = Mapping::aligned(Bytes::mib(256), page_size(), Visibility::PRIVATE).unwrap();
        let gate = Gate { ordinary: true, ..Gate::new(Resource::Memory).unwrap() };
        gate.under_way.store(u64::MAX - (1 << 40), Ordering::SeqCst);
        // With that much under way nothing passes beside it; alone each slice passes.
        let options = Contig::options().threads(2);
        populate(&mapping, page_size(), Order::Any, &options, &gate).unwrap();
        let too_much = gate.check(Bytes::new(1 << 60));
        assert!(matches!(too_much, Err(Error::TooLarge { .. } | Error::CgroupLimit { .. })));
    }
}
