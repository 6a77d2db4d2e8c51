//! [`copy`] and [`zero`] access bytes that another thread may write at the same time. Assembly or
//! volatile accesses keep the compiler from ruling such writes out.

#![allow(unsafe_code)]

#[cfg(all(target_arch = "x86_64", not(miri)))]
use std::arch::asm;

#[cfg(all(target_arch = "x86_64", not(miri)))]
const VECTOR: usize = 16;

/// Size in bytes below which a string move is slower than vectors.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const STRING_MIN: usize = 512;

/// Distances in bytes from source to target, modulo a 4 KiB page, at which a string move takes four
/// times as long on Zen 3. Source: bug 30994 of the GNU C library.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const BEHIND: std::ops::Range<usize> = 1..32;
#[cfg(all(target_arch = "x86_64", not(miri)))]
const LOW: usize = 0xfff;

/// # Safety
/// `count` bytes are mapped at `to` and `from`, and do not overlap.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
pub unsafe fn copy(to: *mut u8, from: *const u8, count: usize) {
    let is_slow = BEHIND.contains(&(to.addr().wrapping_sub(from.addr()) & LOW));
    if count >= VECTOR && (count < STRING_MIN || is_slow) {
        // SAFETY: the caller guarantees the ranges.
        return unsafe { copy_vectors(to, from, count) };
    }
    // SAFETY: the caller guarantees the ranges; the direction flag is clear on entry to an asm
    // block.
    unsafe {
        asm!("rep movsb", inout("rcx") count => _, inout("rdi") to => _,
            inout("rsi") from => _, options(nostack, preserves_flags));
    }
}

/// Copies 16 bytes at a time; the last two copies may overlap.
///
/// # Safety
/// See [`copy`]; `count` is at least [`VECTOR`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
unsafe fn copy_vectors(to: *mut u8, from: *const u8, count: usize) {
    // SAFETY: the caller guarantees the ranges; SSE2 is part of x86-64.
    unsafe {
        asm!(
            "2:",
            "movdqu {bytes}, [{from} + {at}]",
            "movdqu [{to} + {at}], {bytes}",
            "add {at}, 16",
            "cmp {at}, {last}",
            "jb 2b",
            "movdqu {bytes}, [{from} + {last}]",
            "movdqu [{to} + {last}], {bytes}",
            bytes = out(xmm_reg) _,
            from = in(reg) from,
            to = in(reg) to,
            at = inout(reg) 0_usize => _,
            last = in(reg) count - VECTOR,
            options(nostack),
        );
    }
}

/// Fewest bytes for which [`zero`] bypasses the caches. A string store (`rep stosb`) bypasses them
/// only for far larger blocks.
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub const STREAMED_MIN: usize = 1 << 20;

#[cfg(all(target_arch = "x86_64", not(miri)))]
const LINE: usize = 64;

/// # Safety
/// `count` bytes are mapped at `to`.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
pub unsafe fn zero(to: *mut u8, count: usize) {
    if count < STREAMED_MIN {
        // SAFETY: the caller guarantees the range.
        return unsafe { zero_string(to, count) };
    }
    let head = to.addr().wrapping_neg() % LINE;
    let lines = (count - head) / LINE;
    let tail = head + lines * LINE;
    // SAFETY: the calls zero three parts of the caller's range, and the second begins at a cache
    // line.
    unsafe {
        zero_string(to, head);
        zero_lines(to.add(head), lines);
        zero_string(to.add(tail), count - tail);
    }
}

/// # Safety
/// See [`zero`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
unsafe fn zero_string(to: *mut u8, count: usize) {
    // SAFETY: the caller guarantees the range; the direction flag is clear on entry to an asm
    // block.
    unsafe {
        asm!("rep stosb", inout("rcx") count => _, inout("rdi") to => _, in("al") 0_u8,
            options(nostack, preserves_flags));
    }
}

/// Zeroes cache lines by streaming stores. A fence orders these stores before later ones.
///
/// # Safety
/// `lines` cache lines, at least one, are mapped at `to`, which is aligned to a line.
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn zero_lines(to: *mut u8, lines: usize) {
    // SAFETY: the caller guarantees the range; SSE2 is part of x86-64.
    unsafe {
        asm!(
            "pxor {zero}, {zero}",
            "2:",
            "movntdq [{to}], {zero}",
            "movntdq [{to} + 16], {zero}",
            "movntdq [{to} + 32], {zero}",
            "movntdq [{to} + 48], {zero}",
            "add {to}, 64",
            "dec {lines}",
            "jnz 2b",
            "sfence",
            zero = out(xmm_reg) _,
            to = inout(reg) to => _,
            lines = inout(reg) lines => _,
            options(nostack),
        );
    }
}

#[cfg(any(not(target_arch = "x86_64"), miri, test))]
const WORD: usize = size_of::<usize>();

/// # Safety
/// `count` bytes are mapped at `to` and `from`, and do not overlap.
#[cfg(any(not(target_arch = "x86_64"), miri))]
pub unsafe fn copy(to: *mut u8, from: *const u8, count: usize) {
    // SAFETY: the caller guarantees the ranges.
    unsafe { portable_copy(to, from, count) }
}

/// # Safety
/// `count` bytes are mapped at `to`.
#[cfg(any(not(target_arch = "x86_64"), miri))]
pub unsafe fn zero(to: *mut u8, count: usize) {
    // SAFETY: the caller guarantees the range.
    unsafe { portable_zero(to, count) }
}

/// # Safety
/// See [`copy`].
#[cfg(any(not(target_arch = "x86_64"), miri, test))]
pub unsafe fn portable_copy(to: *mut u8, from: *const u8, count: usize) {
    let alike = to.addr() % WORD == from.addr() % WORD;
    let mut at = 0;
    while at < count {
        let word = alike && (to.addr() + at) % WORD == 0 && count - at >= WORD;
        // SAFETY: the byte or aligned word at `at` ends within `count`.
        unsafe {
            if word {
                let value = from.add(at).cast::<usize>().read_volatile();
                to.add(at).cast::<usize>().write_volatile(value);
            } else {
                to.add(at).write_volatile(from.add(at).read_volatile());
            }
        }
        at += if word { WORD } else { 1 };
    }
}

/// # Safety
/// See [`zero`].
#[cfg(any(not(target_arch = "x86_64"), miri, test))]
pub unsafe fn portable_zero(to: *mut u8, count: usize) {
    let mut at = 0;
    while at < count {
        let word = (to.addr() + at) % WORD == 0 && count - at >= WORD;
        // SAFETY: the byte or aligned word at `at` ends within `count`.
        unsafe {
            if word {
                to.add(at).cast::<usize>().write_volatile(0);
            } else {
                to.add(at).write_volatile(0);
            }
        }
        at += if word { WORD } else { 1 };
    }
}
