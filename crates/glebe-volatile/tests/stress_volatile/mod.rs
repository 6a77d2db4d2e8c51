//! Stresses regions: threads mark, write, read and unmark while the kernel takes pages.
//!
//! *Owners* mark, unmark, write, read and drop runs of their own pages. Each page that they unmark
//! is reported lost and empty, or holds its last version. A *reader* reads owned pages and checks
//! them against the `oracle`. *Sharers* mark and unmark overlapping runs of common pages. At times
//! a sharer checks that each empty page was reported to a sharer.
//!
//! A run proves nothing about a region that lost no page or every page, or whose callback refilled
//! no page. The test then prolongs or repeats the run. `GLEBE_STRESS_SECONDS` sets the duration per
//! engine. Units: pages.
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

use glebe_os::internal::sys::page_size;
use glebe_os::units::{Bytes, Pages};
use glebe_testing::process::child_of;
use glebe_testing::time::storm;
use glebe_volatile::{Engine, Region};

use glebe_testing::cgroup::{self, Group};
use glebe_testing::stressed::signals::Signals;
use glebe_testing::stressed::{spawn, Stop};
use glebe_testing::turn::Turn;
use ground::{Ground, Kind};

const LIMIT: Bytes = Bytes::mib(96);
/// Bytes of the file: four times the limit.
const FILE: Bytes = Bytes::mib(384);
/// Bytes allocated at once. `LIMIT` has room for `ANON`, all unmarked regions, and a fork's copy.
const ANON: Bytes = Bytes::mib(8);
const ANON_REST: Duration = Duration::from_millis(2);
const SHARERS: u64 = 2;
/// Pages of sharers, behind the owners' pages.
const SHARED: u64 = 1024;
/// Limit on losses reported per page that the kernel counts as freed; the count can miss parts of a
/// split huge page.
const LEEWAY: f64 = 1.25;
const USUAL: Duration = Duration::from_millis(1500);
/// Extra time while a region has not both lost and kept pages.
const GRACE: Duration = Duration::from_secs(40);
/// Most attempts, because the kernel may take nothing from a region.
const ATTEMPTS: usize = 3;
const COUNTS: &str = "/proc/vmstat";
const GROUP: &str = "GLEBE_TEST_CGROUP";
const NOTHING_SHOWN: i32 = 3;

#[derive(Clone, Debug, Default)]
struct Counts {
    intact_pages: u64,
    purged_pages: u64,
    refilled_pages: u64,
    /// Pages without their last write that were not reported lost.
    lost_writes: u64,
    stale_reads: u64,
    false_intact: u64,
    false_purged: u64,
}

impl Counts {
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

    fn faults(&self) -> [u64; 4] {
        [self.lost_writes, self.stale_reads, self.false_intact, self.false_purged]
    }

    fn check(&self) {
        assert_eq!(self.faults(), [0; 4], "{self:?}");
    }
}

struct Shared {
    /// Regions in the order of [`Kind::ALL`]. The first also has sharers.
    grounds: Vec<Ground>,
    /// Locked exclusively by a fork that needs all owners and sharers at rest.
    step: RwLock<()>,
    sharing: RwLock<()>,
    /// Sharers' pages reported lost since the last check.
    told: Vec<AtomicBool>,
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

    fn common(&self) -> &Ground {
        &self.grounds[0]
    }

    fn base(&self) -> u64 {
        self.common().own()
    }
}

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

/// Creates a nameless file, preferably on a disk: the kernel cannot reclaim tmpfs without swap.
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

/// Fills the page cache, which the kernel can always reclaim.
fn read_file(file: &File, shared: &Shared) {
    let mut block = vec![0; Bytes::mib(1).as_usize()];
    for at in (0..FILE.get()).step_by(block.len()).cycle() {
        if shared.stopped() {
            break;
        }
        file.read_exact_at(&mut block, at).unwrap();
    }
}

/// Uses memory that the kernel cannot reclaim.
fn allocate(shared: &Shared) {
    while !shared.stopped() {
        let mut memory = vec![0_u8; ANON.as_usize()];
        memory.iter_mut().step_by(page_size().bytes().as_usize()).for_each(|byte| *byte = 1);
        black_box(&memory);
        thread::sleep(ANON_REST);
    }
}

fn lazy_freed() -> u64 {
    let text = fs::read_to_string(COUNTS).unwrap();
    text.lines().find_map(|line| line.strip_prefix("pglazyfreed ")?.parse().ok()).unwrap()
}

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
