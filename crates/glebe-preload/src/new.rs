//! Exports C++'s operators `new` by their mangled names.
//!
//! If memory is short, an operator calls its namesake in the next library, usually the C++ library.
//! The namesake tries the program's new-handler, and then throws `std::bad_alloc`, or returns null
//! if `nothrow`. If the program replaces `_Znwm` or `_ZnwmSt11align_val_t`, array and `nothrow`
//! operators use the replacement, as the standard says. Source: C++23, new.delete; Itanium C++ ABI,
//! mangling.
//!
//! # Safety
//! C++ calls these functions. The loader finds a function by an operator's mangled name, which
//! includes the types of the parameters, so the transmuted pointer has the right type.
#![allow(unsafe_code, non_snake_case)]

use core::ffi::{c_void, CStr};
use core::mem::transmute;
use core::ptr;
use core::sync::atomic::{AtomicU8, Ordering};

use glebe::internal::sys::files::plain_file::{self, ERRORS};
use glebe::internal::sys::processes::symbols;

use crate::entry;

type New = unsafe extern "C-unwind" fn(usize) -> *mut c_void;
type NewAligned = unsafe extern "C-unwind" fn(usize, usize) -> *mut c_void;
/// `const std::nothrow_t &`.
type Tag = *const c_void;

/// C++ libraries to search by name, because a library that only a plugin uses is not in the
/// loader's global search order.
const LIBRARIES: [&CStr; 3] = [c"libstdc++.so.6", c"libc++abi.so.1", c"libc++.so.1"];

/// The operators in use: this library's, or the program's.
mod current {
    use core::ffi::c_void;

    extern "C-unwind" {
        #[link_name = "_Znwm"]
        pub(super) fn new(size: usize) -> *mut c_void;
        #[link_name = "_ZnwmSt11align_val_t"]
        pub(super) fn new_aligned(size: usize, align: usize) -> *mut c_void;
    }
}

/// `operator new(std::size_t)`.
#[no_mangle]
#[inline(never)]
pub extern "C-unwind" fn _Znwm(size: usize) -> *mut c_void {
    match simple(size) {
        at if at.is_null() => fail(c"_Znwm", size),
        at => at,
    }
}

/// `operator new[](std::size_t)`.
#[no_mangle]
pub extern "C-unwind" fn _Znam(size: usize) -> *mut c_void {
    // SAFETY: any size is valid.
    unsafe { current::new(size) }
}

/// `operator new(std::size_t, const std::nothrow_t &)`.
#[no_mangle]
pub extern "C-unwind" fn _ZnwmRKSt9nothrow_t(size: usize, tag: Tag) -> *mut c_void {
    simple_or_null(c"_ZnwmRKSt9nothrow_t", size, tag)
}

/// `operator new[](std::size_t, const std::nothrow_t &)`.
#[no_mangle]
pub extern "C-unwind" fn _ZnamRKSt9nothrow_t(size: usize, tag: Tag) -> *mut c_void {
    simple_or_null(c"_ZnamRKSt9nothrow_t", size, tag)
}

/// `operator new(std::size_t, std::align_val_t)`.
#[no_mangle]
#[inline(never)]
pub extern "C-unwind" fn _ZnwmSt11align_val_t(size: usize, align: usize) -> *mut c_void {
    match aligned(size, align) {
        at if at.is_null() => fail_aligned(c"_ZnwmSt11align_val_t", size, align),
        at => at,
    }
}

/// `operator new[](std::size_t, std::align_val_t)`.
#[no_mangle]
pub extern "C-unwind" fn _ZnamSt11align_val_t(size: usize, align: usize) -> *mut c_void {
    // SAFETY: any size and alignment is valid.
    unsafe { current::new_aligned(size, align) }
}

/// `operator new(std::size_t, std::align_val_t, const std::nothrow_t &)`.
#[no_mangle]
pub extern "C-unwind" fn _ZnwmSt11align_val_tRKSt9nothrow_t(
    size: usize,
    align: usize,
    tag: Tag,
) -> *mut c_void {
    aligned_or_null(c"_ZnwmSt11align_val_tRKSt9nothrow_t", size, align, tag)
}

