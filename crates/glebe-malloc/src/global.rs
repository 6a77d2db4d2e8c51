//! [`Glebe`]: the heap as the allocator of a Rust program.
//!
//! Cost of an allocation: mimalloc's, one load and one branch. The first starts the heap, as
//! `GLEBE_MALLOC` says of it; of reports nothing is heeded here, since the program has
//! [`Stats::now`](crate::stats::Stats::now). No lock.
//!
//! # Safety
//! mimalloc's objects keep the promises of `GlobalAlloc`: they lie at a multiple of the layout's
//! alignment, are as long as its size, and only who has one gives it back.
#![allow(unsafe_code)]

use core::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicBool, Ordering};

use glebe::sys::errno;

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

/// Objects of mimalloc's of at least this size lie at its multiples, and smaller ones at multiples
/// of a word.
const USUAL_ALIGN: usize = 16;

/// Whether any object of the layout's size lies where it asks.
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

// SAFETY: as the head says; nothing here unwinds.
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
        // SAFETY: the caller's own object.
        unsafe { engine::mi_free(at.cast()) }
    }

    #[inline]
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        enter(size);
        // SAFETY: the caller's own object; a layout's alignment is a power of two.
        unsafe { engine::mi_realloc_aligned(at.cast(), size, layout.align()).cast() }
    }
}
