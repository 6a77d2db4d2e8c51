//! Populates mappings within the limits of cgroups and machine.
//!
//! [`Gate`] reads the limits before each slice, so that a shortage is an error and not an OOM kill.
//! A slice that fits only alone waits for the others to end.
//!
//! Lock: `turn`, shared during a slice, exclusive for a slice that waited.

use std::path::Path;
use std::time::Instant;

use super::options::{Listener, Options, Progress};
use super::Error;
use glebe_os::internal::mapping::Mapping;
use glebe_os::internal::sync::{lock, MappedWord, Mutex, Ordering, RwLock};
use glebe_os::internal::sys::machine::cgroup::{Limits, Resource};
use glebe_os::internal::sys::machine::meminfo;
use glebe_os::internal::sys::machine::node_memory;
use glebe_os::internal::sys::machine::numa::{self, Node};
use glebe_os::internal::sys::processes::thread::start_within;
use glebe_os::units::{Bytes, PageSize};

const SLICE: Bytes = Bytes::mib(64);
/// Bytes left in a memory cgroup for other use, such as page tables.
const GROUP_MARGIN: Bytes = Bytes::mib(16);
const MACHINE_MARGIN: Bytes = Bytes::mib(64);

pub(super) fn machine_available() -> Result<Bytes, Error> {
    Ok(meminfo::available()?.saturating_sub(MACHINE_MARGIN))
}

/// Returns the available bytes of `nodes`, or of the machine if the set is empty.
pub(super) fn available_on(nodes: &[Node]) -> Result<Bytes, Error> {
    if !numa::are_a_part(nodes) {
        return machine_available();
    }
    let mut all = Bytes::ZERO;
    for node in nodes {
        all = all + node_memory::of(*node)?.available;
    }
    Ok(all.saturating_sub(MACHINE_MARGIN))
}

pub(super) struct Gate {
    limits: Limits,
    /// The limits without those on reservations, which count a mapping's pages from mmap on.
    at_touch: Limits,
    /// True for ordinary memory, false for a hugetlb pool.
    ordinary: bool,
    nodes: Vec<Node>,
    under_way: MappedWord,
    turn: RwLock<()>,
}

impl Gate {
    pub fn new(resource: Resource) -> Result<Self, Error> {
        Self::below(Path::new("/"), resource)
    }

    fn below(root: &Path, resource: Resource) -> Result<Self, Error> {
        let limits = Limits::find(root, resource)?;
        Ok(Self {
            at_touch: limits.at_touch(),
            limits,
            ordinary: resource == Resource::Memory,
            nodes: Vec::new(),
            under_way: MappedWord::new(0),
            turn: RwLock::new(()),
        })
    }

    pub fn on(self, nodes: &[Node]) -> Self {
        Self { nodes: nodes.to_vec(), ..self }
    }

    /// Checks that `asked` more bytes may be mapped and touched.
    pub fn check(&self, asked: Bytes) -> Result<(), Error> {
        self.check_in(&self.limits, asked)
    }

    fn check_in(&self, limits: &Limits, asked: Bytes) -> Result<(), Error> {
        if let Some(tightest) = limits.tightest()? {
            let margin = if self.ordinary { GROUP_MARGIN } else { Bytes::ZERO };
            let fits = asked.checked_add(margin).is_some_and(|all| all <= tightest.headroom());
            if !fits {
                let (path, limit, usage) = (tightest.path, tightest.limit, tightest.usage);
                return Err(Error::CgroupLimit { path, limit, usage, asked });
            }
        }
        if self.ordinary {
            let available = available_on(&self.nodes)?;
            if asked > available {
                return Err(Error::too_large(asked, available));
            }
        }
        Ok(())
    }

    fn pass(&self, len: Bytes, work: impl Fn() -> Result<(), Error>) -> Result<(), Error> {
        {
            let _shared = self.turn.read();
            let all = self.under_way.fetch_add(len.get(), Ordering::SeqCst) + len.get();
            let done = self.check_in(&self.at_touch, Bytes::new(all)).is_ok().then(&work);
            self.under_way.fetch_sub(len.get(), Ordering::SeqCst);
            if let Some(done) = done {
                return done;
            }
        }
        let _alone = self.turn.write();
        self.check_in(&self.at_touch, len)?;
        work()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// One thread, from first to last.
    Strict,
    /// Several threads, roughly in order.
    Any,
}

pub(super) fn populate(
    mapping: &Mapping,
    page: PageSize,
    order: Order,
    options: &Options,
    gate: &Gate,
) -> Result<(), Error> {
    populate_until(None, mapping, page, order, options, gate).map(drop)
}

/// Begins no slice after `until`, except the first. Returns true if all is populated.
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
            // If no other thread starts, this thread populates all slices.
            let _ = start_within(scope, || work.run());
        }
        work.run();
    });
    let failed = lock(&work.failed).take();
    let is_done = work.done.load(Ordering::Relaxed) == mapping.len().get();
    failed.map_or(Ok(is_done), Err)
}

