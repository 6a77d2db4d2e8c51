//! What is used of mimalloc: objects by its calls, and memory handed to it.
//!
//! mimalloc calls the hook with `true` before it uses slices and with `false` after: at once, as
//! its delay is set to zero here. It holds none of its own locks then but, rarely, that of its
//! arenas. Source: mimalloc.h and arena.c of version 3.3.2.
//!
//! # Safety
//! The functions are C's: they take and give what malloc(3) does, and nothing is checked here.
#![allow(unsafe_code)]

use core::ffi::{c_int, c_long, c_void};
use core::ptr;

use libmimalloc_sys::mi_option_set;
pub use libmimalloc_sys::{
    mi_calloc, mi_collect, mi_free, mi_good_size, mi_is_in_heap_region, mi_malloc,
    mi_malloc_aligned, mi_process_init, mi_realloc, mi_realloc_aligned, mi_register_error,
    mi_usable_size, mi_zalloc, mi_zalloc_aligned,
};

/// mimalloc calls it with `true` before it uses slices, and with `false` after. Then come their
/// address, their bytes, where to say that they read as zeros (may be null), and the pointer that
/// was handed over with the arena.
pub type Hook = extern "C" fn(bool, *mut c_void, usize, *mut bool, *mut c_void) -> bool;

extern "C" {
    fn mi_manage_memory(
        start: *mut c_void,
        size: usize,
        is_committed: bool,
        is_pinned: bool,
        is_zero: bool,
        numa_node: c_int,
        exclusive: bool,
        commit: Hook,
        with: *mut c_void,
        arena: *mut *mut c_void,
    ) -> bool;
}

extern "C" {
    fn glebe_engine_try_lock() -> bool;
    fn glebe_engine_unlock();
    fn glebe_engine_renew_locks();
}

/// The delay after which it gives memory back, in milliseconds.
const PURGE_DELAY: c_int = 15;
/// Whether it commits parts of its pages alone, which the hook is not told of.
const PAGE_COMMIT_ON_DEMAND: c_int = 40;
/// Whether it asks for huge pages.
const ALLOW_THP: c_int = 43;
/// The longest object that it looks for room for in its arenas, in KiB.
const ARENA_MAX_OBJECT_SIZE: c_int = 45;

/// What is handed over first as one arena, as mimalloc does itself. Its tables take a part of each
/// arena, and what is left of their 32 MiB is the room where objects of all sizes mix.
pub const ARENA_FIRST: usize = 1 << 30;
/// The most: of twice as much the tables are too long.
pub const ARENA_MAX: usize = 8 << 30;
/// The least, and what its length is a multiple of.
pub const ARENA_MIN: usize = 32 << 20;
/// The longest object that is in an arena, whose first part are its tables.
pub const OBJECT_MAX: usize = ARENA_MAX - ARENA_MIN;

/// Has it call the hook at every free. Before the first.
pub fn prepare() {
    // SAFETY: stores to its options.
    unsafe {
        mi_option_set(PURGE_DELAY, 0);
        mi_option_set(PAGE_COMMIT_ON_DEMAND, 0);
        mi_option_set(ARENA_MAX_OBJECT_SIZE, (OBJECT_MAX >> 10) as c_long);
    }
}

/// Has it ask for no huge pages, which it does of all that it maps.
pub(crate) fn refuse_huge_pages() {
    // SAFETY: its own start, and a store to an option: before that it would be the process's.
    unsafe {
        mi_process_init();
        mi_option_set(ALLOW_THP, 0);
    }
}

/// Hands reserved addresses to mimalloc, which asks `hook` before it touches any; whether it took
/// them.
///
/// # Safety
/// The addresses are reserved for good and for this, and read as zeros once the hook made them
/// accessible; the hook takes `with`.
pub unsafe fn hand_over(base: usize, bytes: usize, hook: Hook, with: *mut c_void) -> bool {
    let at = ptr::with_exposed_provenance_mut(base);
    // SAFETY: passed on to the caller.
    unsafe {
        mi_manage_memory(at, bytes, false, false, true, -1, false, hook, with, ptr::null_mut())
    }
}

/// Takes the locks that its threads share, all or, where one is held, none; whether it did.
pub(crate) fn try_lock() -> bool {
    // SAFETY: once it is in use, as from the first object on; it waits for nothing.
    unsafe { glebe_engine_try_lock() }
}

/// Gives up what [`try_lock`] took.
pub(crate) fn unlock() {
    // SAFETY: this thread took them.
    unsafe { glebe_engine_unlock() }
}

/// Makes the locks free, in a forked child: the threads that held them are not in it.
pub(crate) fn renew_locks() {
    // SAFETY: there is one thread. A call of its own that a handler interrupted goes on, and gives
    // up a lock that nobody else can have taken meanwhile.
    unsafe { glebe_engine_renew_locks() }
}

/// Has it free what it keeps for later, of the calling thread.
pub fn collect() {
    // SAFETY: it may be called at any time outside of mimalloc.
    unsafe { mi_collect(true) };
}
