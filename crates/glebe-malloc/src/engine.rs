//! Declares mimalloc's functions for objects, and for giving memory to mimalloc.
//!
//! mimalloc calls the [`Hook`] before it uses slices, and as soon as it frees them, because
//! [`prepare`] sets the purge delay to zero. During the call mimalloc holds none of its locks or,
//! rarely, the lock of its arenas. Source: mimalloc.h and arena.c of version 3.3.2.
//!
//! # Safety
//! The C functions have the contracts of malloc(3), unchecked.
#![allow(unsafe_code)]

use core::ffi::{c_int, c_long, c_void};
use core::ptr;

use libmimalloc_sys::mi_option_set;
pub use libmimalloc_sys::{
    mi_calloc, mi_collect, mi_free, mi_good_size, mi_is_in_heap_region, mi_malloc,
    mi_malloc_aligned, mi_process_init, mi_realloc, mi_realloc_aligned, mi_register_error,
    mi_usable_size, mi_zalloc, mi_zalloc_aligned,
};

/// mimalloc's hook. Arguments: `true` before a use or `false` after it, address, length in bytes,
/// where to store that the slices read as zeros (may be null), and the arena's pointer.
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

/// Option: delay of purges, in milliseconds.
const PURGE_DELAY: c_int = 15;
/// Option: commit pages in parts, without a call of the hook.
const PAGE_COMMIT_ON_DEMAND: c_int = 40;
/// Option: ask for huge pages.
const ALLOW_THP: c_int = 43;
/// Option: longest object in arenas, in KiB.
const ARENA_MAX_OBJECT_SIZE: c_int = 45;

/// Bytes of the first arena, also mimalloc's default.
pub const ARENA_FIRST: usize = 1 << 30;
/// Bytes of the longest arena. At twice the length, the tables would exceed 32 MiB, mimalloc's
/// limit.
pub const ARENA_MAX: usize = 8 << 30;
/// Bytes of the shortest arena; all lengths are multiples of it.
pub const ARENA_MIN: usize = 32 << 20;
/// Bytes of the longest object in an arena, beside the tables.
pub const OBJECT_MAX: usize = ARENA_MAX - ARENA_MIN;

/// Makes mimalloc call the hook whenever it frees slices. Must precede the first object.
pub fn prepare() {
    // SAFETY: the calls store options of mimalloc.
    unsafe {
        mi_option_set(PURGE_DELAY, 0);
        mi_option_set(PAGE_COMMIT_ON_DEMAND, 0);
        mi_option_set(ARENA_MAX_OBJECT_SIZE, (OBJECT_MAX >> 10) as c_long);
    }
}

pub(crate) fn refuse_huge_pages() {
    // SAFETY: the calls start mimalloc and then store an option. A later start would apply the
    // option to the whole process.
    unsafe {
        mi_process_init();
        mi_option_set(ALLOW_THP, 0);
    }
}

/// Hands reserved addresses to mimalloc, which calls `hook` before it touches any. Returns true if
/// mimalloc took them.
///
/// # Safety
/// The addresses are reserved for good and only for this, and read as zeros once the hook made them
/// accessible. The hook accepts `with`.
pub unsafe fn hand_over(base: usize, bytes: usize, hook: Hook, with: *mut c_void) -> bool {
    let at = ptr::with_exposed_provenance_mut(base);
    // SAFETY: the caller keeps the contract.
    unsafe {
        mi_manage_memory(at, bytes, false, false, true, -1, false, hook, with, ptr::null_mut())
    }
}

/// Takes all of mimalloc's shared locks, or none if one is held. Never waits.
pub(crate) fn try_lock() -> bool {
    // SAFETY: mimalloc started with the first object.
    unsafe { glebe_engine_try_lock() }
}

pub(crate) fn unlock() {
    // SAFETY: this thread took the locks.
    unsafe { glebe_engine_unlock() }
}

pub(crate) fn renew_locks() {
    // SAFETY: the process has one thread. If a signal handler forked during a call of mimalloc,
    // that call later releases a renewed lock, which no other thread can hold.
    unsafe { glebe_engine_renew_locks() }
}

/// Makes mimalloc free what it keeps for the calling thread.
pub fn collect() {
    // SAFETY: any thread may call it outside of mimalloc.
    unsafe { mi_collect(true) };
}
