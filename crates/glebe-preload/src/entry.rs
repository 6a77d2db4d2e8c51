//! This module's functions allocate through mimalloc. Each function first compares the size with
//! the word of `GATE`. The word is less than any size while work is due, and otherwise exceeds all
//! but huge sizes.
//!
//! The process's first allocating call starts the heap, whether the loader, a constructor or the
//! program makes it. [`early`] serves calls during the start. The start needs no lock, because the
//! first call precedes threads.
//!
//! # Safety
//! mimalloc passes a number to the error handler, which only sets errno.
#![allow(unsafe_code)]

use core::ffi::{c_int, c_void};
use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering};

use glebe::internal::sys::errno;
use pages::gate::Gate;
use pages::{engine, heap, options};

use crate::{early, report};

pub(crate) static GATE: Gate = Gate::new();
static BEGUN: AtomicBool = AtomicBool::new(false);

/// Defines functions that do the work that `GATE` says is due, and call mimalloc. `after_work` is
/// a separate function, so that the fast path needs only argument registers and ends with a jump.
macro_rules! entries {
    ($(
        $what:literal $name:ident of $size:ident = $call:ident($($argument:ident: $type:ty),*);
    )*) => {$(
        #[doc = $what]
        ///
        /// # Safety
        /// See malloc(3).
        #[inline(always)]
        pub(crate) unsafe fn $name($($argument: $type),*) -> *mut c_void {
            #[cold]
            #[inline(never)]
            unsafe extern "C" fn after_work($($argument: $type),*) -> *mut c_void {
                if !work($size) {
                    return early::$name($($argument),*);
                }
                // SAFETY: the caller keeps the contract.
                unsafe { engine::$call($($argument),*) }
            }
            if GATE.is_due($size) {
                // SAFETY: the caller keeps the contract.
                return unsafe { after_work($($argument),*) };
            }
            // SAFETY: the caller keeps the contract.
            unsafe { engine::$call($($argument),*) }
        }
    )*};
}

entries! {
    "An object." alloc of size = mi_malloc(size: usize);
    "An object of zeros." alloc_zeroed of size = mi_zalloc(size: usize);
    "An object at a multiple of a power of two." alloc_aligned of size =
        mi_malloc_aligned(size: usize, align: usize);
    "An object of another size, with the contents of the one at `at`." realloc of size =
        mi_realloc(at: *mut c_void, size: usize);
}

/// Does due work, including the heap's start. Returns true if the heap can be used.
pub(crate) fn catch_up() -> bool {
    !GATE.is_due(0) || work(0)
}

/// Returns false while the heap starts, when mimalloc must not be entered.
fn work(size: usize) -> bool {
    if early::is_starting() {
        return false;
    }
    let _kept = errno::keep();
    if !BEGUN.swap(true, Ordering::Relaxed) {
        GATE.close();
        early::during(start);
        GATE.open();
    }
    heap::at_entry(&GATE, size);
    true
}

fn start() {
    // SAFETY: the handler is `failed`, in this library, which is never unloaded.
    unsafe {
        engine::mi_register_error(Some(failed), ptr::null_mut());
        engine::mi_process_init();
    }
    let options = options::from_environment();
    heap::start(&GATE, &options.heap);
    report::set(options.report);
}

/// The library's constructor.
///
/// The loader runs `AT_LOAD` before the constructors of the program and most libraries, and
/// `AT_EXIT` after their destructors. `AT_LOAD` must precede mimalloc's constructor, which would
/// start mimalloc without this module.
#[used]
#[link_section = ".init_array.00100"]
static AT_LOAD: extern "C" fn() = at_load;
#[used]
#[link_section = ".fini_array"]
static AT_EXIT: extern "C" fn() = at_exit;

extern "C" fn at_load() {
    catch_up();
    report::install();
}

extern "C" fn at_exit() {
    report::at_exit();
}

extern "C" fn failed(number: c_int, _: *mut c_void) {
    if [errno::ENOMEM, errno::EOVERFLOW].contains(&number) {
        errno::set(errno::ENOMEM);
    }
}

#[cold]
#[inline(never)]
pub(crate) extern "C" fn refused() -> *mut c_void {
    errno::set(errno::ENOMEM);
    ptr::null_mut()
}

#[cold]
#[inline(never)]
pub(crate) extern "C" fn misaligned() -> *mut c_void {
    errno::set(errno::EINVAL);
    ptr::null_mut()
}
