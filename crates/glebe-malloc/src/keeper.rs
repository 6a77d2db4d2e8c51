//! The keeper: a thread that marks what stayed free, and gives back what is needed elsewhere.
//!
//! There is none until it pays: until the heap is 32 MiB. It has all signals blocked and, where the
//! kernel lets it, a table of open files of its own. It sleeps without a timer while nothing ages
//! and nothing is free that the kernel could not take by itself. Near a limit it looks on, and
//! frees give whole units back at once. Times are wall time, amounts slices. Cost: a turn is some
//! µs, a look some tens. Lock: the right to claim slices, a unit at a time.
//!
//! ```text
//! MODE   bit 0  FREES: a free is told, when so much is free      bit 2  PRESSED: memory is short
//!        bit 1  GROWTH: so is new memory                         bit 3  THREAD: there is a keeper
//! ```
//! A sleeper says in `MODE` what it wants to be told, changes the counters by nothing, and looks at
//! them once more. A hook changes a counter and then reads `MODE`. Of the two changes one comes
//! first, so that one side sees the other: nobody sleeps through a change.

use std::mem;
use std::ops::Range;
use std::time::{Duration, Instant};

use glebe::reclaim::{Free, Gauge, Policy, Pressure, Reading, Scope};
use glebe::sys::{lean, own_files};
use glebe::Bytes;

use crate::fork;
use crate::heap::{Mechanisms, Settings};
use crate::pages::give_back::Which;
use crate::pages::mark::Manner;
use crate::pages::space::{Space, SLICE};
use crate::sync::{wait, wake_all, AtomicU32, AtomicU64, FutexWord, Ordering};

const FREES: u32 = 1;
const GROWTH: u32 = 1 << 1;
const PRESSED: u32 = 1 << 2;
const THREAD: u32 = 1 << 3;

static MODE: FutexWord = FutexWord::new(0);
/// From so many free slices on a free wakes the keeper.
static FREE_AT: AtomicU64 = AtomicU64::new(FREE_MIN);
/// From so many slices on that came into use without memory, in all, growth wakes the keeper.
static GROWN_AT: AtomicU64 = AtomicU64::new(0);
static SETTINGS: Kept = Kept::new();
static LOOKS: AtomicU64 = AtomicU64::new(0);
/// What the keeper has: bits below.
static HAS: AtomicU32 = AtomicU32::new(0);
const HAS_HUGE: u32 = 1;
const HAS_FILES: u32 = 1 << 1;
const HAS_GAUGE: u32 = 1 << 2;
const HAS_GROUP: u32 = 1 << 3;

/// A heap of so many slices has a keeper.
const HELD_MIN: u64 = (32 << 20) / SLICE as u64;
/// So many more that are free are told.
const FREE_MIN: u64 = (1 << 20) / SLICE as u64;
/// So much that only the keeper could give back has it look from time to time.
const WATCHED_MIN: u64 = (4 << 20) / SLICE as u64;
/// Growth is told in steps of so many slices.
const GROWTH_STEP: u64 = (4 << 20) / SLICE as u64;
/// The default room below a limit; the policy makes it at most a quarter of the limit, and half
/// while others' usage rises. Two processors fill as much with huge pages in three turns.
const MARGIN: Bytes = Bytes::mib(256);
/// Pauses of a gauge that sees plenty of room.
const CALM: Duration = Duration::from_secs(1);
/// Of an age, which has a few turns; and no turn is shorter.
const AGE_TURNS: u8 = 4;
const TURN_MIN: Duration = Duration::from_millis(10);
/// A turn near a limit; and a pause, for a while after memory was short.
const TURN_HASTY: Duration = Duration::from_millis(4);
const ALERT: Duration = Duration::from_secs(1);
/// Marked memory is looked at no more often.
const AUDIT_PAUSE: Duration = Duration::from_millis(20);
/// Bytes of stack.
const STACK: usize = 256 << 10;

/// The settings, which hooks and the thread read.
#[derive(Debug)]
struct Kept {
    age_micros: AtomicU64,
    margin: AtomicU64,
    wants_huge: AtomicU32,
    wants_thread: AtomicU32,
}

