//! dlopen(3) without `RTLD_DEEPBIND`.
//!
//! With the flag a library finds the C library's malloc first, so library and program free each
//! other's objects in the wrong allocator. `dlopen` counts the flag, clears it, and jumps to the C
//! library's function, which finds the caller's search paths and namespace by the return address.
//! Without naked functions `dlopen` calls the C library's function, which then takes this library
//! for the caller. Source: dlopen(3); System V and AArch64 procedure call standards.
//!
//! # Safety
//! Exported for C: see the manual page.
#![allow(unsafe_code)]

use core::ffi::{c_char, c_int, c_void};
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use glebe::internal::sys::processes::symbols;
use pages::stats;

/// The value on Linux, except on MIPS.
const RTLD_DEEPBIND: c_int = 8;

static NEXT: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Counts a call with the flag. Returns the next library's `dlopen`, or null.
extern "C" fn begin(flags: c_int) -> *mut c_void {
    if flags & RTLD_DEEPBIND != 0 {
        stats::count_deepbind();
    }
    let next = NEXT.load(Ordering::Relaxed);
    if !next.is_null() {
        return next;
    }
    let next = symbols::behind(c"dlopen", &[]);
    NEXT.store(next, Ordering::Relaxed);
    next
}

/// dlopen(3), without the flag.
///
/// # Safety
/// See dlopen(3).
#[cfg(all(has_naked, target_arch = "x86_64"))]
#[no_mangle]
#[unsafe(naked)]
pub unsafe extern "C" fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void {
    core::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "mov edi, esi",
        "call {begin}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "and esi, {others}",
        "test rax, rax",
        "jz 2f",
        "jmp rax",
        "2:",
        "ret",
        begin = sym begin,
        others = const !RTLD_DEEPBIND,
    )
}

/// dlopen(3), without the flag.
///
/// # Safety
/// See dlopen(3).
#[cfg(all(has_naked, target_arch = "aarch64"))]
#[no_mangle]
#[unsafe(naked)]
pub unsafe extern "C" fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void {
    core::arch::naked_asm!(
        "stp x29, x30, [sp, #-32]!",
        "stp x0, x1, [sp, #16]",
        "mov w0, w1",
        "bl {begin}",
        "mov x16, x0",
        "ldp x0, x1, [sp, #16]",
        "ldp x29, x30, [sp], #32",
        "and w1, w1, {others}",
        "cbz x16, 2f",
        "br x16",
        "2:",
        "mov x0, xzr",
        "ret",
        begin = sym begin,
        others = const !RTLD_DEEPBIND,
    )
}

/// dlopen(3), without the flag.
///
/// # Safety
/// See dlopen(3).
#[cfg(not(all(has_naked, any(target_arch = "x86_64", target_arch = "aarch64"))))]
#[no_mangle]
pub unsafe extern "C" fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void {
    type Dlopen = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;
    let next = begin(flags);
    if next.is_null() {
        return next;
    }
    // SAFETY: `next` is the `dlopen` of the next library, and the caller keeps its contract.
    unsafe { core::mem::transmute::<*mut c_void, Dlopen>(next)(path, flags & !RTLD_DEEPBIND) }
}
