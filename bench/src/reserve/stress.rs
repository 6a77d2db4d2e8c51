//! [`run`]: tenants, first class and forks on one reserve at once, and everything looked at.
//!
//! Four writers each own an object of the cache and put ever newer versions of its pages, with an
//! invalidation now and then; two readers get any page of any of them. A page read must be whole,
//! of its own key, no older than the newest version that was complete before the read began, and no
//! newer than the one being put. Two first-class threads fill blocks, hold them for a random time
//! and look for stray writes, some of them zeroed; a third promises itself blocks and takes them
//! later, while a thread of the reserve makes zeros ahead. Now and then a child is forked that must
//! be refused everything. After some seconds the reserve is dropped and another is built: by then
//! the statistics must add up, and the process must hold no more than before.
//! Seeds are fixed; the interleaving is not. Unit: seconds in, counts out.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use glebe::reserve::{Error as ReserveError, Pool, Request, Reserve, Writers};
use glebe::units::{Bytes, Pages};

use super::footing::Footing;
use super::fork::{in_child, End};
use super::keyed::{self, Random};
use super::requests::{ask, Faults, Marking};
use super::{affordable, map, page_buffer, Error};
use crate::clock;
use crate::interrupt::Stop;
use crate::progress::Progress;
use crate::signals::{self, Signals};

const WRITERS: u64 = 4;
const READERS: u64 = 2;
const FIRST_CLASS: u64 = 2;
/// Pages of one object; all together more than the reserve holds.
const KEYS: u64 = 16 << 10;
const RESERVE: Bytes = Bytes::mib(128);
/// How long one reserve lives, at most.
const ROUND: Duration = Duration::from_secs(10);
/// Pages to keep zeroed.
const ZERO_AHEAD: Pages = Pages::new(1024);
/// How often the statistics are looked at until the thread that zeroes has come to rest.
const QUIET_TRIES: u32 = 2000;
const HOLD_US_MAX: u64 = 3000;
const FORK_EVERY: Duration = Duration::from_millis(250);
/// Puts between two invalidations by one writer.
const PUTS_PER_INVALIDATION: u64 = 5000;

/// What to do.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How long.
    pub time: Duration,
    /// Whether writers are to be counted even where restartable sequences are to be had.
    pub counted: bool,
    /// Signals to each thread a second.
    pub signal_hz: Option<u32>,
}

/// What was done and found.
#[derive(Debug, Default)]
pub struct Outcome {
    /// How writers were told apart from recalls.
    pub writers: String,
    /// Pages put.
    pub puts: u64,
    /// Pages read and compared.
    pub hits: u64,
    /// Pages asked for that were not there.
    pub misses: u64,
    /// Blocks held and looked at.
    pub blocks: u64,
    /// Requests that found no run, which is no fault while others hold blocks.
    pub no_run: u64,
    /// Promises taken.
    pub promises: u64,
    /// Reserves built and dropped.
    pub reserves: u64,
    /// Children forked.
    pub forks: u64,
    /// Signals that came, if any were asked for.
    pub signals: Option<u64>,
    /// Faults of blocks.
    pub faults: Faults,
    /// Pages of another key or version, or of more than one.
    pub wrong_pages: u64,
    /// Pages older than one that was complete before.
    pub stale_pages: u64,
    /// Children that were not refused.
    pub wrong_children: u64,
    /// Calls that failed without a reason to.
    pub errors: Vec<String>,
}

/// A writer's promise about one page: versions from `floor` to `newest` may be read.
#[derive(Default)]
struct Version {
    floor: AtomicU64,
    newest: AtomicU64,
}

/// What the threads share.
struct Shared {
    reserve: Reserve,
    pool: Pool,
    versions: Vec<Version>,
    stop: AtomicBool,
}

impl Outcome {
    /// Whether nothing was wrong and something was done.
    #[must_use]
    pub fn passed(&self) -> bool {
        let none = self.faults == Faults::default()
            && self.wrong_pages + self.stale_pages + self.wrong_children == 0
            && self.errors.is_empty();
        let done = [self.hits, self.blocks, self.promises, self.forks];
        none && done.iter().all(|count| *count > 0) && self.signals != Some(0)
    }

