//! Threads that mark, write, read and unmark regions while the kernel takes from them.
//!
//! In a memory cgroup, beside a thread that reads a file longer than its limit and one that
//! allocates and frees. The regions are of every [`Kind`], all at once. *Owners* have pages of
//! their own, in runs that lie between those of others, and know of each what it must hold: they
//! mark runs of any place and length, unmark others, write, read and drop. Every page they unmark
//! is either told as lost and empty, or holds their last version. A *reader* reads any of these
//! pages meanwhile, by every way that there is, and tells a state from the next by its word in the
//! `oracle`; where touches of lost pages are refilled, a page holds what it must, or from some byte
//! on what the callback gave. *Sharers* mark and unmark overlapping runs of pages that belong to
//! none of them; now and then one looks at all of them alone, and every page that is empty must
//! have been told to one of them at least. Meanwhile children are *forked* that unmark what they
//! inherit.
//!
//! A run in which the kernel purged nothing of a region, or everything, has shown nothing of it: it
//! goes on for a while, and is done again if nothing comes of that. No more may be told as lost
//! than the kernel says that it took (`pglazyfreed` of the whole machine, with some leeway). Seeds
//! are fixed; the interleaving is not. `GLEBE_STRESS_SECONDS` says how long each engine is at it.
//! Units: pages.
#![allow(unsafe_code)] // Safety: see `ground` and `stressed`.

mod forked;
mod ground;
mod oracle;
mod own;
mod shared;

use std::fs::{self, File};
use std::hint::black_box;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, RwLock};
use std::thread;
use std::time::Duration;

use glebe::sys::page_size;
use glebe::units::{Bytes, Pages};
use glebe::volatile::{Engine, Region};
use glebe_testing::process::child_of;
use glebe_testing::time::storm;

use crate::cgroup::{self, Group};
use crate::stressed::signals::Signals;
use crate::stressed::{spawn, Stop};
use crate::turn::Turn;
use ground::{Ground, Kind};

const LIMIT: Bytes = Bytes::mib(96);
/// Read over and over: several times the limit.
const FILE: Bytes = Bytes::mib(384);
/// Had and given back: with the regions all unmarked, copied by a fork, it fits into the limit.
const ANON: Bytes = Bytes::mib(8);
const ANON_REST: Duration = Duration::from_millis(2);
const SHARERS: u64 = 2;
/// Pages of sharers, behind those of owners.
const SHARED: u64 = 1024;
/// Told as lost for each page that the kernel counts as taken: a huge page in parts can lose some
/// of them uncounted.
const LEEWAY: f64 = 1.25;
const USUAL: Duration = Duration::from_millis(1500);
/// Beyond the time of the stress, while a region has shown nothing.
const GRACE: Duration = Duration::from_secs(40);
/// Runs in which the kernel left some region alone, which is its choice.
const ATTEMPTS: usize = 3;
/// What the kernel counts as taken, of the whole machine.
const COUNTS: &str = "/proc/vmstat";
const GROUP: &str = "GLEBE_TEST_CGROUP";
/// How a child ends that has shown nothing.
const NOTHING_SHOWN: i32 = 3;

/// What was done and found.
#[derive(Clone, Debug, Default)]
struct Counts {
    /// Pages that held what they should when they were unmarked.
    intact_pages: u64,
    /// Pages that the kernel took.
    purged_pages: u64,
    /// Pages that a callback had refilled.
    refilled_pages: u64,
    /// Pages without what was written last, though nothing said that it was lost.
    lost_writes: u64,
    /// Pages with something older than what was written last.
    stale_reads: u64,
    /// Lost pages that were told as intact.
    false_intact: u64,
    /// Pages told as lost that were not, or not marked.
    false_purged: u64,
}

impl Counts {
    /// Why a region with these counts has shown nothing, if so.
    fn shown_nothing(&self, kind: Kind, engine: Engine) -> Option<&'static str> {
        let refills = kind == Kind::Refilled && engine == Engine::Scan;
        match self {
            Self { purged_pages: 0, .. } => Some("nothing was purged"),
            Self { intact_pages: 0, .. } => Some("nothing was kept"),
            Self { refilled_pages: 0, .. } if refills => Some("nothing was refilled"),
            _ => None,
        }
    }

    fn add(&mut self, other: &Self) {
        self.intact_pages += other.intact_pages;
        self.purged_pages += other.purged_pages;
        self.refilled_pages += other.refilled_pages;
        self.lost_writes += other.lost_writes;
        self.stale_reads += other.stale_reads;
        self.false_intact += other.false_intact;
        self.false_purged += other.false_purged;
    }

    /// The faults, which must be 0.
    fn faults(&self) -> [u64; 4] {
        [self.lost_writes, self.stale_reads, self.false_intact, self.false_purged]
    }

    /// Panics on any fault.
    fn check(&self) {
        assert_eq!(self.faults(), [0; 4], "{self:?}");
    }
}

/// What the threads of a child share.
struct Shared {
    /// In the order of [`Kind::ALL`]; the first has sharers too.
    grounds: Vec<Ground>,
    /// Held shared for a step of an owner, and alone where a fork wants all of them at rest.
    step: RwLock<()>,
    sharing: RwLock<()>,
    /// Of the sharers' pages, those told as lost since all were looked at.
    told: Vec<AtomicBool>,
    /// Version of the sharers' pages.
    versions: Mutex<Vec<u64>>,
    stop: AtomicBool,
}

