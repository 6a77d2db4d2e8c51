//! The one heap of the process: its space, what mimalloc's hook does, and what is asked of it.
//!
//! What is due, a hook asks of the [`Gate`], and the next entry does. Hooks keep `errno`, allocate
//! nothing and do not panic. Counts are in bytes. Cost of a hook: some ns a slice.
//!
//! # Safety
//! mimalloc calls the hook with what was handed over: a space that is never given back, and
//! addresses within it.
#![allow(unsafe_code)]

use core::ffi::c_void;
use core::ptr;
use std::ops::Range;
use std::time::Duration;

use glebe::sys::errno;
use glebe::sys::madvise::{try_advise, Advice};
use glebe::sys::{lean, least_limit};
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
/// Slices that mimalloc has, the first of its last arena, and those that its own tables take.
static HANDED: AtomicU64 = AtomicU64::new(0);
static LAST: AtomicU64 = AtomicU64::new(0);
static TABLES: AtomicU64 = AtomicU64::new(0);
/// Of the machine's memory the space has as many addresses, rounded up to this, and at most so
/// many. Where that is refused it has half, and so on down to the least.
const ROUND: u64 = 16 << 30;
pub(crate) const SPACE_MAX: u64 = 2 << 40;
pub(crate) const SPACE_MIN: u64 = 64 << 20;

/// What a user can choose of the heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Whether there may be a thread that marks and gives back.
    pub thread: bool,
    /// Whether to ask for huge pages.
    pub huge: bool,
    /// Whether there is a page layer; no leaves all to mimalloc.
    pub pages: bool,
    /// How long memory stays free before it is marked.
    pub age: Duration,
    /// The room to leave below a limit, never more than a quarter of it at rest; by itself
    /// 256 MiB, and the policy's own while nobody else takes memory.
    pub margin: Option<Bytes>,
    /// The most addresses of the space; by itself as many as the machine has memory.
    pub addresses: Option<Bytes>,
}

impl Settings {
    /// What they are where nobody says otherwise.
    pub const DEFAULT: Self =
        Self { thread: true, huge: true, pages: true, age: AGE, margin: None, addresses: None };
}

impl Default for Settings {
    fn default() -> Self {
        Self::DEFAULT
    }
}

const AGE: Duration = Duration::from_millis(40);

/// Does what is due. At the entry of an allocation of `size` bytes, where no lock of mimalloc's or
/// of the C library's is held; it may allocate by itself.
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

/// Starts the heap behind a gate, before mimalloc is used first; later calls do nothing, nor do
/// those with another gate. Allocates nothing before mimalloc can.
pub fn start(gate: &'static Gate, settings: &Settings) {
    if gate.take(START) == 0 {
        return;
    }
    if !settings.pages {
        // mimalloc has locks too, and nobody who would see a limit.
        engine::refuse_huge_pages();
        fork::begin();
        return;
    }
    let (to, ok, failed) = (ptr::from_ref(gate).cast_mut(), Ordering::AcqRel, Ordering::Relaxed);
    if GATE.compare_exchange(ptr::null_mut(), to, ok, failed).is_err() {
        return;
    }
    let _kept = errno::keep();
    keeper::set(settings);
    if let Some(space) = reserve(settings.addresses) {
        // Before, since the hook may be called at once; without an arena mimalloc is as it was.
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
        }
    }
}

fn gate() -> Option<&'static Gate> {
    // SAFETY: null, or a static.
    unsafe { GATE.load(Ordering::Acquire).as_ref() }
}

/// Has something done at the next entry.
fn ask(due: u64) {
    if let Some(gate) = gate() {
        gate.ask(due);
    }
}

pub(crate) fn space() -> Option<&'static Space> {
    // SAFETY: null, or a space, which lives as long as the process.
    unsafe { SPACE.load(Ordering::Acquire).as_ref() }
}

/// A space as large as the limits and the user let it be.
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

