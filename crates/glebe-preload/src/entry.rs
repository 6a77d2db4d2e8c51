//! The way into the heap: a test of one word, and behind it what is due seldom.
//!
//! Owns the state of the start: the first allocating call of the process starts the heap, whether
//! it comes from the loader, from a constructor or from the program. A call from within the start
//! is served apart ([`early`]). Cost: one load and one branch. No lock: the first call of a process
//! comes before it has threads.
//!
//! # Safety
//! mimalloc calls back with numbers; only errno is set.
#![allow(unsafe_code)]

use core::ffi::{c_int, c_void};
use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering};

use glebe::sys::errno;
use pages::gate::Gate;
use pages::{engine, heap, options};

use crate::{early, report};

/// What every call reads first.
pub(crate) static GATE: Gate = Gate::new();
/// Whether the start has begun.
static BEGUN: AtomicBool = AtomicBool::new(false);

/// Defines calls of mimalloc's that do first what is due. The second way is a function of its own:
/// so the first needs no register but those of the arguments, and ends with a jump.
macro_rules! entries {
    ($(
        $what:literal $name:ident of $size:ident = $call:ident($($argument:ident: $type:ty),*);
    )*) => {$(
        #[doc = $what]
        ///
        /// # Safety
        /// That of malloc(3).
        #[inline(always)]
        pub(crate) unsafe fn $name($($argument: $type),*) -> *mut c_void {
            #[cold]
            #[inline(never)]
            unsafe extern "C" fn after_work($($argument: $type),*) -> *mut c_void {
                if !work($size) {
                    return early::$name($($argument),*);
                }
                // SAFETY: the caller's.
                unsafe { engine::$call($($argument),*) }
            }
            if GATE.is_due($size) {
                // SAFETY: the caller's.
                return unsafe { after_work($($argument),*) };
            }
            // SAFETY: the caller's.
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

/// Does what is due, for calls that are seldom; whether the heap can be used.
pub(crate) fn catch_up() -> bool {
    !GATE.is_due(0) || work(0)
}

/// Does what is due; whether mimalloc may be entered.
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
    // SAFETY: the handler is this file's, and lives for ever.
    unsafe {
        engine::mi_register_error(Some(failed), ptr::null_mut());
        engine::mi_process_init();
    }
    let options = options::from_environment();
    heap::start(&GATE, &options.heap);
    report::set(options.report);
}

/// The library's own constructor and destructor.
///
/// The loader runs the first before those of the program and of most libraries, and the second
/// after theirs. Objects are made and freed before and after. It comes before mimalloc's own, from
/// which mimalloc's start would not be known here.
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

/// Called by mimalloc where an allocation fails, of whichever kind.
extern "C" fn failed(number: c_int, _: *mut c_void) {
    if [errno::ENOMEM, errno::EOVERFLOW].contains(&number) {
        errno::set(errno::ENOMEM);
    }
}

/// Null with errno set, for a size that cannot be had.
#[cold]
#[inline(never)]
pub(crate) extern "C" fn refused() -> *mut c_void {
    errno::set(errno::ENOMEM);
    ptr::null_mut()
}

/// Null with errno set, for an alignment that is none.
#[cold]
#[inline(never)]
pub(crate) extern "C" fn misaligned() -> *mut c_void {
    errno::set(errno::EINVAL);
    ptr::null_mut()
}
