//! `free` of what does not lie in the heap's own addresses: nothing, an object that mimalloc keeps
//! elsewhere (all of them where there is no page layer), one that it does not know, or an
//! [early](early) one.
//!
//! The last is one that the loader made before this library was there, say. mimalloc frees without
//! a question: it reads its table of pages, and of addresses that it never had the table has no
//! memory. So an address is asked about first, which costs as much as the free. The table has
//! memory for a stretch of addresses at once, and keeps it: where mimalloc has one object it can be
//! given any address of the stretch, and lets be what it does not know. So the question is asked
//! once a stretch. Cost after that: a load, a comparison, and errno. No lock.
//! Source: page-map.c of mimalloc 3.3.2.
//!
//! # Safety
//! The caller's is that of free(3), but that the object may be nobody's.
#![allow(unsafe_code)]

use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, Ordering};

use glebe::sys::errno;
use pages::engine;

use crate::early;

/// A stretch has so many addresses, as a shift.
const STRETCH_SHIFT: u32 = 29;
/// So many are remembered, each at one place: more than a heap has that lies together.
const PLACES: usize = 64;

/// Stretches in which mimalloc has, or had, an object: their numbers, and 0 for none. The first
/// of all, where null is, is never here.
static KNOWN: [AtomicU32; PLACES] = [const { AtomicU32::new(0) }; PLACES];

/// Frees an object that is not the heap's own.
///
/// # Safety
/// As the head says.
#[inline(never)]
pub(crate) unsafe extern "C" fn free(at: *mut c_void) {
    if early::owns(at) {
        return;
    }
    let stretch = (at.addr() >> STRETCH_SHIFT) as u32;
    let place = &KNOWN[stretch as usize % PLACES];
    if stretch == 0 || place.load(Ordering::Relaxed) != stretch {
        // SAFETY: the caller's.
        return unsafe { ask(at, stretch) };
    }
    let _kept = errno::keep();
    // SAFETY: of a stretch that mimalloc has tables of; the caller's object, or nobody's.
    unsafe { engine::mi_free(at) };
}

/// As [`free`], of an address about which nothing is known.
#[cold]
#[inline(never)]
unsafe extern "C" fn ask(at: *mut c_void, stretch: u32) {
    // What is freed while the heap starts is not mimalloc's, which cannot be asked yet.
    if at.is_null() || early::is_starting() {
        return;
    }
    let _kept = errno::keep();
    // SAFETY: any address may be asked about; mimalloc frees what it knows.
    unsafe {
        if engine::mi_is_in_heap_region(at) {
            KNOWN[stretch as usize % PLACES].store(stretch, Ordering::Relaxed);
            engine::mi_free(at);
        }
    }
}
