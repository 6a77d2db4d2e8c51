//! The process's heap: its space, mimalloc's hook, and the calls of users.
//!
//! The hook leaves work at the [`Gate`] for the next allocating call. The hook keeps `errno`,
//! allocates nothing, does not panic, and costs some ns per slice. Public counts are in bytes.
//!
//! # Safety
//! mimalloc calls the hook with the space from `hand_over`, which lives for ever, and with
//! addresses in that space.
#![allow(unsafe_code)]

use core::ffi::c_void;
use core::ptr;
use std::ops::Range;
use std::time::Duration;

use glebe::internal::sys::errno;
use glebe::internal::sys::machine::least_limit;
use glebe::internal::sys::memory::madvise::{try_advise, Advice};
use glebe::internal::sys::processes::lean;
use glebe::Bytes;

use crate::engine;
use crate::fork;
use crate::gate::{Gate, ARENA, LARGE, START, THREAD};
use crate::keeper;
use crate::pages::give_back::Which;
use crate::pages::space::{Space, SLICE, UNIT, UNIT_SLICES};
use crate::pages::state::{Slice, State};
use crate::sync::{AtomicPtr, AtomicU64, Ordering};

static GATE: AtomicPtr<Gate> = AtomicPtr::new(ptr::null_mut());
static SPACE: AtomicPtr<Space> = AtomicPtr::new(ptr::null_mut());
/// Slices handed to mimalloc.
static HANDED: AtomicU64 = AtomicU64::new(0);
/// First slice of the arena handed over last.
static LAST: AtomicU64 = AtomicU64::new(0);
/// Slices of mimalloc's tables.
static TABLES: AtomicU64 = AtomicU64::new(0);
const ROUND: u64 = 16 << 30;
pub(crate) const SPACE_MAX: u64 = 2 << 40;
pub(crate) const SPACE_MIN: u64 = 64 << 20;

/// The user's choices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Allows the keeper.
    pub thread: bool,
    /// Asks for huge pages.
    pub huge: bool,
    /// Uses the page layer; `false` leaves all to mimalloc.
    pub pages: bool,
    /// About the time from free to mark; shorter near a limit.
    pub age: Duration,
    /// Bytes to keep free below a memory limit; at most a quarter of the limit, or half while usage
    /// rises. `None`: 256 MiB, or less while no other process takes memory.
    pub margin: Option<Bytes>,
    /// Maximum bytes of addresses to reserve; `None`: the machine's memory.
    pub addresses: Option<Bytes>,
}

impl Settings {
    /// The default settings.
    pub const DEFAULT: Self =
        Self { thread: true, huge: true, pages: true, age: AGE, margin: None, addresses: None };
}

impl Default for Settings {
    fn default() -> Self {
        Self::DEFAULT
    }
}

const AGE: Duration = Duration::from_millis(40);

/// Does the due work before an allocation of `size` bytes. May allocate, so the caller holds no
/// lock of mimalloc or the C library.
#[cold]
pub fn at_entry(gate: &'static Gate, size: usize) {
    start(gate, &Settings::DEFAULT);
    let _kept = errno::keep();
    let due = gate.take(ARENA | THREAD);
    if let Some(space) = space() {
        if due & ARENA != 0 {
            hand_over(space, 0);
        }
        if size >= LARGE {
            make_room(space, size);
        }
        if due & THREAD != 0 {
            keeper::start(space);
        }
    }
}

/// Starts the heap and sets up `gate` before the first use of mimalloc. Later calls do nothing.
/// Allocates nothing before mimalloc works.
pub fn start(gate: &'static Gate, settings: &Settings) {
    if gate.take(START) == 0 {
        return;
    }
    if !settings.pages {
        return leave_alone();
    }
    let (to, ok, failed) = (ptr::from_ref(gate).cast_mut(), Ordering::AcqRel, Ordering::Relaxed);
    if GATE.compare_exchange(ptr::null_mut(), to, ok, failed).is_err() {
        return;
    }
    let _kept = errno::keep();
    keeper::set(settings);
    if let Some(space) = reserve(settings.addresses) {
        // Stores the space first, because the hook may run at once.
        SPACE.store(ptr::from_ref(space).cast_mut(), Ordering::Release);
        let (base, bytes) = space.memory_of(0, space.states().len());
        gate.set_own(base..base + bytes);
        if settings.thread && keeper::wants_huge() {
            space.ration.begin(least_limit::least().map(Bytes::new));
        }
        if hand_over(space, 0) {
            engine::prepare();
            if fork::begin() && settings.thread {
                keeper::allow();
            }
        } else {
            SPACE.store(ptr::null_mut(), Ordering::Release);
            gate.set_own(0..0);
            leave_alone();
        }
    } else {
        leave_alone();
    }
}

