//! [`run`]: threads that mark, write, read and unmark one region while the kernel takes from it.
//!
//! In a memory cgroup, beside a thread that reads a file longer than its limit and one that
//! allocates and frees. *Owners* have pages of their own, in runs that lie between those of others,
//! and know of each what it must hold: they mark runs of any place and length, unmark others,
//! write, read and drop. Every page they unmark is either told as lost and empty, or holds their
//! last version. A *reader* reads any of these pages meanwhile, and tells a state from the next by
//! its word in the `oracle`. *Sharers* mark and unmark overlapping runs of pages that belong to
//! none of them; now and then one looks at all of them alone, and every page that is empty must
//! have been told to one of them at least. Meanwhile children are *forked* that unmark what they
//! inherit.
//!
//! A run in which the kernel purged nothing has shown nothing and fails. Seeds are fixed; the
//! interleaving is not. Units: pages, milliseconds.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, RwLock};
use std::time::Duration;

use glebe::sys::page_size;
use glebe::units::{Bytes, Pages};
use glebe::volatile::Region;
use serde::{Deserialize, Serialize};

use super::{job, Error, Job, Which};
use crate::interrupt::Stop;
use crate::pressure::{AnonLoad, Counters, FileLoad, Group};
use crate::progress::Progress;

use oracle::Oracle;

mod forked;
mod oracle;
mod own;
mod shared;

const LIMIT: Bytes = Bytes::mib(64);
/// Read over and over: several times the limit.
const FILE: Bytes = Bytes::mib(256);
/// Had and given back: with the region all unmarked, copied by a fork, it fits into the limit.
const ANON: Bytes = Bytes::mib(8);
const OWNERS: u64 = 3;
const SHARERS: u64 = 2;
/// Pages of owners, in chunks of [`CHUNK`] by turns.
const OWN: u64 = OWNERS * CHUNK * 8;
/// Pages of sharers, behind those of owners.
const SHARED: u64 = 1024;
const CHUNK: u64 = 128;
/// Beyond the time of the stress: start, end, a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// What to do.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long in all; by turns with both engines if none is named.
    pub time: Duration,
    /// One engine only.
    pub engine: Option<Which>,
    /// Where the file that is read lies; the temporary directory without.
    pub dir: Option<PathBuf>,
}

/// What a child is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    time_ms: u64,
    which: Which,
    dir: PathBuf,
}

/// What a child did and found.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Counts {
    /// Runs marked.
    pub marks: u64,
    /// Runs unmarked.
    pub unmarks: u64,
    /// Pages written.
    pub writes: u64,
    /// Pages read and compared.
    pub reads: u64,
    /// Pages that held what they should when they were unmarked.
    pub intact_pages: u64,
    /// Pages that the kernel took.
    pub purged_pages: u64,
    /// Pages dropped on purpose.
    pub dropped_pages: u64,
    /// Children forked.
    pub forks: u64,
    /// Pages without what was written last, though nothing said that it was lost.
    pub lost_writes: u64,
    /// Pages with something older than what was written last.
    pub stale_reads: u64,
    /// Lost pages that were told as intact.
    pub false_intact: u64,
    /// Pages told as lost that were not, or not marked.
    pub false_purged: u64,
    /// Calls that failed without a reason to, or did not fail with one.
    pub errors: Vec<String>,
}

/// What one engine came to.
#[derive(Clone, Debug)]
pub struct Part {
    /// Which.
    pub which: Which,
    /// `None` if the kernel killed the child.
    pub counts: Option<Counts>,
    /// Of its group.
    pub group: Counters,
}

/// What all came to.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// One for each engine.
    pub parts: Vec<Part>,
}

/// What the threads of a child share.
struct Shared {
    region: Region,
    /// Of the owners' pages.
    oracle: Oracle,
    /// Held shared for a step of an owner, and alone where a fork wants all of them at rest.
    step: RwLock<()>,
    common: RwLock<()>,
    /// Of the sharers' pages, those told as lost since all were looked at.
    told: Vec<AtomicBool>,
    /// Version of the sharers' pages.
    versions: Mutex<Vec<u64>>,
    stop: AtomicBool,
}

impl Counts {
    fn add(&mut self, other: Self) {
        self.marks += other.marks;
        self.unmarks += other.unmarks;
        self.writes += other.writes;
        self.reads += other.reads;
        self.intact_pages += other.intact_pages;
        self.purged_pages += other.purged_pages;
        self.dropped_pages += other.dropped_pages;
        self.forks += other.forks;
        self.lost_writes += other.lost_writes;
        self.stale_reads += other.stale_reads;
        self.false_intact += other.false_intact;
        self.false_purged += other.false_purged;
        self.errors.extend(other.errors);
    }

    /// Notes a call that went wrong.
    fn error(&mut self, what: &str, why: impl fmt::Display) {
        const KEPT: usize = 20;
        if self.errors.len() < KEPT {
            self.errors.push(format!("{what}: {why}"));
        }
    }

