//! The calls of `glebe_malloc.h`.
//!
//! # Safety
//! Exported for C: callers pass the arguments that the header asks for.
#![allow(unsafe_code, non_camel_case_types)]

use core::ffi::{c_char, c_int, c_long};
use core::{fmt, mem, ptr, slice};

use glebe::internal::sys::errno;
use pages::stats::{Format, Stats, ROWS};

use crate::info;

const HEAD: usize = mem::offset_of!(glebe_malloc_stats, rows);
/// Grows when a number of the structure changes its meaning. New numbers are added at the end.
const VERSION: u64 = 1;

/// `struct glebe_malloc_stats`: a word per number.
#[repr(C)]
#[derive(Debug)]
pub struct glebe_malloc_stats {
    size: u64,
    version: u64,
    rows: [u64; ROWS],
}

/// Fills `*to` up to its `size`. Returns 0, or EINVAL if `to` is null or `size` too small.
///
/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn glebe_malloc_get_stats(to: *mut glebe_malloc_stats) -> c_int {
    // SAFETY: `to` is null, or the caller has set the structure's first member.
    let Some(size) = (unsafe { to.cast::<u64>().as_ref() }) else { return errno::EINVAL };
    let size = (*size as usize).min(size_of::<glebe_malloc_stats>());
    if size < HEAD {
        return errno::EINVAL;
    }
    let rows = Stats::now().rows().map(|row| row.value);
    let all = glebe_malloc_stats { size: size as u64, version: VERSION, rows };
    // SAFETY: the caller's structure has at least `size` bytes.
    unsafe { ptr::copy_nonoverlapping((&raw const all).cast::<u8>(), to.cast(), size) };
    0
}

/// Writes the statistics as text, like snprintf(3).
///
/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn glebe_malloc_format_stats(
    to: *mut c_char,
    len: usize,
    format: c_int,
) -> c_long {
    let format = match format {
        0 => Format::Text,
        1 => Format::Json,
        2 => Format::OpenMetrics,
        _ => {
            errno::set(errno::EINVAL);
            return -1;
        }
    };
    let room = match to.is_null() {
        true => &mut [],
        // SAFETY: the caller gives a buffer of `len` bytes.
        false => unsafe { slice::from_raw_parts_mut(to.cast::<u8>(), len) },
    };
    let mut text = Cut { room, len: 0 };
    let _ = Stats::now().write(format, &mut text);
    text.end();
    text.len as c_long
}

/// Gives free memory back until at most `keep` free bytes are left. Returns the bytes given back.
#[no_mangle]
pub extern "C" fn glebe_malloc_trim(keep: usize) -> usize {
    info::trim(keep)
}

struct Cut<'a> {
    room: &'a mut [u8],
    len: usize,
}

impl Cut<'_> {
    fn end(&mut self) {
        if let Some(last) = self.room.len().checked_sub(1) {
            self.room[self.len.min(last)] = 0;
        }
    }
}

impl fmt::Write for Cut<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if let Some(room) = self.room.get_mut(self.len..) {
            let len = room.len().min(text.len());
            room[..len].copy_from_slice(&text.as_bytes()[..len]);
        }
        self.len += text.len();
        Ok(())
    }
}
