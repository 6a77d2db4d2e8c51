//! Serves the thread that starts the heap, until the heap has started.
//!
//! The start calls C functions (time, memory, a thread-specific key). Another library may replace
//! these functions and allocate in them. mimalloc must not serve such an allocation, because the
//! start afterwards makes mimalloc's tables anew, without the object. So early objects come from a
//! static array of zeros, front to back, and their memory is never used again. No lock: only the
//! starting thread and its signal handlers use this module.
//!
//! ```text
//! ... | size of the object, a word, and a word of nothing | object, a multiple of 16 bytes | ...
//! ```
//!
//! # Safety
//! Each byte of the array belongs to at most one object, or to the size in front of an object.
#![allow(unsafe_code)]

use core::cell::{Cell, UnsafeCell};
use core::ffi::c_void;
use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering};

use glebe::internal::sys::errno;

const LEN: usize = 1 << 20;
const ALIGN: usize = 16;

#[repr(C, align(4096))]
struct Bytes(UnsafeCell<[u8; LEN]>);

// SAFETY: an object's bytes have one owner, which gets the object after its size was written.
unsafe impl Sync for Bytes {}

static BYTES: Bytes = Bytes(UnsafeCell::new([0; LEN]));
static USED: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static IS_STARTING: Cell<bool> = const { Cell::new(false) };
}

pub(crate) fn during(start: impl FnOnce()) {
    IS_STARTING.set(true);
    start();
    IS_STARTING.set(false);
}

pub(crate) fn is_starting() -> bool {
    IS_STARTING.get()
}

#[inline(always)]
pub(crate) fn owns(at: *const c_void) -> bool {
    at.addr().wrapping_sub(BYTES.0.get().addr()) < LEN
}

pub(crate) fn alloc(size: usize) -> *mut c_void {
    alloc_aligned(size, ALIGN)
}

pub(crate) fn alloc_zeroed(size: usize) -> *mut c_void {
    alloc(size)
}

pub(crate) fn alloc_aligned(size: usize, align: usize) -> *mut c_void {
    let first: *mut u8 = BYTES.0.get().cast();
    let place = |used: usize| {
        let behind = first.addr() + used + ALIGN;
        Some(behind.checked_next_multiple_of(align.max(ALIGN))? - first.addr())
    };
    let end = |used| place(used)?.checked_add(size).filter(|end| *end < LEN);
    let used = USED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, end).ok();
    let Some(place) = used.and_then(place) else { return refused() };
    // SAFETY: `USED` was raised past the object, so object and size are in the array and unused.
    unsafe {
        let at = first.add(place);
        at.sub(ALIGN).cast::<usize>().write(size);
        at.cast()
    }
}

/// Allocates if `at` is null. Refuses mimalloc's objects; the caller itself moves early objects.
pub(crate) fn realloc(at: *mut c_void, size: usize) -> *mut c_void {
    if at.is_null() {
        alloc(size)
    } else {
        refused()
    }
}

fn refused() -> *mut c_void {
    errno::set(errno::ENOMEM);
    ptr::null_mut()
}

/// Returns an object's size.
///
/// # Safety
/// The object is from this module.
pub(crate) unsafe fn size_of(at: *const c_void) -> usize {
    // SAFETY: `alloc_aligned` wrote the size in front of the object.
    unsafe { at.cast::<u8>().sub(ALIGN).cast::<usize>().read() }
}
