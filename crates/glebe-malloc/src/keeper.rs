//! The keeper thread marks memory that stayed free, and gives free memory back near a limit.
//!
//! A *turn* marks memory; a *look* reads the memory limits. The keeper starts once the heap has 32
//! MiB. The thread blocks all signals and, if the kernel allows, has its own table of open files.
//!
//! The keeper sleeps without a timer while memory is not short, no free memory waits for a mark,
//! and less than 4 MiB is free and unmarked. Near a limit, marked memory counts too. While memory
//! is short, frees give whole units (2 MiB) back at once. mimalloc's hooks wake the keeper by the
//! [`Bell`]. Amounts are in slices (64 KiB). Cost: some µs per turn, some tens of µs per look.
//! Lock: the right to claim slices, held for one unit at a time.

mod own;
mod settings;

use std::mem;
use std::ops::Range;
use std::time::{Duration, Instant};

use glebe::internal::sys::files::own_files;
use glebe::internal::sys::processes::atfork;
use glebe::internal::sys::processes::lean;
use glebe::internal::{Free, Gauge, Reading};
use glebe::reclaim::{Pressure, Scope};
use glebe::Bytes;

use crate::bell::Bell;
use crate::fork;
use crate::heap::Mechanisms;
use crate::pages::give_back::Which;
use crate::pages::mark::Manner;
use crate::pages::space::{Space, SLICE};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

pub use own::Own;
pub(crate) use settings::{set, wants_huge};

static BELL: Bell = Bell::new();
/// Process that may start the thread: the heap's owner.
static PROCESS: AtomicU32 = AtomicU32::new(0);
static LOOKS: AtomicU64 = AtomicU64::new(0);
static HAS: AtomicU32 = AtomicU32::new(0);
const HAS_HUGE: u32 = 1;
const HAS_FILES: u32 = 1 << 1;
const HAS_GAUGE: u32 = 1 << 2;
const HAS_GROUP: u32 = 1 << 3;

/// Fewest watched slices for which the keeper looks at intervals.
const WATCHED_MIN: u64 = (4 << 20) / SLICE as u64;
/// Pause between looks while the gauge sees plenty of room.
const CALM: Duration = Duration::from_secs(1);
/// Number of turns in an age, and the shortest turn.
const AGE_TURNS: u8 = 4;
const TURN_MIN: Duration = Duration::from_millis(10);
/// Longest time between turns (markings) near a limit with huge pages, and between looks at limits
/// while alert.
const TURN_HASTY: Duration = Duration::from_millis(4);
/// Time for which the keeper is alert after memory was short.
const ALERT: Duration = Duration::from_secs(1);
/// Usage counts as still if its expected rise is at most `limit >> STILL_SHIFT`.
const STILL_SHIFT: u32 = 6;
/// Least time between looks at marked memory.
const AUDIT_PAUSE: Duration = Duration::from_millis(20);
const STACK: usize = 256 << 10;

/// Lets the thread start. Call only after registering the `atfork` steps: without the steps, a
/// forked child would take its parent's thread for its own.
pub(crate) fn allow() {
    PROCESS.store(std::process::id(), Ordering::Relaxed);
    BELL.allow();
}

#[inline]
pub(crate) fn is_called(is_whole: bool) -> bool {
    BELL.is_called(is_whole)
}

pub(crate) fn freed(space: &Space, slices: &Range<usize>, is_whole: bool) -> bool {
    if is_whole && BELL.is_pressed() {
        space.give_back_at(slices);
    }
    BELL.freed(&space.counters)
}

pub(crate) fn grown(space: &Space) -> bool {
    BELL.grown(&space.counters, space.ration.is_used_up())
}

pub(crate) fn is_gone() {
    PROCESS.store(std::process::id(), Ordering::Relaxed);
    HAS.fetch_and(HAS_HUGE, Ordering::Relaxed);
    BELL.is_gone();
}

/// Starts the thread unless it runs. Allocates. Does nothing in a child of a raw clone(2), because
/// the child's `BELL` still describes the parent's keeper.
pub(crate) fn start(space: &Space) {
    // A thread started in a vfork(2) child would end with the child, but the shared `BELL`
    // would still count the thread.
    let is_own = PROCESS.load(Ordering::Relaxed) == std::process::id();
    if !is_own || atfork::is_without_steps() || !BELL.claim() {
        return;
    }
    if lean::start_thread(STACK, run).is_err() {
        BELL.has_failed(&space.counters);
    }
}

fn has(bit: u32, has: bool) {
    if has {
        HAS.fetch_or(bit, Ordering::Relaxed);
    } else {
        HAS.fetch_and(!bit, Ordering::Relaxed);
    }
}

pub(crate) fn looks() -> u64 {
    LOOKS.load(Ordering::Relaxed)
}

pub(crate) fn mechanisms() -> Mechanisms {
    let has = HAS.load(Ordering::Relaxed);
    Mechanisms {
        addresses: 0,
        huge_pages: has & HAS_HUGE != 0,
        thread: BELL.has_thread() && !atfork::is_without_steps(),
        own_files: has & HAS_FILES != 0,
        gauge: has & HAS_GAUGE != 0,
        group: has & HAS_GROUP != 0,
    }
}

fn run() {
    own::begin();
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
    tried: Instant,
    has_own_files: bool,
    is_huge: bool,
    turn: Duration,
    turned: Instant,
    looked: Instant,
    audited: Instant,
    pause: Duration,
    is_due: bool,
    /// Unmarked free slices after the last turn.
    hot: u64,
    /// True if the room is below twice the margin.
    is_near: bool,
    is_pressed: bool,
    short_at: Option<Instant>,
    /// Slices taken cold, and dropped hot, until the last look.
    exchanged: (u64, u64),
}