impl Kept {
    const fn new() -> Self {
        Self {
            age_micros: AtomicU64::new(0),
            margin: AtomicU64::new(0),
            wants_huge: AtomicU32::new(0),
            wants_thread: AtomicU32::new(0),
        }
    }
}

/// Keeps the settings. Before all else here.
pub(crate) fn set(settings: &Settings) {
    let age = u64::try_from(settings.age.as_micros()).unwrap_or(u64::MAX);
    SETTINGS.age_micros.store(age, Ordering::Relaxed);
    SETTINGS.margin.store(settings.margin.unwrap_or(MARGIN).get(), Ordering::Relaxed);
    let wants_huge = settings.huge && !lean::huge_pages_forbidden();
    SETTINGS.wants_huge.store(wants_huge.into(), Ordering::Relaxed);
    SETTINGS.wants_thread.store(settings.thread.into(), Ordering::Relaxed);
    MODE.store(if settings.thread { FREES } else { 0 }, Ordering::Release);
}

/// Whether the heap is to have huge pages.
pub(crate) fn wants_huge() -> bool {
    SETTINGS.wants_huge.load(Ordering::Relaxed) != 0
}

/// Whether to call [`freed`] after a free.
#[inline]
pub(crate) fn is_called(is_whole: bool) -> bool {
    let mode = MODE.load(Ordering::Relaxed);
    mode & FREES != 0 || is_whole && mode & PRESSED != 0
}

/// After a free; whether a keeper would pay and there is none.
pub(crate) fn freed(space: &Space, slices: &Range<usize>, is_whole: bool) -> bool {
    let mode = MODE.load(Ordering::Relaxed);
    if mode & PRESSED != 0 && is_whole {
        space.give_back_at(slices);
    }
    if mode & FREES == 0 {
        return false;
    }
    let counted = space.counters.get();
    if counted.hot() < FREE_AT.load(Ordering::Relaxed) {
        return false;
    }
    if mode & THREAD != 0 {
        wake();
    }
    mode & THREAD == 0 && counted.held() >= HELD_MIN
}

/// After memory came into use that was not there before; as [`freed`]. Who has much frees some of
/// it, and then may make no call for long: the keeper must be there before.
pub(crate) fn grown(space: &Space) -> bool {
    let mode = MODE.load(Ordering::Relaxed);
    if mode & (FREES | GROWTH) == 0 {
        return false;
    }
    let counted = space.counters.get();
    if mode & THREAD == 0 {
        return counted.held() >= HELD_MIN;
    }
    let is_due = counted.cold >= GROWN_AT.load(Ordering::Relaxed);
    if is_due && counted.hot() + counted.volatile() > 0 {
        wake();
    }
    false
}

fn wake() {
    if MODE.fetch_and(!(FREES | GROWTH), Ordering::AcqRel) & (FREES | GROWTH) != 0 {
        wake_all(&MODE);
    }
}

/// Starts the thread, unless there is one. Allocates.
pub(crate) fn start() {
    let mode = MODE.load(Ordering::Relaxed);
    let (ok, failed) = (Ordering::AcqRel, Ordering::Relaxed);
    let is_first = mode & THREAD == 0;
    if !is_first || MODE.compare_exchange(mode, mode & !FREES | THREAD, ok, failed).is_err() {
        return;
    }
    fork::begin();
    if lean::start_thread(STACK, run).is_err() {
        // No more of it: threads are not to be had.
        MODE.store(0, Ordering::Release);
    }
}

/// In a forked child: there is no keeper, and one starts when it pays here.
pub(crate) fn is_gone() {
    if MODE.load(Ordering::Relaxed) != 0 {
        FREE_AT.store(FREE_MIN, Ordering::Relaxed);
        MODE.store(FREES, Ordering::Release);
    }
}

fn has(bit: u32, has: bool) {
    if has {
        HAS.fetch_or(bit, Ordering::Relaxed);
    } else {
        HAS.fetch_and(!bit, Ordering::Relaxed);
    }
}

/// How often a keeper looked.
pub(crate) fn looks() -> u64 {
    LOOKS.load(Ordering::Relaxed)
}

