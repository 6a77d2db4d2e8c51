//! [`Bare`] is memory with direct madvise calls, to compare with regions. [`Cached`] finds a
//! file's pages in the page cache.
//!
//! # Safety
//! A `Bare` owns its memory, or has it from a region whose pointer no other code has. Bytes are
//! accessed as atomics, or by copies checked against the length. The bytes of a `Cached`, which
//! others may change, are never read.
#![allow(unsafe_code)]

use std::any::Any;
use std::io;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicU64, AtomicU8, Ordering};

use glebe::error::OsError;
use glebe::internal::mapping::{Mapping, Visibility};
use glebe::internal::sys::memory::madvise::{self, Advice};
use glebe::page_size;
use glebe::units::Bytes;
use glebe::volatile::Region;
use memmap2::MmapRaw;

pub(super) struct Bare {
    start: usize,
    len: Bytes,
    _owner: Box<dyn Any>,
}

impl Bare {
    /// Maps base pages, or huge pages of size `huge`.
    pub(super) fn new(len: Bytes, huge: Option<Bytes>) -> Result<Self, OsError> {
        let align = huge.unwrap_or(page_size().bytes());
        let mapping = Mapping::anonymous(len + align, Visibility::ORDINARY)?;
        let start = mapping.addr().next_multiple_of(align.as_usize());
        let bare = Self { start, len, _owner: Box::new(mapping) };
        let advice = if huge.is_some() { Advice::HugePage } else { Advice::NoHugePage };
        bare.advise(Bytes::ZERO, len, advice)?;
        Ok(bare)
    }

    /// Takes a region's memory, so that calls cost the kernel as much as the region's own calls.
    pub(super) fn of(region: Region) -> Self {
        let (start, len) = (region.as_ptr().expose_provenance(), region.len());
        Self { start, len, _owner: Box::new(region) }
    }

    /// Advises on a part. Panics if the part exceeds the memory.
    pub(super) fn advise(&self, at: Bytes, len: Bytes, advice: Advice) -> Result<(), OsError> {
        // SAFETY: the part is inside the owned range, and nobody holds a reference to its bytes.
        unsafe { madvise::advise(self.at(at, len), len, advice) }
    }

    pub(super) fn touch(&self, at: Bytes, len: Bytes, step: Bytes) {
        // SAFETY: the part is inside the owned range, and nobody holds a reference to its bytes.
        unsafe { touch(self.at(at, len), len, step) }
    }

    pub(super) fn word(&self, at: Bytes) -> &AtomicU64 {
        let addr = self.at(at, page_size().bytes());
        // SAFETY: the word begins a page of the owned range, which the borrow keeps mapped.
        unsafe { AtomicU64::from_ptr(addr as *mut u64) }
    }

    pub(super) fn write(&mut self, at: Bytes, bytes: &[u8]) {
        let addr = self.at(at, Bytes::new(bytes.len() as u64));
        // SAFETY: the part is in the owned range, which `bytes` cannot overlap. The borrow is
        // exclusive.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), addr as *mut u8, bytes.len()) };
    }

    pub(super) fn read(&mut self, at: Bytes, bytes: &mut [u8]) {
        let addr = self.at(at, Bytes::new(bytes.len() as u64));
        // SAFETY: as in `write`.
        unsafe { ptr::copy_nonoverlapping(addr as *const u8, bytes.as_mut_ptr(), bytes.len()) };
    }

    /// Touches an unmarked part of a region, like [`Bare::touch`].
    pub(super) fn touch_region(region: &Region, range: Range<Bytes>, step: Bytes) {
        assert!(range.end <= region.len(), "{} of {}", range.end, region.len());
        // SAFETY: the range is inside the region, which nobody else has.
        unsafe { touch(region.addr() + range.start.as_usize(), range.end - range.start, step) }
    }

    fn at(&self, at: Bytes, len: Bytes) -> usize {
        let end = at.checked_add(len).expect("no overflow");
        assert!(end <= self.len, "{at} + {len} of {}", self.len);
        self.start + at.as_usize()
    }
}

/// Writes one byte in each `step`.
///
/// # Safety
/// The memory must be mapped and writable, with no reference to it.
unsafe fn touch(start: usize, len: Bytes, step: Bytes) {
    for addr in (start..start + len.as_usize()).step_by(step.as_usize()) {
        // SAFETY: the caller guarantees mapped memory, and the access is atomic.
        unsafe { AtomicU8::from_ptr(addr as *mut u8) }.store(1, Ordering::Relaxed);
    }
}

/// Finds which pages of a mapped file are in memory. Source: mincore(2).
pub(super) struct Cached(pub(super) MmapRaw);

impl Cached {
    /// Counts a part's pages that are not in memory. Panics if the part exceeds the mapping.
    pub(super) fn absent(&self, at: Bytes, len: Bytes) -> io::Result<u64> {
        assert!((at + len).as_usize() <= self.0.len(), "{at} + {len} of {}", self.0.len());
        let mut pages = vec![0_u8; len.pages_up(page_size()).as_usize()];
        let addr = self.0.as_ptr().wrapping_add(at.as_usize()).cast_mut().cast();
        // SAFETY: the part is inside the mapping. The vector has a byte for each page.
        match unsafe { libc::mincore(addr, len.as_usize(), pages.as_mut_ptr()) } {
            0 => Ok(pages.iter().filter(|page| **page & 1 == 0).count() as u64),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::pressure::nameless;

    #[test]
    fn what_is_written_is_read_until_it_is_dropped() {
        let page = page_size().bytes();
        let mut bare = Bare::new(Bytes::mib(1), None).unwrap();
        bare.write(page, &[7; 64]);
        let mut bytes = [0; 64];
        bare.read(page, &mut bytes);
        assert_eq!(bytes, [7; 64]);
        bare.advise(Bytes::ZERO, bare.len, Advice::DontNeed).unwrap();
        assert_eq!(bare.word(page).load(Ordering::Relaxed), 0);
        bare.touch(Bytes::ZERO, bare.len, page);
        assert_eq!(bare.word(page).load(Ordering::Relaxed), 1);
    }

    #[test]
    fn what_was_read_is_in_memory_and_what_was_not_is_absent() {
        let len = Bytes::mib(1);
        let file = nameless(&std::env::temp_dir(), len).unwrap();
        let cached = Cached(MmapRaw::map_raw(&file).unwrap());
        assert_eq!(cached.absent(Bytes::ZERO, len).unwrap(), len.pages_up(page_size()).get());
        file.read_exact_at(&mut vec![0; len.as_usize()], 0).unwrap();
        assert_eq!(cached.absent(Bytes::ZERO, len).unwrap(), 0);
    }
}