    fn add(&mut self, other: Self) {
        self.puts += other.puts;
        self.hits += other.hits;
        self.misses += other.misses;
        self.blocks += other.blocks;
        self.no_run += other.no_run;
        self.promises += other.promises;
        self.reserves += other.reserves;
        self.forks += other.forks;
        self.faults.add(other.faults);
        self.wrong_pages += other.wrong_pages;
        self.stale_pages += other.stale_pages;
        self.wrong_children += other.wrong_children;
        self.errors.extend(other.errors);
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "writers        {}", self.writers)?;
        writeln!(
            f,
            "tenants        {} puts, {} hits, {} misses",
            self.puts, self.hits, self.misses
        )?;
        writeln!(f, "first class    {} blocks, {} without a run", self.blocks, self.no_run)?;
        writeln!(f, "promises       {} taken", self.promises)?;
        writeln!(f, "reserves       {} built and dropped", self.reserves)?;
        writeln!(f, "forks          {}", self.forks)?;
        signals::write(f, self.signals)?;
        let counts = [
            ("stray bytes", self.faults.stray_writes),
            ("not contiguous", self.faults.not_contiguous),
            ("not zero", self.faults.not_zero),
            ("wrong pages", self.wrong_pages),
            ("stale pages", self.stale_pages),
            ("wrong children", self.wrong_children),
            ("failed calls", self.errors.len() as u64 + self.faults.failures),
        ];
        for (name, count) in counts {
            writeln!(f, "{name:14} {count}{}", if count == 0 { "" } else { "  WRONG" })?;
        }
        for error in self.errors.iter().take(5) {
            writeln!(f, "  {error}")?;
        }
        Ok(())
    }
}

/// Runs for the time given, on one reserve after another.
///
/// # Errors
/// If there is no reserve; what goes wrong later is in the outcome.
pub fn run(options: Options) -> Result<Outcome, Error> {
    let signals = Signals::start_if(options.signal_hz)?;
    let mut progress = Progress::new("stress", options.time.as_millis() as u64);
    let start = clock::wall();
    let mut outcome = Outcome::default();
    let mut footing = None;
    loop {
        let gone = clock::wall().saturating_sub(start);
        if outcome.reserves > 0 && (gone >= options.time || !outcome.errors.is_empty()) {
            break;
        }
        let time = ROUND.min(options.time.saturating_sub(gone));
        let round = round(options, time, |within| {
            progress.update((gone + within).as_millis() as u64);
        })?;
        outcome.writers.clone_from(&round.writers);
        outcome.add(round);
        // What the first round leaves is what the process keeps for itself.
        let footing = footing.get_or_insert_with(Footing::now);
        outcome.errors.extend(footing.left());
    }
    progress.finish();
    outcome.signals = signals.map(|signals| signals.came());
    Ok(outcome)
}

/// Builds a reserve, uses it for a while, and drops it.
fn round(
    options: Options,
    time: Duration,
    progress: impl FnMut(Duration),
) -> Result<Outcome, Error> {
    let builder = Reserve::builder().zero_ahead(ZERO_AHEAD);
    let builder = if options.counted { builder.writers(Writers::Counted) } else { builder };
    let reserve = map(affordable(RESERVE, 4)?, builder)?;
    let pool = reserve.page_cache().pool("stress")?;
    let versions = (0..WRITERS * KEYS).map(|_| Version::default()).collect();
    let shared = Shared { reserve, pool, versions, stop: AtomicBool::new(false) };
    let writers = writers(&shared.reserve);
    let mut outcome = Outcome { writers, reserves: 1, ..Outcome::default() };
    std::thread::scope(|scope| {
        let shared = &shared;
        let _stop = Stop(&shared.stop);
        let mut threads = Vec::new();
        for id in 0..WRITERS {
            threads.push(scope.spawn(move || write(shared, id)));
        }
        for id in 0..READERS {
            threads.push(scope.spawn(move || read(shared, id)));
        }
        for id in 0..FIRST_CLASS {
            threads.push(scope.spawn(move || hold_blocks(shared, id)));
        }
        threads.push(scope.spawn(move || promise(shared)));
        outcome.add(fork_until(shared, time, progress));
        shared.stop.store(true, Ordering::Relaxed);
        for thread in threads {
            match thread.join() {
                Ok(part) => outcome.add(part),
                Err(_) => outcome.errors.push("a thread panicked".into()),
            }
        }
    });
    outcome.errors.extend(unbalanced(&shared.reserve));
    Ok(outcome)
}