/// What there is, but for addresses.
pub(crate) fn mechanisms() -> Mechanisms {
    let has = HAS.load(Ordering::Relaxed);
    Mechanisms {
        addresses: 0,
        huge_pages: has & HAS_HUGE != 0,
        thread: MODE.load(Ordering::Relaxed) & THREAD != 0,
        own_files: has & HAS_FILES != 0,
        gauge: has & HAS_GAUGE != 0,
        group: has & HAS_GROUP != 0,
    }
}

fn run() {
    let Some(space) = crate::heap::space() else { return };
    let mut keeper = Keeper::new(space);
    loop {
        let rest = keeper.turn();
        keeper.sleep(rest);
    }
}

struct Keeper {
    space: &'static Space,
    gauge: Option<Gauge>,
    has_own_files: bool,
    is_huge: bool,
    turn: Duration,
    turned: Instant,
    looked: Instant,
    audited: Instant,
    pause: Duration,
    is_due: bool,
    /// Whether the room is less than twice the margin.
    is_near: bool,
    is_pressed: bool,
    short_at: Option<Instant>,
    /// Slices that had been taken cold, and hot ones that had been dropped, in all, at the last
    /// look.
    exchanged: (u64, u64),
}

impl Keeper {
    fn new(space: &'static Space) -> Self {
        let has_own_files = own_files::take().is_ok();
        let age = Duration::from_micros(SETTINGS.age_micros.load(Ordering::Relaxed));
        let policy = Policy::default().margin(Bytes::new(SETTINGS.margin.load(Ordering::Relaxed)));
        let is_huge = wants_huge() && glebe::sys::madvise::transparent_huge_page().is_ok();
        let gauge = Gauge::new(policy).ok();
        has(HAS_HUGE, is_huge);
        has(HAS_FILES, has_own_files);
        has(HAS_GAUGE, gauge.is_some());
        let (now, counted) = (Instant::now(), space.counters.get());
        Self {
            space,
            gauge,
            has_own_files,
            is_huge,
            turn: (age / AGE_TURNS.into()).max(TURN_MIN),
            turned: now,
            looked: now,
            audited: now,
            pause: Duration::ZERO,
            is_due: true,
            is_near: false,
            is_pressed: false,
            short_at: None,
            exchanged: (counted.cold, counted.dropped_hot),
        }
    }

    /// Looks and marks if it is time for either. Returns the time until the next; none: until told.
    fn turn(&mut self) -> Option<Duration> {
        let now = Instant::now();
        let has_grown = self.space.counters.get().cold >= GROWN_AT.load(Ordering::Relaxed);
        let is_turn = now.saturating_duration_since(self.turned) >= self.turn_time();
        // What is young the kernel cannot take: it must not meet a limit before it is marked.
        let is_watched = is_turn && self.is_due && self.is_limited();
        if has_grown || is_watched || now.saturating_duration_since(self.looked) >= self.pause {
            self.looked = now;
            self.look();
        }
        if is_turn {
            self.turned = now;
            self.space.next_turn();
            self.mark();
        }
        let to_turn = self.turn_time().saturating_sub(self.turned.elapsed());
        let to_look = self.pause.saturating_sub(self.looked.elapsed());
        if self.is_due {
            return Some(to_turn.min(to_look));
        }
        let counted = self.space.counters.get();
        // The kernel takes marked memory by itself, but a page at a time, of huge pages too.
        let watched = counted.hot() + if self.is_near { counted.volatile() } else { 0 };
        (watched >= WATCHED_MIN || self.is_pressed).then_some(to_look)
    }

    /// Whether others could fill the room within moments.
    fn is_limited(&self) -> bool {
        self.pause < CALM
    }

    /// Near a limit huge pages are marked at once, which costs a twentieth of filling them again.
    fn is_hasty(&self) -> bool {
        self.is_huge && self.is_limited()
    }

    fn turn_time(&self) -> Duration {
        if self.is_hasty() {
            TURN_HASTY.min(self.turn)
        } else {
            self.turn
        }
    }

