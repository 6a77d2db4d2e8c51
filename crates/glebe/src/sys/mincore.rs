//! Which pages of a mapping are in memory, whoever brought them there; mincore(2).
//!
//! A page that was swapped out counts as not there.
//!
//! # Safety
//! The kernel checks the addresses and fills a vector of this file's.
#![allow(unsafe_code)]

use std::io;
use std::ptr;

use crate::error::OsError;
use crate::extent::{push, Extent};
use crate::sys::call::answer;
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
        let refused =
            |source| OsError::new("mincore", span(at, Bytes::new((count * page) as u64)), source);
        look(at, &mut seen[..count]).map_err(refused)?;
        for (nth, _) in seen[..count].iter().enumerate().filter(|(_, seen)| *seen & 1 != 0) {
            Extent::new((from + nth) as u64, 1).into_iter().for_each(|one| push(&mut found, one));
        }
        from += count;
    }
    Ok(found)
}

/// Asks of as many pages from `addr` on as `seen` has bytes: the lowest bit of each byte says
/// whether the page is there. Allocates nothing, may change `errno`.
///
/// # Errors
/// What mincore(2) refuses: ENOMEM where nothing is mapped.
pub fn look(addr: usize, seen: &mut [u8]) -> io::Result<()> {
    let len = seen.len() * page_size().bytes().as_usize();
    let addr = ptr::with_exposed_provenance_mut(addr);
    // SAFETY: there is a byte for each of the pages.
    answer("mincore", || unsafe { libc::mincore(addr, len, seen.as_mut_ptr()) }).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_pages_that_were_touched_are_there() {
        let page = page_size().bytes().as_usize();
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, which is this test's, and a byte within it.
        let addr = unsafe {
            let addr = libc::mmap(ptr::null_mut(), 3 * page, protection, flags, -1, 0);
            addr.cast::<u8>().add(page).write_volatile(1);
            addr.expose_provenance()
        };
        let mut seen = [0; 3];
        look(addr, &mut seen).unwrap();
        assert_eq!(seen.map(|seen| seen & 1), [0, 1, 0]);
        assert_eq!(there(addr, Bytes::new(3 * page as u64)).unwrap(), [Extent::new(1, 1).unwrap()]);
        // SAFETY: as above.
        unsafe { libc::munmap(ptr::with_exposed_provenance_mut(addr), 3 * page) };
        assert_eq!(look(addr, &mut seen).unwrap_err().raw_os_error(), Some(libc::ENOMEM));
    }
}