/// `operator new[](std::size_t, std::align_val_t, const std::nothrow_t &)`.
#[no_mangle]
pub extern "C-unwind" fn _ZnamSt11align_val_tRKSt9nothrow_t(
    size: usize,
    align: usize,
    tag: Tag,
) -> *mut c_void {
    aligned_or_null(c"_ZnamSt11align_val_tRKSt9nothrow_t", size, align, tag)
}

#[inline(always)]
fn simple(size: usize) -> *mut c_void {
    // SAFETY: any size is valid.
    unsafe { entry::alloc(size) }
}

#[inline(always)]
fn aligned(size: usize, align: usize) -> *mut c_void {
    // SAFETY: any size is valid; mimalloc refuses bad alignments.
    unsafe { entry::alloc_aligned(size, align) }
}

/// Calls the next library's `name` if the program has its own operator or memory is short.
#[inline(always)]
fn simple_or_null(name: &CStr, size: usize, tag: Tag) -> *mut c_void {
    let at = if SIMPLE.is_ours() { simple(size) } else { ptr::null_mut() };
    if at.is_null() {
        return nothrow(name, size, tag);
    }
    at
}

#[inline(always)]
fn aligned_or_null(name: &CStr, size: usize, align: usize, tag: Tag) -> *mut c_void {
    let at = if ALIGNED.is_ours() { aligned(size, align) } else { ptr::null_mut() };
    if at.is_null() {
        return nothrow_aligned(name, size, align, tag);
    }
    at
}

/// Remembers whether an operator that other operators call is this library's.
struct Ours {
    /// `IS_OURS`, `IS_NOT`, or 0 until known.
    known: AtomicU8,
    current: fn() -> *const (),
}

static SIMPLE: Ours = Ours { known: AtomicU8::new(0), current: || current::new as *const () };
static ALIGNED: Ours =
    Ours { known: AtomicU8::new(0), current: || current::new_aligned as *const () };

const IS_OURS: u8 = 1;
const IS_NOT: u8 = 2;

impl Ours {
    #[inline(always)]
    fn is_ours(&self) -> bool {
        match self.known.load(Ordering::Relaxed) {
            0 => self.find_out(),
            known => known == IS_OURS,
        }
    }

    #[cold]
    fn find_out(&self) -> bool {
        let ours = symbols::are_together((self.current)(), (&raw const SIMPLE).cast());
        self.known.store(if ours { IS_OURS } else { IS_NOT }, Ordering::Relaxed);
        ours
    }
}

/// Returns the next library's operator. Aborts if there is none, because nothing could then throw.
#[cold]
fn behind(name: &CStr) -> *mut c_void {
    let found = symbols::behind(name, &LIBRARIES);
    if found.is_null() {
        let text = b"glebe-malloc: no memory, and no C++ library whose operator new could say so\n";
        plain_file::write(&ERRORS, text);
        std::process::abort();
    }
    found
}

#[cold]
#[inline(never)]
fn fail(name: &CStr, size: usize) -> *mut c_void {
    // SAFETY: see the head.
    unsafe { transmute::<*mut c_void, New>(behind(name))(size) }
}

#[cold]
#[inline(never)]
fn fail_aligned(name: &CStr, size: usize, align: usize) -> *mut c_void {
    // SAFETY: see the head.
    unsafe { transmute::<*mut c_void, NewAligned>(behind(name))(size, align) }
}

#[cold]
#[inline(never)]
fn nothrow(name: &CStr, size: usize, tag: Tag) -> *mut c_void {
    type Nothrow = unsafe extern "C-unwind" fn(usize, Tag) -> *mut c_void;
    // SAFETY: see the head.
    unsafe { transmute::<*mut c_void, Nothrow>(behind(name))(size, tag) }
}

#[cold]
#[inline(never)]
fn nothrow_aligned(name: &CStr, size: usize, align: usize, tag: Tag) -> *mut c_void {
    type Nothrow = unsafe extern "C-unwind" fn(usize, usize, Tag) -> *mut c_void;
    // SAFETY: see the head.
    unsafe { transmute::<*mut c_void, Nothrow>(behind(name))(size, align, tag) }
}
