//! Serves allocations of the thread that starts the heap, until the heap has started.
//!
//! The start asks for the time, for memory and for a key. Another library may stand in for these
//! functions and allocate in them. If it entered mimalloc then, mimalloc would give it objects and
//! afterwards make its tables anew without them. So this module gives the objects, from a static
//! piece of zeros, front to back. It knows them by their addresses. A free does nothing, and the
//! memory is never used again. No lock: only the starting thread and its signal handlers come here.
//!
//! ```text
//! ... | size of the object, a word, and a word of nothing | object, a multiple of 16 bytes | ...
//! ```
//!
//! # Safety
//! A byte is part of one object at most, or of the size in front of one.
#![allow(unsafe_code)]

use core::cell::{Cell, UnsafeCell};
use core::ffi::c_void;
use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering};

use glebe::sys::errno;

/// Bytes, most of them never touched.
const LEN: usize = 1 << 20;
const ALIGN: usize = 16;

#[repr(C, align(4096))]
struct Bytes(UnsafeCell<[u8; LEN]>);

// SAFETY: one owner has the bytes of an object; its size is written before it is given out.
unsafe impl Sync for Bytes {}

static BYTES: Bytes = Bytes(UnsafeCell::new([0; LEN]));
/// Bytes that were given out.
static USED: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// It needs no allocation and no end of its own.
    static IS_STARTING: Cell<bool> = const { Cell::new(false) };
}

/// Runs the start of the heap.
pub(crate) fn during(start: impl FnOnce()) {
    IS_STARTING.set(true);
    start();
    IS_STARTING.set(false);
}

/// Whether the calling thread is within the start of the heap.
pub(crate) fn is_starting() -> bool {
    IS_STARTING.get()
}

/// Whether an object is from here. One comparison.
#[inline(always)]
pub(crate) fn owns(at: *const c_void) -> bool {
    at.addr().wrapping_sub(BYTES.0.get().addr()) < LEN
}

/// Returns an object.
pub(crate) fn alloc(size: usize) -> *mut c_void {
    alloc_aligned(size, ALIGN)
}

/// Returns an object of zeros.
pub(crate) fn alloc_zeroed(size: usize) -> *mut c_void {
    // Nobody had its bytes before.
    alloc(size)
}

/// Returns an object at a multiple of a power of two.
pub(crate) fn alloc_aligned(size: usize, align: usize) -> *mut c_void {
    let first: *mut u8 = BYTES.0.get().cast();
    // The place of an object, if `used` bytes were given out before.
    let place = |used: usize| {
        let behind = first.addr() + used + ALIGN;
        Some(behind.checked_next_multiple_of(align.max(ALIGN))? - first.addr())
    };
    let end = |used| place(used)?.checked_add(size).filter(|end| *end < LEN);
    let used = USED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, end).ok();
    let Some(place) = used.and_then(place) else { return refused() };
    // SAFETY: both lie within the piece, behind what was given out, and the object is aligned.
    unsafe {
        let at = first.add(place);
        at.sub(ALIGN).cast::<usize>().write(size);
        at.cast()
    }
}

/// Returns an object of another size, for nothing or one that is not from here.
pub(crate) fn realloc(at: *mut c_void, size: usize) -> *mut c_void {
    if at.is_null() {
        alloc(size)
    } else {
        // mimalloc's, which has given none yet.
        refused()
    }
}

fn refused() -> *mut c_void {
    errno::set(errno::ENOMEM);
    ptr::null_mut()
}

/// Returns the size of an object from here.
///
/// # Safety
/// It is from here.
pub(crate) unsafe fn size_of(at: *const c_void) -> usize {
    // SAFETY: the caller's object has its size in front.
    unsafe { at.cast::<u8>().sub(ALIGN).cast::<usize>().read() }
}
