//! [`run`]: threads that mark, write, read and unmark regions while the kernel takes from them.
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
//! goes on for a while, and fails if nothing comes of that. No more may be told as lost than the
//! kernel says that it took (`pglazyfreed` of the whole machine, with some leeway). Seeds are
//! fixed; the interleaving is not. Units: pages, milliseconds.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, RwLock};
use std::time::Duration;

use glebe::error::OsError;
use glebe::sys::page_size;
use glebe::units::{Bytes, Pages};
use serde::{Deserialize, Serialize};

use super::{job, Error, Job, Which};
use crate::interrupt::Stop;
use crate::pressure::{AnonLoad, Counters, FileLoad, Group};
use crate::progress::Progress;
use crate::signals::{self, Signals};

pub use ground::Kind;

use ground::Ground;

mod forked;
mod ground;
mod oracle;
mod own;
mod shared;

const LIMIT: Bytes = Bytes::mib(96);
/// Read over and over: several times the limit.
const FILE: Bytes = Bytes::mib(384);
/// Had and given back: with the regions all unmarked, copied by a fork, it fits into the limit.
const ANON: Bytes = Bytes::mib(8);
const SHARERS: u64 = 2;
/// Pages of sharers, behind those of owners.
const SHARED: u64 = 1024;
/// Told as lost for each page that the kernel counts as taken: a huge page in parts can lose some
/// of them uncounted.
const LEEWAY: f64 = 1.25;
/// Beyond the time of the stress, while a region has shown nothing.
const GRACE: Duration = Duration::from_secs(40);
/// Beyond that: start, end, a machine that is busy.
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
    /// Signals to each thread a second.
    pub signal_hz: Option<u32>,
}

/// What a child is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    time_ms: u64,
    which: Which,
    dir: PathBuf,
    signal_hz: Option<u32>,
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
    /// Pages that a callback had refilled.
    pub refilled_pages: u64,
    /// Pages that were read by touching them.
    pub touches: u64,
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

/// What a child found, region by region.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Found {
    grounds: Vec<(Kind, Counts)>,
    /// Pages of any process that the kernel says it took meanwhile.
    kernel_purged: u64,
    /// Pages of the huge region, and the most that were huge.
    huge_pages: (u64, u64),
    /// Signals that came, if any were asked for.
    signals: Option<u64>,
}

/// What one engine came to.
#[derive(Clone, Debug)]
pub struct Part {
    /// Which.
    pub which: Which,
    /// `None` if the kernel killed the child.
    pub found: Option<Found>,
    /// Of its group.
    pub group: Counters,
}

/// What all came to.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// One for each engine.
    pub parts: Vec<Part>,
    /// Engines that are not here, and why.
    pub refused: Vec<(Which, String)>,
}

/// What the threads of a child share.
struct Shared {
    /// In the order of [`Kind::ALL`]; the first has sharers too.
    grounds: Vec<Ground>,
    /// The most pages that were seen huge.
    huge_pages: AtomicU64,
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
    /// The ground that has sharers.
    fn common(&self) -> &Ground {
        &self.grounds[0]
    }

    /// Its first page of theirs.
    fn base(&self) -> u64 {
        self.common().own()
    }

    fn look_for_huge_pages(&self) {
        let huge = self.grounds.iter().filter(|ground| ground.kind == Kind::Huge);
        let pages = huge.map(Ground::huge_pages).sum();
        self.huge_pages.fetch_max(pages, Ordering::Relaxed);
    }
}