impl Shared {
    fn new(engine: Engine) -> Self {
        let sharers = |kind| if kind == Kind::Own { SHARED } else { 0 };
        let ground = |kind| Ground::new(kind, engine, sharers(kind));
        Self {
            grounds: Kind::ALL.map(ground).into(),
            step: RwLock::new(()),
            sharing: RwLock::new(()),
            told: (0..SHARED).map(|_| AtomicBool::new(false)).collect(),
            versions: Mutex::new(vec![0; SHARED as usize]),
            stop: AtomicBool::new(false),
        }
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// The ground that has sharers.
    fn common(&self) -> &Ground {
        &self.grounds[0]
    }

    /// Its first page of theirs.
    fn base(&self) -> u64 {
        self.common().own()
    }
}

/// In the child.
fn inside(group: &Path, engine: Engine) {
    cgroup::enter(group);
    let signals = Signals::start(Duration::from_millis(1));
    let before = lazy_freed();
    let shared = &Shared::new(engine);
    let mut counts = vec![Counts::default(); shared.grounds.len()];
    for (ground, counts) in shared.grounds.iter().zip(&mut counts) {
        (0..ground.owners).for_each(|id| counts.add(&own::begin(shared, ground, id)));
        ground.look_for_huge_pages();
    }
    let file = sparse_file();
    thread::scope(|scope| {
        let stop = Stop(&shared.stop);
        let mut threads = Vec::new();
        for (nth, ground) in shared.grounds.iter().enumerate() {
            for id in 0..ground.owners {
                let own = move || own::own(shared, ground, id);
                threads.push((nth, spawn(scope, &shared.stop, own)));
            }
            threads.push((nth, spawn(scope, &shared.stop, move || own::read(shared, ground))));
        }
        for id in 0..SHARERS {
            threads.push((0, spawn(scope, &shared.stop, move || shared::share(shared, id))));
        }
        scope.spawn(|| read_file(&file, shared));
        scope.spawn(|| allocate(shared));
        forked::fork_until(shared, storm(USUAL));
        drop(stop);
        for (nth, thread) in threads {
            counts[nth].add(&thread.join().unwrap());
        }
    });
    assert!(signals.came() > 100, "{} signals", signals.came());
    drop(signals);
    let mut nothing = false;
    for (ground, counts) in shared.grounds.iter().zip(&counts) {
        counts.check();
        let why = counts.shown_nothing(ground.kind, engine);
        nothing |= why.is_some();
        println!("{engine}, {ground}: {counts:?} {}", why.unwrap_or_default());
    }
    let purged: u64 = counts.iter().map(|counts| counts.purged_pages).sum();
    let kernel = lazy_freed() - before;
    assert!(purged as f64 <= kernel as f64 * LEEWAY, "{purged} told, {kernel} taken");
    if nothing {
        std::process::exit(NOTHING_SHOWN);
    }
}

/// A file without a name, on a disk: what a tmpfs holds is not given back.
fn sparse_file() -> File {
    let dirs = [PathBuf::from(env!("CARGO_MANIFEST_DIR")), std::env::temp_dir()];
    let name = format!(".glebe-pressure-{}", std::process::id());
    let made = dirs.iter().map(|dir| dir.join(&name)).find_map(|path| {
        let file = File::options().read(true).write(true).create_new(true).open(&path).ok()?;
        fs::remove_file(&path).unwrap();
        Some(file)
    });
    let file = made.expect("a directory to write to");
    file.set_len(FILE.get()).unwrap();
    file
}

/// Reads through the page cache: the kernel can always take back what was read.
fn read_file(file: &File, shared: &Shared) {
    let mut block = vec![0; Bytes::mib(1).as_usize()];
    for at in (0..FILE.get()).step_by(block.len()).cycle() {
        if shared.stopped() {
            break;
        }
        file.read_exact_at(&mut block, at).unwrap();
    }
}

/// Has memory by turns that the kernel cannot take back.
fn allocate(shared: &Shared) {
    while !shared.stopped() {
        let mut memory = vec![0_u8; ANON.as_usize()];
        memory.iter_mut().step_by(page_size().bytes().as_usize()).for_each(|byte| *byte = 1);
        black_box(&memory);
        thread::sleep(ANON_REST);
    }
}

/// Marked pages that the kernel took so far, of all processes.
fn lazy_freed() -> u64 {
    let text = fs::read_to_string(COUNTS).unwrap();
    text.lines().find_map(|line| line.strip_prefix("pglazyfreed ")?.parse().ok()).unwrap()
}

/// Bytes from the start of the region to page `first` and to the end of `pages` from there.
fn range(first: u64, pages: u64) -> Range<Bytes> {
    let at = |page: u64| Pages::new(page).bytes(page_size());
    at(first)..at(first + pages)
}

fn stress(engine: Engine, test: &str) {
    if let Some(group) = std::env::var_os(GROUP) {
        return inside(Path::new(&group), engine);
    }
    if let Err(why) = Region::options().engine(engine).build(page_size().bytes()) {
        println!("skipped: engine {engine}: {why}");
        return;
    }
    let _turn = Turn::alone(COUNTS);
    for attempt in 1..=ATTEMPTS {
        let group = match Group::make(LIMIT) {
            Ok(group) => group,
            Err(why) => {
                println!("skipped: {why}");
                return;
            }
        };
        let status = child_of(test).env(GROUP, group.dir()).status().unwrap();
        assert_eq!(group.kills(), 0, "killed for want of memory");
        if status.code() != Some(NOTHING_SHOWN) || attempt == ATTEMPTS {
            assert!(status.success(), "{status}");
            return;
        }
    }
}

#[test]
fn pressure_and_the_scan_engine() {
    stress(Engine::Scan, "stress_volatile::pressure_and_the_scan_engine");
}

#[test]
fn pressure_and_the_tag_engine() {
    stress(Engine::Tag, "stress_volatile::pressure_and_the_tag_engine");
}
