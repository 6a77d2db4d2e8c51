//! `glebe_zpool_stats`: the totals of a pool, member by member as the library's table has them;
//! and all its statistics as text.
//!
//! The order of the list is that of the structure, so it grows at its end only; a test compares
//! it with the library's table and with the header.
//!
//! # Safety
//! Pointers are what the header says of them, and go through [`crate::boundary`].
#![allow(unsafe_code, non_camel_case_types)]

use std::ffi::{c_char, c_int};

use super::with;
use crate::abi::*;
use crate::boundary::{call, Fill, Sized64, Text};
use crate::failure::Failure;

macro_rules! stats {
    ($($name:ident)*) => {
        #[repr(C)]
        #[derive(Clone, Copy, Default)]
        pub struct glebe_zpool_stats {
            pub size: u64,
            pub version: u64,
            $(pub $name: u64,)*
        }

        impl glebe_zpool_stats {
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
    inserted
    removed
    evicted
    moved
    compacted_pages
    objects
    stored_bytes
    slot_bytes
    limbo_slots
    zspages
    used_pages
    kept_pages
    freeable_pages
    metadata_bytes
    held_bytes
    held_bytes_max
    limit_bytes
    same_objects
    sealed_pages
    inserted_bytes
    inserted_stored_bytes
}

impl glebe_zpool_stats {
    pub(super) fn of(now: &glebe::zpool::Stats) -> Self {
        let version = GLEBE_ZPOOL_STATS_VERSION;
        let mut all = Self { version, ..Default::default() };
        for line in now.lines() {
            all.set(&line.name, line.value);
        }
        all
    }
}

// SAFETY: it is `repr(C)` and consists of words, the first of which is `size`.
unsafe impl Sized64 for glebe_zpool_stats {
    const NAME: &'static str = "glebe_zpool_stats";
    const LEAST: u64 = 16;
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_zpool_get_stats(
    pool: glebe_zpool,
    stats: *mut glebe_zpool_stats,
) -> c_int {
    call(|| {
        // SAFETY: the caller's duty.
        let out = unsafe { Fill::new(stats)? };
        Ok(out.set(&glebe_zpool_stats::of(&with(pool, |pool| Ok(pool.stats()))?)))
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_zpool_format_stats(
    pool: glebe_zpool,
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
            GLEBE_FORMAT_JSON => glebe::zpool::Stats::to_json,
            GLEBE_FORMAT_OPENMETRICS => glebe::zpool::Stats::to_openmetrics,
            GLEBE_FORMAT_CLASSES => glebe::zpool::Stats::class_table,
            value => return Err(Failure::BadArgument { name: "format", value }),
        };
        text.set(of(&with(pool, |pool| Ok(pool.stats()))?))
    })
}
