//! `glebe_stats`: the statistics of a reserve, member by member as the library's table has them,
//! as text, and for other processes.
//!
//! The order of the list is that of the structure, so it grows at its end only; a test compares
//! it with the library's table and with the header.
//!
//! # Safety
//! Pointers are what the header says of them, and go through [`crate::boundary`].
#![allow(unsafe_code, non_camel_case_types)]

use std::ffi::{c_char, c_int, CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::abi::*;
use crate::boundary::{call, Fill, Sized64, Text};
use crate::failure::Failure;
use crate::process::Process;

macro_rules! stats {
    ($($name:ident)*) => {
        #[repr(C)]
        #[derive(Clone, Copy, Default)]
        pub struct glebe_stats {
            pub size: u64,
            pub version: u64,
            $(pub $name: u64,)*
        }

        impl glebe_stats {
            fn set(&mut self, name: &str, value: u64) {
                match name {
                    $(stringify!($name) => self.$name = value,)*
                    _ => {}
                }
            }
        }
    };
}

stats! {
    stored
    loaded
    missed
    evicted
    recalled
    replaced
    invalidated_pages
    invalidated_objects
    invalidated_pools
    invalidate_failed
    rejected
    rejected_recalled
    zeroed_ahead
    allocs
    alloc_failures
    barriers
    waited_for_writer
    total_pages
    live_pages
    held_pages
    free_pages
    alloc_count
    alloc_sum_ns
    alloc_p50_ns
    alloc_p90_ns
    alloc_p99_ns
    alloc_p999_ns
    alloc_max_ns
    packed_stored
    packed_loaded
    packed_dropped
    packed_lost
    packed_pages
}

// SAFETY: it is `repr(C)` and consists of words, the first of which is `size`.
unsafe impl Sized64 for glebe_stats {
    const NAME: &'static str = "glebe_stats";
    const LEAST: u64 = 16;
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_reserve_stats(
    reserve: glebe_reserve,
    stats: *mut glebe_stats,
) -> c_int {
    call(|| {
        // SAFETY: the caller's duty.
        let out = unsafe { Fill::new(stats)? };
        let lines = Process::with_reserve(reserve, |_, reserve| Ok(reserve.stats().lines()))?;
        let mut all = glebe_stats { version: GLEBE_STATS_VERSION, ..Default::default() };
        for line in lines {
            all.set(&line.name, line.value);
        }
        Ok(out.set(&all))
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_reserve_format_stats(
    reserve: glebe_reserve,
    format: u64,
    text: *mut c_char,
    text_len_bytes: usize,
    needed_bytes: *mut usize,
) -> c_int {
    call(|| {
        // SAFETY: the caller's duty.
        let text = unsafe { Text::new(text, text_len_bytes, needed_bytes)? };
        let of = match format {
            GLEBE_FORMAT_TEXT => ToString::to_string,
            GLEBE_FORMAT_JSON => glebe::reserve::Stats::to_json,
            GLEBE_FORMAT_OPENMETRICS => glebe::reserve::Stats::to_openmetrics,
            value => return Err(Failure::BadArgument { name: "format", value }),
        };
        text.set(Process::with_reserve(reserve, |_, reserve| Ok(of(&reserve.stats())))?)
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_reserve_serve_stats(
    reserve: glebe_reserve,
    directory: *const c_char,
    socket: *mut c_char,
    socket_len_bytes: usize,
    needed_bytes: *mut usize,
) -> c_int {
    call(|| {
        // SAFETY: the caller's duty.
        let text = unsafe { Text::new(socket, socket_len_bytes, needed_bytes)? };
        let is_unwanted = socket.is_null();
        let directory = match directory.is_null() {
            true => None,
            // SAFETY: the caller's duty: it ends with a zero byte.
            false => Some(unsafe { CStr::from_ptr(directory) }),
        };
        let socket = Process::with_reserve(reserve, |_, reserve| {
            let socket = match directory.map(|name| OsStr::from_bytes(name.to_bytes())) {
                None => reserve.serve_stats()?,
                Some(directory) => reserve.serve_stats_in(Path::new(directory))?,
            };
            Ok(socket.to_owned())
        })?;
        match text.set(socket.as_os_str().as_bytes()) {
            // The path is not wanted.
            Err(Failure::ShortText { .. }) if is_unwanted => Ok(GLEBE_OK),
            other => other,
        }
    })
}