impl Keeper {
    fn new(space: &'static Space) -> Self {
        let has_own_files = own_files::take().is_ok();
        let is_huge =
            wants_huge() && glebe::internal::sys::memory::madvise::transparent_huge_page().is_ok();
        has(HAS_HUGE, is_huge);
        has(HAS_FILES, has_own_files);
        let (now, counted) = (Instant::now(), space.counters.get());
        Self {
            space,
            gauge: Gauge::new(settings::policy()).ok(),
            tried: now,
            has_own_files,
            is_huge,
            turn: (settings::age() / AGE_TURNS.into()).max(TURN_MIN),
            turned: now,
            looked: now,
            audited: now,
            pause: Duration::ZERO,
            is_due: true,
            hot: 0,
            is_near: false,
            is_pressed: false,
            short_at: None,
            // The first number is 0, so the first look also reports slices taken earlier. The
            // program may first touch such slices after this call.
            exchanged: (0, counted.dropped_hot),
        }
    }

    /// Looks at limits and marks free memory, if due. Returns the time until the next turn or look;
    /// `None`: until woken.
    fn turn(&mut self) -> Option<Duration> {
        let now = Instant::now();
        let is_turn = now.saturating_duration_since(self.turned) >= self.turn_time();
        // The kernel cannot take unmarked memory, so near a limit the keeper looks every turn.
        let is_watched = is_turn && self.is_due && self.is_limited();
        let has_grown = BELL.has_grown(&self.space.counters);
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
        let counted = self.space.counters.get();
        self.hot = counted.hot();
        if self.is_due {
            return Some(to_turn.min(to_look));
        }
        // The kernel takes marked memory page by page, even where huge pages back it. Near a limit
        // this may be too slow, so the keeper watches marked memory too.
        let watched = counted.hot() + if self.is_near { counted.volatile() } else { 0 };
        (watched >= WATCHED_MIN || self.is_pressed).then_some(to_look)
    }

    /// Returns true if looks are due more often than once a second.
    fn is_limited(&self) -> bool {
        self.pause < CALM
    }

    /// Returns true if huge pages are marked as soon as they are free, because a mark costs only a
    /// twentieth of filling the page again.
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
        let manner = Manner { age, is_huge: self.is_huge, is_alone: fork::is_alone(self.space) };
        self.is_due = self.space.mark(manner).is_due;
    }

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
        has(HAS_GAUGE, reading.pressure.is_some());
        has(HAS_GROUP, reading.pressure.is_some_and(is_group));
        if self.is_huge {
            self.space.ration.set(reading.pressure);
        }
        self.heed(reading);
        BELL.look_done(&self.space.counters);
    }

    fn heed(&mut self, mut reading: Reading) {
        if self.is_quiet(&reading) {
            (reading.short, reading.crowded, reading.margin) = Default::default();
        }
        self.press(&reading);
        self.give_back(&reading);
        if reading.short > Bytes::ZERO {
            self.short_at = Some(self.looked);
        }
        let pause = reading.pause;
        self.pause = if self.is_alert() { pause.min(TURN_HASTY) } else { pause };
    }

    fn is_alert(&self) -> bool {
        self.short_at.is_some_and(|at| at.elapsed() < ALERT)
    }

    /// Returns true if no other process takes memory. The keeper then gives nothing back, even with
    /// little room.
    fn is_quiet(&self, reading: &Reading) -> bool {
        let Some(pressure) = reading.pressure else { return false };
        let ahead = reading.margin.saturating_sub(settings::policy().still_margin(pressure.limit));
        let is_still = ahead.get() <= pressure.limit.get() >> STILL_SHIFT;
        let has_room = |least: Bytes| pressure.free() >= least;
        !self.is_alert() && is_still && settings::quiet_margin(pressure.limit).is_some_and(has_room)
    }

    fn read(&mut self) -> Reading {
        let counted = self.space.counters.get();
        let bytes = |slices: u64| Bytes::new(slices * SLICE as u64);
        let free = Free {
            marked: bytes(counted.volatile()),
            unmarked: bytes(counted.hot()),
            rewritten: bytes(self.space.listed().saturating_sub(counted.volatile())),
        };
        if self.gauge.is_none() && self.tried.elapsed() >= CALM {
            self.tried = Instant::now();
            self.gauge = Gauge::new(settings::policy()).ok();
        }
        let Some(gauge) = &mut self.gauge else {
            return Reading { pause: CALM, ..Reading::default() };
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

    fn press(&mut self, reading: &Reading) {
        let short = |pressure: Pressure| pressure.room() < reading.margin;
        self.is_pressed = reading.pressure.is_some_and(short);
        BELL.press(self.is_pressed);
    }

    fn give_back(&self, reading: &Reading) {
        let slices = |bytes: Bytes| bytes.as_usize().div_ceil(SLICE);
        let given = self.space.give_back(slices(reading.short), Which::Free);
        let crowded = slices(reading.crowded).saturating_sub(given.volatile);
        self.space.give_back(crowded, Which::Volatile);
    }

    /// Returns true if frees may wake the keeper early. Frees always end an endless sleep (`None`).
    /// Away from a limit, frees also end a sleep longer than a turn.
    fn hears_frees(&self, rest: Option<Duration>) -> bool {
        rest.is_none_or(|rest| !self.is_limited() && rest > self.turn_time())
    }

    fn sleep(&mut self, rest: Option<Duration>) {
        let hears_frees = self.hears_frees(rest);
        BELL.sleep(&self.space.counters, self.hot, rest, hears_frees, self.is_pressed);
        // Memory freed during the sleep waits for a mark.
        self.is_due = true;
    }
}

#[cfg(test)]
mod tests;
