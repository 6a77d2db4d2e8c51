//! [`Glebe`] is the heap as the allocator of a Rust program.
//!
//! The first allocation starts the heap with the options in `GLEBE_MALLOC`, except those for
//! reports: programs have [`Stats::now`](crate::stats::Stats::now). Cost: mimalloc's plus a load
//! and a branch. No lock.
//!
//! # Safety
//! mimalloc keeps the promises of `GlobalAlloc`: size, alignment, one owner.
#![allow(unsafe_code)]

use core::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicBool, Ordering};

use glebe::internal::sys::errno;

use crate::gate::Gate;
use crate::{engine, heap, options};

static GATE: Gate = Gate::new();

/// The allocator.
///
/// ```
/// use glebe_malloc::Glebe;
///
/// #[global_allocator]
/// static ALLOCATOR: Glebe = Glebe;
///
/// let squares: Vec<u64> = (0..1000).map(|n| n * n).collect();
/// assert_eq!(squares[999], 998_001);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Glebe;

/// Alignment in bytes of objects of at least this size; smaller objects have a word's alignment.
const USUAL_ALIGN: usize = 16;

/// Returns true if plain `mi_malloc` meets the layout's alignment.
#[inline]
fn is_usual(layout: Layout) -> bool {
    let (size, align) = (layout.size(), layout.align());
    align <= size_of::<usize>() || (align <= USUAL_ALIGN && size >= USUAL_ALIGN)
}

#[inline]
fn enter(size: usize) {
    if GATE.is_due(size) {
        work(size);
    }
}

#[cold]
#[inline(never)]
fn work(size: usize) {
    static BEGUN: AtomicBool = AtomicBool::new(false);
    let _kept = errno::keep();
    if !BEGUN.swap(true, Ordering::Relaxed) {
        heap::start(&GATE, &options::from_environment().heap);
    }
    heap::at_entry(&GATE, size);
}

// SAFETY: mimalloc keeps the promises, and nothing unwinds.
unsafe impl GlobalAlloc for Glebe {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        enter(layout.size());
        // SAFETY: a layout's alignment is a power of two.
        unsafe {
            if is_usual(layout) {
                engine::mi_malloc(layout.size()).cast()
            } else {
                engine::mi_malloc_aligned(layout.size(), layout.align()).cast()
            }
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        enter(layout.size());
        // SAFETY: a layout's alignment is a power of two.
        unsafe {
            if is_usual(layout) {
                engine::mi_zalloc(layout.size()).cast()
            } else {
                engine::mi_zalloc_aligned(layout.size(), layout.align()).cast()
            }
        }
    }

    #[inline]
    unsafe fn dealloc(&self, at: *mut u8, _layout: Layout) {
        // SAFETY: the object is the caller's.
        unsafe { engine::mi_free(at.cast()) }
    }

    #[inline]
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        enter(size);
        // SAFETY: the object is the caller's; a layout's alignment is a power of two.
        unsafe { engine::mi_realloc_aligned(at.cast(), size, layout.align()).cast() }
    }
}
