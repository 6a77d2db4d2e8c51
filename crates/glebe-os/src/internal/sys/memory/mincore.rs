//! [`look`] shows which pages of a mapping are in memory, whichever process brought them there.
//!
//! A swapped-out page counts as absent. Source: mincore(2).
#![allow(unsafe_code)]

use std::io;
use std::ptr;

use crate::error::OsError;
use crate::extent::Extent;
use crate::internal::extents::push;
use crate::internal::sys::call::answer;
use crate::internal::sys::memory::mmap::span;
use crate::internal::sys::page_size;
use crate::units::Bytes;

const AT_ONCE: usize = 1 << 16;

/// Returns the runs of present pages, counted in pages from `addr`.
pub fn there(addr: usize, len: Bytes) -> Result<Vec<Extent>, OsError> {
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

/// Sets the lowest bit of each byte whose page is present. Allocates nothing. Fails with ENOMEM if
/// a page is not mapped.
pub fn look(addr: usize, seen: &mut [u8]) -> io::Result<()> {
    let len = seen.len() * page_size().bytes().as_usize();
    let addr = ptr::with_exposed_provenance_mut(addr);
    // SAFETY: `seen` has a byte per page.
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
        // SAFETY: the byte is in this test's new mapping.
        let addr = unsafe {
            let addr = libc::mmap(ptr::null_mut(), 3 * page, protection, flags, -1, 0);
            addr.cast::<u8>().add(page).write_volatile(1);
            addr.expose_provenance()
        };
        let mut seen = [0; 3];
        look(addr, &mut seen).unwrap();
        assert_eq!(seen.map(|seen| seen & 1), [0, 1, 0]);
        assert_eq!(there(addr, Bytes::new(3 * page as u64)).unwrap(), [Extent::new(1, 1).unwrap()]);
        // SAFETY: the mapping is this test's.
        unsafe { libc::munmap(ptr::with_exposed_provenance_mut(addr), 3 * page) };
        assert_eq!(look(addr, &mut seen).unwrap_err().raw_os_error(), Some(libc::ENOMEM));
    }
}