/// Hands over more where mimalloc has no room for a large object: else it would take an arena of
/// its own from the system, for good and without the hook. It needs whole chunks that are free.
fn make_room(space: &'static Space, size: usize) {
    let chunks = size.saturating_add(SLICE).div_ceil(engine::ARENA_MIN);
    if chunks * engine::ARENA_MIN > engine::OBJECT_MAX {
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

/// Hands the next piece of the space to mimalloc, with `least` bytes if there are as many; whether
/// it took it. Its tables there are no memory of the program's, and touched here and there: they
/// have no huge pages.
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
    // SAFETY: of the space, handed over once; the hook takes a space.
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
        // SAFETY: of the space; a wish. Where it is refused all is as the machine has it.
        let is_done = unsafe { try_advise(base + first, len, advice) }.is_ok();
        if is_done && is_counted {
            space.have_base_pages(from + first / SLICE..next as usize);
        }
    }
    is_taken
}

/// How many bytes are handed over next: they grow with what there is, for mimalloc can have no more
/// than 160 arenas.
fn next_arena(handed: usize) -> usize {
    let eighth = handed / 8;
    let power = if eighth == 0 { 0 } else { 1 << eighth.ilog2() };
    power.clamp(engine::ARENA_FIRST, engine::ARENA_MAX)
}

/// What mimalloc calls around every use of slices.
extern "C" fn hook(
    is_begin: bool,
    at: *mut c_void,
    bytes: usize,
    is_zero: *mut bool,
    with: *mut c_void,
) -> bool {
    // SAFETY: what was handed over.
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
        // SAFETY: mimalloc's own answer.
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

/// After slices came into use that had no memory.
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

/// After a free that the keeper is to know of.
#[cold]
fn freed(space: &'static Space, slices: &Range<usize>, is_whole: bool) {
    let _kept = errno::keep();
    if keeper::freed(space, slices, is_whole) {
        ask(THREAD);
    }
}

/// Gives memory back to the system until at most so many bytes of it are free here, of what
/// mimalloc keeps for the calling thread too; how many bytes went.
pub fn trim(keep: usize) -> usize {
    let _kept = errno::keep();
    engine::collect();
    space().map_or(0, |space| {
        let counted = space.counters.get();
        let free = (counted.hot() + counted.volatile()) as usize;
        space.give_back(free.saturating_sub(keep / SLICE), Which::Free).slices() * SLICE
    })
}

/// What the heap did and has, in bytes and numbers. A reader beside running threads is off by what
/// happens meanwhile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// In use.
    pub live: u64,
    /// Free and whole.
    pub hot: u64,
    /// Free and marked, as far as is known: the kernel may have taken part.
    pub volatile: u64,
    /// Came into use and had no memory, in all.
    pub reused_cold: u64,
    /// Came into use and was free before, in all.
    pub reused_warm: u64,
    /// Marked, in all.
    pub marked: u64,
    /// Given back by us, in all.
    pub given_back: u64,
    /// Marked memory that was found taken by the kernel, in all.
    pub purged: u64,
    /// Calls that marked or gave back.
    pub calls: u64,
    /// Of them refused.
    pub refused: u64,
    /// How often it was looked how short memory is.
    pub looks: u64,
    /// mimalloc's own tables in the space, which count as in use.
    pub tables: u64,
}

/// What the counters say. Some loads.
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

/// Looks at marked memory: so many bytes of it are in memory; none where the kernel does not tell.
/// What it took counts as purged from now on. About 2 ms a GiB that is marked. A signal handler may
/// ask.
#[must_use]
pub fn audit() -> Option<u64> {
    let _kept = errno::keep();
    let left = space().map(Space::peek_at_volatile).unwrap_or_default();
    (left.untold == 0).then_some(left.resident as u64)
}

/// What the heap has of what it can use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mechanisms {
    /// Bytes of addresses; 0: no page layer, mimalloc is alone.
    pub addresses: u64,
    /// Whether units are huge pages; known once there was a keeper.
    pub huge_pages: bool,
    /// Whether there is a keeper now.
    pub thread: bool,
    /// Whether the keeper has a table of open files of its own.
    pub own_files: bool,
    /// Whether the keeper can tell how short memory is.
    pub gauge: bool,
    /// Whether a memory cgroup with a limit was the tightest at the last look.
    pub group: bool,
}

/// What there is now.
#[must_use]
pub fn mechanisms() -> Mechanisms {
    Mechanisms { addresses: gate().map_or(0, Gate::own_bytes), ..keeper::mechanisms() }
}