/// Leaves all memory to mimalloc. Its locks need the fork steps. Huge pages are off, because no
/// keeper thread watches memory limits.
fn leave_alone() {
    engine::refuse_huge_pages();
    fork::begin();
}

fn gate() -> Option<&'static Gate> {
    // SAFETY: the pointer is null, or a static's.
    unsafe { GATE.load(Ordering::Acquire).as_ref() }
}

fn ask(due: u64) {
    if let Some(gate) = gate() {
        gate.ask(due);
    }
}

pub(crate) fn space() -> Option<&'static Space> {
    // SAFETY: the pointer is null, or a space's, which lives as long as the process.
    unsafe { SPACE.load(Ordering::Acquire).as_ref() }
}

/// Reserves `most` bytes of addresses, by default the machine's memory rounded up to `ROUND`; never
/// more than half of `RLIMIT_AS`. If the kernel refuses, tries half the length.
fn reserve(most: Option<Bytes>) -> Option<&'static Space> {
    let memory = lean::machine_memory().unwrap_or(ROUND).next_multiple_of(ROUND);
    let limit = lean::address_limit().map_or(u64::MAX, |limit| limit / 2);
    let mut bytes = most.map_or(memory.min(SPACE_MAX), Bytes::get).min(limit);
    while bytes >= SPACE_MIN {
        let units = bytes as usize / engine::ARENA_MIN * (engine::ARENA_MIN / UNIT);
        if let Ok(space) = Space::reserve(units) {
            return Some(space);
        }
        bytes /= 2;
    }
    None
}

/// Hands more of the space to mimalloc if a large object lacks free chunks. mimalloc would
/// otherwise map its own arena, never unmap the arena, and call no hook for its memory.
fn make_room(space: &'static Space, size: usize) {
    let chunks = size.saturating_add(SLICE).div_ceil(engine::ARENA_MIN);
    if chunks > engine::OBJECT_MAX / engine::ARENA_MIN {
        return;
    }
    let has_room = || {
        let states = &space.states()[..HANDED.load(Ordering::Acquire) as usize];
        let mut run = 0;
        states.chunks(engine::ARENA_MIN / SLICE).any(|chunk| {
            let is_free = chunk.iter().all(|state| state.get() != Slice::Live);
            run = if is_free { run + 1 } else { 0 };
            run == chunks
        })
    };
    while !has_room() && hand_over(space, (chunks + 1) * engine::ARENA_MIN) {}
}

/// Hands over the next piece of the space, at least `least` bytes if possible. Returns true if
/// mimalloc took the piece. Asks for no huge pages in mimalloc's tables, because few of their pages
/// are touched.
fn hand_over(space: &'static Space, least: usize) -> bool {
    let (all, from) = (space.states().len(), HANDED.load(Ordering::Acquire) as usize);
    let slices = (all - from).min(next_arena(from * SLICE).max(least) / SLICE);
    let next = (from + slices) as u64;
    let (ok, failed) = (Ordering::AcqRel, Ordering::Relaxed);
    if slices == 0 || HANDED.compare_exchange(from as u64, next, ok, failed).is_err() {
        return false;
    }
    LAST.store(from as u64, Ordering::Relaxed);
    let (base, bytes) = space.memory_of(from, slices);
    let with = ptr::from_ref(space).cast_mut().cast();
    // SAFETY: the space owns the addresses, and hands them over once; the hook takes a space.
    let is_taken = unsafe { engine::hand_over(base, bytes, hook, with) };
    let in_use = |state: &&State| state.get() == Slice::Live;
    let tables = space.states()[from..].iter().take_while(in_use).count();
    TABLES.fetch_add(tables as u64, Ordering::Relaxed);
    if is_taken {
        let first = tables.next_multiple_of(UNIT_SLICES) * SLICE;
        let len = Bytes::new((bytes - first) as u64);
        let is_counted = space.ration.is_counted();
        let has_huge = keeper::wants_huge() && !is_counted;
        let advice = if has_huge { Advice::HugePage } else { Advice::NoHugePage };
        // SAFETY: the space owns the addresses; the advice changes no contents. If the kernel
        // refuses, the machine's setting applies.
        let is_done = unsafe { try_advise(base + first, len, advice) }.is_ok();
        if is_done && is_counted {
            space.have_base_pages(from + first / SLICE..next as usize);
        }
    }
    is_taken
}

/// Returns the next arena's length in bytes: it grows, because mimalloc can have only 160 arenas.
fn next_arena(handed: usize) -> usize {
    let eighth = handed / 8;
    let power = if eighth == 0 { 0 } else { 1 << eighth.ilog2() };
    power.clamp(engine::ARENA_FIRST, engine::ARENA_MAX)
}