    /// What must be 0, by name.
    #[must_use]
    pub fn checks(&self) -> [(&'static str, u64); 4] {
        [
            ("lost_writes", self.lost_writes),
            ("stale_reads", self.stale_reads),
            ("false_intact", self.false_intact),
            ("false_purged", self.false_purged),
        ]
    }
}

impl Part {
    /// Whether nothing was wrong, and the kernel took something.
    #[must_use]
    pub fn passed(&self) -> bool {
        let Some(counts) = &self.counts else { return false };
        let none = counts.checks().iter().all(|(_, count)| *count == 0);
        none && counts.errors.is_empty() && counts.purged_pages > 0 && self.group.oom_kills == 0
    }
}

impl Outcome {
    /// Whether all parts passed.
    #[must_use]
    pub fn passed(&self) -> bool {
        !self.parts.is_empty() && self.parts.iter().all(Part::passed)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in &self.parts {
            writeln!(f, "engine         {}", part.which.name())?;
            writeln!(f, "limit met      {} times", part.group.limit_hits)?;
            line(f, "oom kills", part.group.oom_kills)?;
            let Some(counts) = &part.counts else {
                writeln!(f, "killed for want of memory  WRONG")?;
                continue;
            };
            writeln!(f, "marked         {} runs", counts.marks)?;
            writeln!(f, "unmarked       {} runs", counts.unmarks)?;
            writeln!(f, "written        {} pages", counts.writes)?;
            writeln!(f, "read           {} pages", counts.reads)?;
            writeln!(f, "intact         {} pages", counts.intact_pages)?;
            let shown = if counts.purged_pages == 0 { "  WRONG: nothing was shown" } else { "" };
            writeln!(f, "purged         {} pages, by the kernel{shown}", counts.purged_pages)?;
            writeln!(f, "dropped        {} pages, on purpose", counts.dropped_pages)?;
            writeln!(f, "forks          {}", counts.forks)?;
            for (name, count) in counts.checks() {
                line(f, &name.replace('_', " "), count)?;
            }
            line(f, "wrong calls", counts.errors.len() as u64)?;
            for error in counts.errors.iter().take(5) {
                writeln!(f, "  {error}")?;
            }
        }
        Ok(())
    }
}

fn line(f: &mut fmt::Formatter<'_>, name: &str, count: u64) -> fmt::Result {
    writeln!(f, "{name:14} {count}{}", if count == 0 { "" } else { "  WRONG" })
}

/// Runs for the time given, half of it with each engine.
///
/// # Errors
/// If there is no group to be made or a child fails; what goes wrong inside is in the outcome.
pub fn run(options: &Options) -> Result<Outcome, Error> {
    let both = Which::ALL;
    let engines = options.engine.as_ref().map_or(&both[..], std::slice::from_ref);
    let time = options.time / engines.len() as u32;
    let dir = options.dir.clone().unwrap_or_else(std::env::temp_dir);
    let mut progress = Progress::new("stress", options.time.as_millis() as u64);
    let mut outcome = Outcome::default();
    for (nth, &which) in engines.iter().enumerate() {
        let before = time * nth as u32;
        let plan = Plan { time_ms: time.as_millis() as u64, which, dir: dir.clone() };
        let update = |gone: Duration| progress.update((before + gone.min(time)).as_millis() as u64);
        outcome.parts.push(part(plan, time, update)?);
    }
    progress.finish();
    Ok(outcome)
}

/// One engine, in a group of its own.
pub(super) fn part(
    plan: Plan,
    time: Duration,
    progress: impl FnMut(Duration),
) -> Result<Part, Error> {
    let group = Group::of(LIMIT)?;
    let which = plan.which;
    let (counts, group) = job::ask(&group, &Job::Stress(plan), time + PATIENCE, progress)?;
    Ok(Part { which, counts, group })
}

/// In the child.
pub(super) fn inside(plan: &Plan) -> Result<Counts, Error> {
    let len = Pages::new(OWN + SHARED).bytes(page_size());
    let shared = Shared {
        region: plan.which.map(len)?,
        oracle: Oracle::new(OWN),
        step: RwLock::new(()),
        common: RwLock::new(()),
        told: (0..SHARED).map(|_| AtomicBool::new(false)).collect(),
        versions: Mutex::new(vec![0; SHARED as usize]),
        stop: AtomicBool::new(false),
    };
    let _file = FileLoad::start(&plan.dir, FILE, Duration::ZERO)?;
    let _anon = AnonLoad::start(ANON);
    let mut counts = Counts::default();
    std::thread::scope(|scope| {
        let shared = &shared;
        let _stop = Stop(&shared.stop);
        let mut threads = Vec::new();
        for id in 0..OWNERS {
            threads.push(scope.spawn(move || own::own(shared, id)));
        }
        for id in 0..SHARERS {
            threads.push(scope.spawn(move || shared::share(shared, id)));
        }
        threads.push(scope.spawn(move || own::read(shared)));
        counts.add(forked::fork_until(shared, Duration::from_millis(plan.time_ms)));
        shared.stop.store(true, Ordering::Relaxed);
        for thread in threads {
            match thread.join() {
                Ok(part) => counts.add(part),
                Err(_) => counts.error("a thread", "panicked"),
            }
        }
    });
    Ok(counts)
}

/// Bytes from the start of the region to page `first` and to the end of `pages` from there.
fn range(first: u64, pages: u64) -> std::ops::Range<Bytes> {
    let at = |page: u64| Pages::new(page).bytes(page_size());
    at(first)..at(first + pages)
}
