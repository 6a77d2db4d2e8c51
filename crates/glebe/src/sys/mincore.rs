//! Which pages of a mapping are in memory, whoever brought them there; mincore(2).
//!
//! Of shared memory: a page that was swapped out counts as not there.
//!
//! # Safety
//! The kernel checks the addresses and fills a vector of this file's.
#![allow(unsafe_code)]

use std::ptr;

use crate::error::OsError;
use crate::extent::{push, Extent};
use crate::sys::call::call;
use crate::sys::mmap::span;
use crate::sys::page_size;
use crate::units::Bytes;

/// Pages that are asked for at once.
const AT_ONCE: usize = 1 << 16;

/// The runs of pages of a range that are there, counted from `addr`; whole pages.
///
/// # Errors
/// What mincore(2) refuses: ENOMEM where nothing is mapped.
pub(crate) fn there(addr: usize, len: Bytes) -> Result<Vec<Extent>, OsError> {
    let page = page_size().bytes().as_usize();
    let pages = len.as_usize() / page;
    let (mut found, mut seen) = (Vec::new(), vec![0_u8; pages.min(AT_ONCE)]);
    let mut from = 0;
    while from < pages {
        let count = (pages - from).min(AT_ONCE);
        let at = addr + from * page;
        let addr = ptr::with_exposed_provenance_mut(at);
        // SAFETY: the vector has a byte for each of the pages.
        let ask = || unsafe { libc::mincore(addr, count * page, seen.as_mut_ptr()) };
        call("mincore", || span(at, len), ask)?;
        for (nth, _) in seen[..count].iter().enumerate().filter(|(_, seen)| *seen & 1 != 0) {
            Extent::new((from + nth) as u64, 1).into_iter().for_each(|one| push(&mut found, one));
        }
        from += count;
    }
    Ok(found)
}