    fn mark(&mut self) {
        let age = if self.is_hasty() { 0 } else { AGE_TURNS };
        let manner = Manner { age, is_huge: self.is_huge, is_alone: fork::is_alone() };
        self.is_due = self.space.mark(manner).is_due;
    }

    /// Asks how short memory is, and gives back what is missing.
    fn look(&mut self) {
        LOOKS.fetch_add(1, Ordering::Relaxed);
        let mut reading = self.read();
        let near = reading.margin.get().saturating_mul(2);
        self.is_near = reading.pressure.is_some_and(|pressure| pressure.room().get() < near);
        if self.is_near && self.audited.elapsed() >= AUDIT_PAUSE {
            self.audited = Instant::now();
            if self.space.look_at_volatile().lost > 0 {
                reading = self.read();
            }
        }
        let is_group = |pressure: Pressure| pressure.scope == Scope::Group;
        has(HAS_GROUP, reading.pressure.is_some_and(is_group));
        self.press(&reading);
        self.give_back(&reading);
        if reading.short > Bytes::ZERO {
            self.short_at = Some(self.looked);
        }
        let is_alert = self.short_at.is_some_and(|at| at.elapsed() < ALERT);
        self.pause = if is_alert { reading.pause.min(TURN_HASTY) } else { reading.pause };
        let cold = self.space.counters.get().cold;
        GROWN_AT.store(cold + GROWTH_STEP, Ordering::Relaxed);
    }

    fn read(&mut self) -> Reading {
        let counted = self.space.counters.get();
        let bytes = |slices: u64| Bytes::new(slices * SLICE as u64);
        let free = Free {
            marked: bytes(counted.volatile()),
            unmarked: bytes(counted.hot()),
            rewritten: bytes(self.space.listed().saturating_sub(counted.volatile())),
        };
        let Some(gauge) = &mut self.gauge else {
            return Reading { pause: Duration::from_secs(1), ..Reading::default() };
        };
        let (taken, given) = (counted.cold, counted.dropped_hot);
        let (seen_taken, seen_given) = mem::replace(&mut self.exchanged, (taken, given));
        let since = |now: u64, seen: u64| bytes(now.saturating_sub(seen));
        gauge.exchanged(since(taken, seen_taken), since(given, seen_given));
        let mut reading = gauge.look(free);
        if reading.is_stale && gauge.find().is_ok() {
            reading = gauge.look(free);
        }
        if !self.has_own_files {
            gauge.close();
        }
        reading
    }

    /// Has frees give whole units back at once while the room is less than the margin.
    fn press(&mut self, reading: &Reading) {
        let short = |pressure: Pressure| pressure.room() < reading.margin;
        self.is_pressed = reading.pressure.is_some_and(short);
        if self.is_pressed {
            MODE.fetch_or(PRESSED, Ordering::AcqRel);
        } else {
            MODE.fetch_and(!PRESSED, Ordering::AcqRel);
        }
    }

    fn give_back(&self, reading: &Reading) {
        let slices = |bytes: Bytes| bytes.as_usize().div_ceil(SLICE);
        let given = self.space.give_back(slices(reading.short), Which::Free);
        let crowded = slices(reading.crowded).saturating_sub(given.volatile);
        self.space.give_back(crowded, Which::Volatile);
    }

    /// Sleeps so long, or until it is told.
    fn sleep(&mut self, rest: Option<Duration>) {
        let pressed = if self.is_pressed { PRESSED } else { 0 };
        let hot = self.space.counters.get().hot();
        FREE_AT.store(hot + FREE_MIN, Ordering::Relaxed);
        let mode = THREAD | GROWTH | pressed | if rest.is_none() { FREES } else { 0 };
        MODE.store(mode, Ordering::Release);
        let counted = self.space.counters.settle();
        let is_told = counted.hot() >= hot + FREE_MIN && rest.is_none()
            || counted.cold >= GROWN_AT.load(Ordering::Relaxed);
        if !is_told {
            wait(&MODE, mode, rest);
        }
        MODE.fetch_and(!(FREES | GROWTH), Ordering::AcqRel);
        // What was freed meanwhile is young.
        self.is_due = true;
    }
}

#[cfg(test)]
mod tests;
