//! `glebe_volatile_stats`: the statistics of a region, member by member as the library's table has
//! them.
//!
//! The order of the list is that of the structure, so it grows at its end only; a test compares
//! it with the library's table and with the header.
//!
//! # Safety
//! Pointers are what the header says of them, and go through [`crate::boundary`].
#![allow(unsafe_code, non_camel_case_types)]

use std::ffi::c_int;

use super::number_of;
use super::regions::with;
use crate::abi::*;
use crate::boundary::{call, Fill, Sized64};

macro_rules! stats {
    ($($name:ident)*) => {
        #[repr(C)]
        #[derive(Clone, Copy, Default)]
        pub struct glebe_volatile_stats {
            pub size: u64,
            pub version: u64,
            pub engine: u64,
            $(pub $name: u64,)*
        }

        impl glebe_volatile_stats {
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
    marks
    unmarks
    marked_ever
    purged
    rescued
    dropped_by_cap
    dropped_now
    overwritten
    reads_lost
    total_pages
    marked_pages
    resident_pages
    lazy_free_pages
    unreclaimable_pages
}

// SAFETY: it is `repr(C)` and consists of words, the first of which is `size`.
unsafe impl Sized64 for glebe_volatile_stats {
    const NAME: &'static str = "glebe_volatile_stats";
    const LEAST: u64 = 16;
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_volatile_region_stats(
    region: glebe_volatile,
    stats: *mut glebe_volatile_stats,
) -> c_int {
    call(|| {
        // SAFETY: the caller's duty.
        let out = unsafe { Fill::new(stats)? };
        let now = with(region, |of| Ok(of.region.stats()))?;
        let engine = number_of(now.engine);
        let version = GLEBE_VOLATILE_STATS_VERSION;
        let mut all = glebe_volatile_stats { version, engine, ..Default::default() };
        for line in now.lines() {
            all.set(&line.name, line.value);
        }
        Ok(out.set(&all))
    })
}