struct Work<'a> {
    mapping: &'a Mapping,
    slice: Bytes,
    gate: &'a Gate,
    until: Option<Instant>,
    next: MappedWord,
    done: MappedWord,
    progress: Option<&'a Listener>,
    failed: Mutex<Option<Error>>,
}

impl Work<'_> {
    fn slices(&self) -> u64 {
        self.mapping.len().get().div_ceil(self.slice.get())
    }

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
    use crate::Contig;
    use glebe_os::internal::mapping::Visibility;
    use glebe_os::internal::sys::memory::pagemap::{Pagemap, Residence, Run};
    use glebe_os::internal::sys::page_size;

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
            match populate(&mapping, page_size(), order, &options, &gate) {
                Err(error @ Error::TooLarge { .. }) => return println!("skipped: {error}"),
                populated => populated.unwrap(),
            }
            let mut seen: Vec<u64> = lock(&seen).iter().map(|told| told.done.get()).collect();
            seen.sort_unstable();
            assert_eq!((seen.len(), seen.last()), (3, Some(&len.get())));
            // A page that the kernel is moving is resident but not present.
            let pagemap = Pagemap::open().unwrap();
            let runs = pagemap.runs(mapping.addr(), len, pagemap.reading()).unwrap();
            let resident = |run: &Run| run.residence == Residence::Page;
            assert!(!runs.is_empty() && runs.iter().all(resident), "{runs:?}");
        }
    }

    #[test]
    fn a_limit_on_reservations_counts_mapped_pages_once() {
        let name = format!("glebe-gate-{}", std::process::id());
        let root = std::env::temp_dir().join(name);
        let group = root.join("sys/fs/cgroup/pod");
        std::fs::create_dir_all(&group).unwrap();
        std::fs::create_dir_all(root.join("proc/self")).unwrap();
        let limit = Bytes::mib(64);
        for (name, value) in
            [("max", limit), ("current", Bytes::ZERO), ("rsvd.max", limit), ("rsvd.current", limit)]
        {
            let file = group.join(format!("hugetlb.2MB.{name}"));
            std::fs::write(file, value.get().to_string()).unwrap();
        }
        std::fs::write(root.join("proc/self/cgroup"), "0::/pod\n").unwrap();
        let mounted = "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        std::fs::write(root.join("proc/self/mountinfo"), mounted).unwrap();

        let size = PageSize::new(2 << 20).unwrap();
        let gate = Gate::below(&root, Resource::Hugetlb(size)).unwrap();
        let [mapped, more] = [limit, limit + size.bytes()].map(|len| gate.pass(len, || Ok(())));
        let unmapped = gate.check(size.bytes());
        std::fs::remove_dir_all(&root).unwrap();
        mapped.unwrap();
        for refused in [more, unmapped] {
            assert!(matches!(refused, Err(Error::CgroupLimit { .. })), "{refused:?}");
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
        populate(&mapping, page_size(), Order::Any, &Contig::options(), &gate).unwrap();
    }

    #[test]
    fn a_failure_stops_all_threads_and_is_returned() {
        let mapping = Mapping::aligned(Bytes::mib(256), page_size(), Visibility::PRIVATE).unwrap();
        let gate = Gate { ordinary: true, ..Gate::new(Resource::Memory).unwrap() };
        gate.under_way.store(u64::MAX - (1 << 40), Ordering::SeqCst);
        // Together the slices exceed the limit; alone, each fits.
        let options = Contig::options().threads(2);
        populate(&mapping, page_size(), Order::Any, &options, &gate).unwrap();
        let too_much = gate.check(Bytes::new(1 << 60));
        assert!(matches!(too_much, Err(Error::TooLarge { .. } | Error::CgroupLimit { .. })));
    }
}