extern "C" fn hook(
    is_begin: bool,
    at: *mut c_void,
    bytes: usize,
    is_zero: *mut bool,
    with: *mut c_void,
) -> bool {
    // SAFETY: `hand_over` passed the space.
    let space: &'static Space = unsafe { &*with.cast_const().cast() };
    let slices = space.slices_at(at.addr(), bytes);
    if is_begin {
        begin(space, slices, is_zero)
    } else {
        end(space, slices);
        true
    }
}

#[inline]
fn begin(space: &'static Space, slices: Range<usize>, is_zero: *mut bool) -> bool {
    let Some(taken) = space.take(slices) else { return false };
    if taken.is_zero() && !is_zero.is_null() {
        // SAFETY: mimalloc passes the pointer for this answer.
        unsafe { is_zero.write(true) };
    }
    if taken.cold > 0 {
        grown(space, taken.has_grown);
    }
    true
}

#[inline]
fn end(space: &'static Space, slices: Range<usize>) {
    let is_whole = space.free(slices.clone());
    if keeper::is_called(is_whole) {
        freed(space, &slices, is_whole);
    }
}

#[cold]
fn grown(space: &'static Space, has_opened: bool) {
    let _kept = errno::keep();
    let handed = HANDED.load(Ordering::Relaxed) as usize;
    let last = (LAST.load(Ordering::Relaxed) as usize).min(handed);
    if has_opened && handed < space.states().len() && space.opened() > last + (handed - last) / 2 {
        ask(ARENA);
    }
    if keeper::grown(space) {
        ask(THREAD);
    }
}

#[cold]
fn freed(space: &'static Space, slices: &Range<usize>, is_whole: bool) {
    let _kept = errno::keep();
    if keeper::freed(space, slices, is_whole) {
        ask(THREAD);
    }
}

/// Gives free memory back, including what mimalloc keeps for the calling thread, except `keep`
/// bytes. Returns the bytes given back.
pub fn trim(keep: usize) -> usize {
    let _kept = errno::keep();
    engine::collect();
    space().map_or(0, |space| {
        let counted = space.counters.get();
        let free = (counted.hot() + counted.volatile()) as usize;
        space.give_back(free.saturating_sub(keep / SLICE), Which::Free).slices() * SLICE
    })
}

/// The heap's counts, in bytes unless noted. While threads run, the counts may disagree slightly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// In use.
    pub live: u64,
    /// Free and unmarked.
    pub hot: u64,
    /// Free and marked; the kernel may have taken a part.
    pub volatile: u64,
    /// Total taken into use without pages.
    pub reused_cold: u64,
    /// Total taken into use again with its pages.
    pub reused_warm: u64,
    /// Total marked.
    pub marked: u64,
    /// Total given back by the heap.
    pub given_back: u64,
    /// Total of marked memory found taken by the kernel.
    pub purged: u64,
    /// Calls that marked or gave back.
    pub calls: u64,
    /// Calls that the kernel refused.
    pub refused: u64,
    /// Looks at how short memory is.
    pub looks: u64,
    /// mimalloc's tables in the space, part of `live`.
    pub tables: u64,
}

/// Returns the counts.
#[must_use]
pub fn counts() -> Counts {
    let Some(space) = space() else { return Counts::default() };
    let counted = space.counters.get();
    let bytes = |slices: u64| slices * SLICE as u64;
    Counts {
        live: bytes(counted.live()),
        hot: bytes(counted.hot()),
        volatile: bytes(counted.volatile()),
        reused_cold: bytes(counted.cold),
        reused_warm: bytes(counted.taken.saturating_sub(counted.cold)),
        marked: bytes(counted.marked),
        given_back: bytes(counted.dropped_hot + counted.dropped_volatile),
        purged: bytes(counted.lost),
        calls: counted.calls,
        refused: counted.refused,
        looks: keeper::looks(),
        tables: bytes(TABLES.load(Ordering::Relaxed)),
    }
}

/// Returns the resident bytes of marked memory; `None` if the kernel does not say. Adds memory that
/// the kernel took to [`Counts::purged`]. Takes about 2 ms per GiB. Signal handlers may call it.
#[must_use]
pub fn audit() -> Option<u64> {
    let _kept = errno::keep();
    let left = space().map(Space::peek_at_volatile).unwrap_or_default();
    (left.untold == 0).then_some(left.resident as u64)
}

/// Mechanisms that work here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mechanisms {
    /// Bytes of addresses; 0 without the page layer.
    pub addresses: u64,
    /// Units are huge pages. Known once a keeper has started.
    pub huge_pages: bool,
    /// A keeper runs.
    pub thread: bool,
    /// The keeper has its own table of open files.
    pub own_files: bool,
    /// The keeper can read how short memory is.
    pub gauge: bool,
    /// A memory cgroup's limit was the tightest at the last look.
    pub group: bool,
}

/// Returns the current mechanisms.
#[must_use]
pub fn mechanisms() -> Mechanisms {
    Mechanisms { addresses: gate().map_or(0, Gate::own_bytes), ..keeper::mechanisms() }
}