impl Counts {
    /// Why a region with these counts has shown nothing, if so.
    fn shown_nothing(&self, kind: Kind, which: Which) -> Option<&'static str> {
        let refills = kind == Kind::Refilled && which == Which::Scan;
        match self {
            Self { purged_pages: 0, .. } => Some("nothing was purged"),
            Self { intact_pages: 0, .. } => Some("nothing was kept"),
            Self { refilled_pages: 0, .. } if refills => Some("nothing was refilled"),
            _ => None,
        }
    }

    fn add(&mut self, other: Self) {
        self.marks += other.marks;
        self.unmarks += other.unmarks;
        self.writes += other.writes;
        self.reads += other.reads;
        self.intact_pages += other.intact_pages;
        self.purged_pages += other.purged_pages;
        self.dropped_pages += other.dropped_pages;
        self.refilled_pages += other.refilled_pages;
        self.touches += other.touches;
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

impl Found {
    /// What was found of each region.
    #[must_use]
    pub fn grounds(&self) -> &[(Kind, Counts)] {
        &self.grounds
    }

    /// All of it.
    #[must_use]
    pub fn sum(&self) -> Counts {
        let mut sum = Counts::default();
        self.grounds.iter().for_each(|(_, counts)| sum.add(counts.clone()));
        sum
    }
}

impl Part {
    /// Whether nothing was wrong, and the kernel took and left something of each region.
    #[must_use]
    pub fn passed(&self) -> bool {
        let Some(found) = &self.found else { return false };
        let good = |(kind, counts): &(Kind, Counts)| {
            let none = counts.checks().iter().all(|(_, count)| *count == 0);
            none && counts.errors.is_empty() && counts.shown_nothing(*kind, self.which).is_none()
        };
        found.grounds.len() == Kind::ALL.len()
            && found.grounds.iter().all(good)
            && self.group.oom_kills == 0
            && found.signals != Some(0)
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
        for (which, why) in &self.refused {
            writeln!(f, "engine         {}: skipped: {why}", which.name())?;
        }
        for part in &self.parts {
            writeln!(f, "engine         {}", part.which.name())?;
            writeln!(f, "limit met      {} times", part.group.limit_hits)?;
            line(f, "oom kills", part.group.oom_kills)?;
            let Some(found) = &part.found else {
                writeln!(f, "killed for want of memory  WRONG")?;
                continue;
            };
            let counts = found.sum();
            writeln!(f, "marked         {} runs", counts.marks)?;
            writeln!(f, "unmarked       {} runs", counts.unmarks)?;
            writeln!(f, "written        {} pages", counts.writes)?;
            writeln!(f, "read           {} pages", counts.reads)?;
            writeln!(f, "intact         {} pages", counts.intact_pages)?;
            let kernel = found.kernel_purged;
            writeln!(f, "purged         {} pages, of {kernel} by the kernel", counts.purged_pages)?;
            writeln!(f, "dropped        {} pages, on purpose", counts.dropped_pages)?;
            writeln!(f, "forks          {}", counts.forks)?;
            signals::write(f, found.signals)?;
            for (kind, of) in &found.grounds {
                let wrong = of
                    .shown_nothing(*kind, part.which)
                    .map_or(String::new(), |why| format!("  WRONG: {why}"));
                let (intact, purged) = (of.intact_pages, of.purged_pages);
                let more = match kind {
                    Kind::Huge => {
                        let (pages, huge) = found.huge_pages;
                        let not = if huge * 2 < pages { "not huge: " } else { "" };
                        format!(", {not}{huge} of {pages} in huge pages")
                    }
                    Kind::Refilled => {
                        format!(", refilled {} in {} touches", of.refilled_pages, of.touches)
                    }
                    Kind::Own | Kind::Over => String::new(),
                };
                let name = kind.name();
                writeln!(f, "  {name:12} intact {intact}, purged {purged}{more}{wrong}")?;
            }
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
    let mut outcome = Outcome::default();
    let mut engines = options.engine.map_or(Which::ALL.to_vec(), |which| vec![which]);
    engines.retain(|which| match which.refused() {
        None => true,
        Some(why) => {
            outcome.refused.push((*which, why));
            false
        }
    });
    if engines.is_empty() {
        let why: Vec<_> = outcome.refused.iter().map(|(_, why)| why.as_str()).collect();
        return Err(Error::NoEngine(why.join("; ")));
    }
    let time = options.time / engines.len() as u32;
    let dir = options.dir.clone().unwrap_or_else(std::env::temp_dir);
    let mut progress = Progress::new("stress", options.time.as_millis() as u64);
    for (nth, &which) in engines.iter().enumerate() {
        let before = time * nth as u32;
        let plan = Plan {
            time_ms: time.as_millis() as u64,
            which,
            dir: dir.clone(),
            signal_hz: options.signal_hz,
        };
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
    let (found, group) = job::ask(&group, &Job::Stress(plan), time + GRACE + PATIENCE, progress)?;
    Ok(Part { which, found, group })
}

/// In the child.
pub(super) fn inside(plan: &Plan) -> Result<Found, Error> {
    let signals = Signals::start_if(plan.signal_hz)?;
    let before = lazy_freed()?;
    let sharers = |kind| if kind == Kind::Own { SHARED } else { 0 };
    let grounds = Kind::ALL.into_iter().map(|kind| Ground::new(kind, plan.which, sharers(kind)));
    let shared = Shared {
        grounds: grounds.collect::<Result<_, _>>()?,
        huge_pages: AtomicU64::new(0),
        step: RwLock::new(()),
        sharing: RwLock::new(()),
        told: (0..SHARED).map(|_| AtomicBool::new(false)).collect(),
        versions: Mutex::new(vec![0; SHARED as usize]),
        stop: AtomicBool::new(false),
    };
    let mut found = Found::default();
    for ground in &shared.grounds {
        let mut counts = Counts::default();
        (0..ground.owners).for_each(|id| counts.add(own::begin(&shared, ground, id)));
        found.grounds.push((ground.kind, counts));
    }
    shared.look_for_huge_pages();
    let _file = FileLoad::start(&plan.dir, FILE, Duration::ZERO)?;
    let _anon = AnonLoad::start(ANON);
    threads(plan, &shared, &mut found);
    let huge = shared.grounds.iter().find(|ground| ground.kind == Kind::Huge);
    let most = shared.huge_pages.load(Ordering::Relaxed);
    found.huge_pages = (huge.map_or(0, Ground::own), most);
    found.signals = signals.map(|signals| signals.came());
    found.kernel_purged = lazy_freed()?.saturating_sub(before);
    let told = found.sum().purged_pages;
    let may = (found.kernel_purged as f64 * LEEWAY) as u64;
    found.grounds[0].1.false_purged += told.saturating_sub(may);
    Ok(found)
}

/// Runs all threads for the time given.
fn threads(plan: &Plan, shared: &Shared, found: &mut Found) {
    std::thread::scope(|scope| {
        let _stop = Stop(&shared.stop);
        let mut threads = Vec::new();
        for (nth, ground) in shared.grounds.iter().enumerate() {
            for id in 0..ground.owners {
                threads.push((nth, scope.spawn(move || own::own(shared, ground, id))));
            }
            threads.push((nth, scope.spawn(move || own::read(shared, ground))));
        }
        for id in 0..SHARERS {
            threads.push((0, scope.spawn(move || shared::share(shared, id))));
        }
        let forks = forked::fork_until(shared, Duration::from_millis(plan.time_ms));
        found.grounds[0].1.add(forks);
        shared.stop.store(true, Ordering::Relaxed);
        for (nth, thread) in threads {
            let counts = &mut found.grounds[nth].1;
            match thread.join() {
                Ok(part) => counts.add(part),
                Err(_) => counts.error("a thread", "panicked"),
            }
        }
    });
}

/// Marked pages that the kernel took so far, of all processes.
fn lazy_freed() -> Result<u64, OsError> {
    const PATH: &str = "/proc/vmstat";
    let refused = |e| OsError::new("read", PATH, e);
    let text = std::fs::read_to_string(PATH).map_err(refused)?;
    let line = text.lines().find_map(|line| line.strip_prefix("pglazyfreed ")?.parse().ok());
    line.ok_or_else(|| refused(std::io::ErrorKind::InvalidData.into()))
}

/// Bytes from the start of the region to page `first` and to the end of `pages` from there.
fn range(first: u64, pages: u64) -> std::ops::Range<Bytes> {
    let at = |page: u64| Pages::new(page).bytes(page_size());
    at(first)..at(first + pages)
}

#[cfg(test)]
mod tests;
