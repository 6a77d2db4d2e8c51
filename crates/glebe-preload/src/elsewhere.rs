//! Frees pointers outside the heap's addresses: null, [`early`] objects, mimalloc's objects
//! elsewhere (with `pages=off` all), and unknown objects, for example the loader's from before this
//! library was loaded.
//!
//! `mi_free` does not check the address: it reads mimalloc's table of pages, which has no memory
//! for addresses that mimalloc never used. A check of the address doubles the cost of a free. The
//! table gets memory for a whole stretch of addresses at once, and keeps it. In such a stretch
//! `mi_free` ignores unknown addresses. So `free` skips the check in a stretch where an earlier
//! check found an object. `free` takes no lock. Source: page-map.c of mimalloc 3.3.2.
//!
//! # Safety
//! The caller keeps the contract of free(3), except that the object may be unknown.
#![allow(unsafe_code)]

use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, Ordering};

use glebe::internal::sys::errno;
use pages::engine;

use crate::early;

/// Length of a stretch, as a power of two: 512 MiB.
const STRETCH_SHIFT: u32 = 29;
/// Number of stretches remembered, more than a contiguous heap spans.
const PLACES: usize = 64;

/// Numbers of 512 MiB stretches where mimalloc has or had an object, each at its value modulo
/// `PLACES`; 0 for none. Stretch 0, which contains null, is never stored.
static KNOWN: [AtomicU32; PLACES] = [const { AtomicU32::new(0) }; PLACES];

/// # Safety
/// See the head.
#[inline(never)]
pub(crate) unsafe extern "C" fn free(at: *mut c_void) {
    if early::owns(at) {
        return;
    }
    let stretch = (at.addr() >> STRETCH_SHIFT) as u32;
    let place = &KNOWN[stretch as usize % PLACES];
    if stretch == 0 || place.load(Ordering::Relaxed) != stretch {
        // SAFETY: the caller keeps the contract.
        return unsafe { ask(at, stretch) };
    }
    let _kept = errno::keep();
    // SAFETY: mimalloc's table has memory for this stretch; the object is the caller's, or unknown.
    unsafe { engine::mi_free(at) };
}

#[cold]
#[inline(never)]
unsafe extern "C" fn ask(at: *mut c_void, stretch: u32) {
    // While the heap starts, mimalloc cannot be asked, and has no objects yet.
    if at.is_null() || early::is_starting() {
        return;
    }
    let _kept = errno::keep();
    // SAFETY: mimalloc answers for any address, and frees its own.
    unsafe {
        if engine::mi_is_in_heap_region(at) {
            KNOWN[stretch as usize % PLACES].store(stretch, Ordering::Relaxed);
            engine::mi_free(at);
        }
    }
}
