//! [`Cached`]: which pages of a file the page cache holds. Unit: pages. Source: mincore(2), which
//! tells that of a mapping of the file, to its owner.
//!
//! # Safety
//! The mapping is only asked about: its bytes, which others may change, are never read.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;

use glebe::error::OsError;
use glebe::sys::page_size;
use glebe::units::Bytes;
use memmap2::MmapRaw;

/// A file's mapping.
#[derive(Debug)]
pub(super) struct Cached(MmapRaw);

impl Cached {
    /// Of the whole file.
    pub(super) fn of(file: &File) -> Result<Self, OsError> {
        let map = MmapRaw::map_raw(file);
        map.map(Self).map_err(|e| OsError::new("mmap", "a nameless file", e))
    }

    /// Pages of a part, which must be inside, that are not in memory.
    pub(super) fn absent(&self, at: Bytes, len: Bytes) -> Result<u64, OsError> {
        let end = at.checked_add(len).expect("no overflow");
        assert!(end.as_usize() <= self.0.len(), "{at} + {len} of {}", self.0.len());
        let mut pages = vec![0_u8; len.pages_up(page_size()).as_usize()];
        let addr = self.0.as_ptr().wrapping_add(at.as_usize()).cast_mut().cast();
        // SAFETY: inside the mapping; the vector has a byte for each page.
        let rc = unsafe { libc::mincore(addr, len.as_usize(), pages.as_mut_ptr()) };
        if rc != 0 {
            return Err(OsError::new("mincore", at.to_string(), io::Error::last_os_error()));
        }
        Ok(pages.iter().filter(|page| **page & 1 == 0).count() as u64)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::pressure::nameless;

    #[test]
    fn what_was_read_is_in_memory_and_what_was_not_is_absent() {
        let len = Bytes::mib(1);
        let file = nameless(&std::env::temp_dir(), len).unwrap();
        let cached = Cached::of(&file).unwrap();
        let pages = len.pages_down(page_size()).get();
        assert_eq!(cached.absent(Bytes::ZERO, len).unwrap(), pages);
        file.read_exact_at(&mut vec![0; len.as_usize()], 0).unwrap();
        assert_eq!(cached.absent(Bytes::ZERO, len).unwrap(), 0);
        assert_eq!(cached.absent(page_size().bytes(), page_size().bytes()).unwrap(), 0);
    }
}