/// What does not add up in the statistics, once nobody but the thread that zeroes uses the
/// reserve: an identity holds whenever that has come to rest.
fn unbalanced(reserve: &Reserve) -> Option<String> {
    let mut found = None;
    for _ in 0..QUIET_TRIES {
        found = reserve.stats().check().err();
        if found.is_none() {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    found.map(|text| format!("statistics: {text}"))
}

/// Promises, and takes what was promised while others have used it.
fn promise(shared: &Shared) -> Outcome {
    let mut out = Outcome::default();
    let mut random = Random::new(1 << 56);
    while !shared.stop.load(Ordering::Relaxed) {
        let pages = Pages::new(1 + random.below(600));
        let promise = match shared.reserve.promise(pages, Pages::new(1)) {
            Ok(promise) => promise,
            Err(ReserveError::NoRun { .. }) => {
                out.no_run += 1;
                continue;
            }
            Err(e) => {
                out.errors.push(format!("promise: {e}"));
                break;
            }
        };
        std::thread::sleep(Duration::from_micros(random.below(HOLD_US_MAX)));
        let taken = promise.take().and_then(|mut block| {
            keyed::poison(block.bytes_mut()?, random.below(u64::MAX));
            Ok(block)
        });
        match taken {
            Ok(_) => out.promises += 1,
            Err(e) => out.errors.push(format!("a promise: {e}")),
        }
    }
    out
}

/// In words, with the reason where it is the slower way.
pub(super) fn writers(reserve: &Reserve) -> String {
    let writers = reserve.writers();
    match reserve.why_counted() {
        Some(why) => format!("{writers} ({why})"),
        None => writers.to_string(),
    }
}

fn write(shared: &Shared, id: u64) -> Outcome {
    let mut out = Outcome::default();
    let mut random = Random::new(id << 32);
    let mut page = page_buffer();
    let own = &shared.versions[(id * KEYS) as usize..][..KEYS as usize];
    while !shared.stop.load(Ordering::Relaxed) {
        let index = random.below(KEYS);
        let version = &own[index as usize];
        // Only this thread changes it.
        let next = version.newest.load(Ordering::Relaxed) + 1;
        version.newest.store(next, Ordering::SeqCst);
        keyed::fill(&mut page, id, index, next);
        match shared.pool.put(id, index, &page) {
            // A put that was rejected has dropped the older copy too.
            Ok(_) => version.floor.store(next, Ordering::SeqCst),
            Err(e) => out.errors.push(format!("put: {e}")),
        }
        out.puts += 1;
        if out.puts % PUTS_PER_INVALIDATION == 0 {
            invalidate(shared, id, own, &mut out);
        } else if out.puts % 64 == 0 {
            match shared.pool.invalidate_page(id, index) {
                Ok(_) => version.floor.store(next + 1, Ordering::SeqCst),
                Err(e) => out.errors.push(format!("invalidate_page: {e}")),
            }
        }
        if out.errors.len() > 100 {
            break;
        }
    }
    out
}

/// Drops the writer's whole object: none of its versions may be read from then on.
fn invalidate(shared: &Shared, id: u64, own: &[Version], out: &mut Outcome) {
    if let Err(e) = shared.pool.invalidate_object(id) {
        out.errors.push(format!("invalidate_object: {e}"));
        return;
    }
    for version in own {
        let next = version.newest.load(Ordering::Relaxed) + 1;
        version.floor.store(next, Ordering::SeqCst);
    }
}

fn read(shared: &Shared, id: u64) -> Outcome {
    let mut out = Outcome::default();
    let mut random = Random::new(!id << 32);
    let mut page = page_buffer();
    while !shared.stop.load(Ordering::Relaxed) {
        let (object, index) = (random.below(WRITERS), random.below(KEYS));
        let version = &shared.versions[(object * KEYS + index) as usize];
        let floor = version.floor.load(Ordering::SeqCst);
        match shared.pool.get(object, index, &mut page) {
            Ok(false) => out.misses += 1,
            Ok(true) => {
                out.hits += 1;
                let newest = version.newest.load(Ordering::SeqCst);
                match keyed::version(&page, object, index) {
                    Some(is) if is < floor => out.stale_pages += 1,
                    Some(is) if is <= newest => {}
                    _ => out.wrong_pages += 1,
                }
            }
            Err(e) => {
                out.errors.push(format!("get: {e}"));
                break;
            }
        }
    }
    out
}

fn hold_blocks(shared: &Shared, id: u64) -> Outcome {
    let mut out = Outcome::default();
    let mut random = Random::new(id << 48 | 1);
    let most = (shared.reserve.len().get() / 4).max(1);
    while !shared.stop.load(Ordering::Relaxed) {
        // As many small blocks as large ones, by powers of two.
        let order = random.below(u64::from(most.ilog2()) + 1);
        let pages = 1 + random.below(1 << order);
        let zeroed = random.below(4) == 0;
        let request = Request::new(Pages::new(pages));
        let request = if zeroed { request.zeroed() } else { request };
        match ask(&shared.reserve, Duration::ZERO, request, zeroed) {
            Ok(mut held) => {
                out.blocks += 1;
                out.faults.add(held.mark(Marking::Whole));
                std::thread::sleep(Duration::from_micros(random.below(HOLD_US_MAX)));
                out.faults.add(held.check(Marking::Whole));
            }
            // Others hold blocks, so that a run of this length need not be there.
            Err(ReserveError::NoRun { .. } | ReserveError::NoAlignedRun { .. }) => {
                out.no_run += 1;
            }
            Err(e) => {
                out.errors.push(format!("alloc: {e}"));
                break;
            }
        }
    }
    out
}

/// Forks now and then until the time is over.
fn fork_until(shared: &Shared, time: Duration, mut progress: impl FnMut(Duration)) -> Outcome {
    let mut out = Outcome::default();
    let start = clock::wall();
    loop {
        let gone = clock::wall().saturating_sub(start);
        progress(gone);
        if gone >= time && out.forks > 0 {
            break;
        }
        std::thread::sleep(FORK_EVERY.min(time.saturating_sub(gone)));
        // Before the fork: in the child the allocator's locks may be held by nobody.
        let mut page = page_buffer();
        out.forks += 1;
        match in_child(|| refusals(shared, &mut page)) {
            Ok(End::Exit(0)) => {}
            Ok(end) => {
                out.wrong_children += 1;
                out.errors.push(format!("a child ended with {end}"));
            }
            Err(e) => out.errors.push(e.to_string()),
        }
    }
    out
}

/// In a child: one bit for each call that was not refused as it should be.
fn refusals(shared: &Shared, page: &mut [u8]) -> u8 {
    let forked = |refused: bool, bit: u8| if refused { 0 } else { bit };
    let put = shared.pool.put(0, 0, page);
    let get = shared.pool.get(0, 0, page);
    let block = shared.reserve.alloc(Pages::new(1), Pages::new(1));
    forked(matches!(put, Err(ReserveError::Forked)), 1)
        | forked(matches!(get, Err(ReserveError::Forked)), 2)
        | forked(matches!(block, Err(ReserveError::Forked)), 4)
}
