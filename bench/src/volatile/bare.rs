//! [`Bare`]: anonymous memory and the bare calls on it, for peers and for comparison.
//!
//! # Safety
//! The memory is a `Bare`'s own, or that of a region of which nobody else has the pointer. Bytes
//! are reached as atomics or through copies that are checked against the length; no reference to a
//! byte ever leaves.
#![allow(unsafe_code)]

use std::ptr;
use std::sync::atomic::{AtomicU64, AtomicU8, Ordering};

use glebe::error::OsError;
use glebe::mapping::{Mapping, Visibility};
use glebe::sys::madvise::{self, Advice};
use glebe::sys::page_size;
use glebe::units::Bytes;
use glebe::volatile::Region;

/// A private anonymous mapping.
#[derive(Debug)]
pub(super) struct Bare {
    start: usize,
    len: usize,
    /// Whose memory it is.
    _owner: Owner,
}

#[derive(Debug)]
#[allow(dead_code)] // held to be dropped
enum Owner {
    Mapping(Mapping),
    Region(Box<Region>),
}

impl Bare {
    /// Memory of small pages, or of transparent huge ones of `huge`.
    pub(super) fn new(len: Bytes, huge: Option<Bytes>) -> Result<Self, OsError> {
        let align = huge.unwrap_or(page_size().bytes());
        let room = Bytes::new(len.get() + align.get());
        let mapping = Mapping::anonymous(room, Visibility::ORDINARY)?;
        let start = mapping.addr().next_multiple_of(align.as_usize());
        let bare = Self { start, len: len.as_usize(), _owner: Owner::Mapping(mapping) };
        let advice = if huge.is_some() { Advice::HugePage } else { Advice::NoHugePage };
        bare.advise(Bytes::ZERO, len, advice)?;
        Ok(bare)
    }

    /// The memory of a region: to the kernel it is what the region's own calls find.
    pub(super) fn of(region: Region) -> Self {
        let (start, len) = (region.as_ptr().expose_provenance(), region.len().as_usize());
        Self { start, len, _owner: Owner::Region(Box::new(region)) }
    }

    /// Its first address.
    pub(super) fn addr(&self) -> usize {
        self.start
    }

    /// Makes a call on a part, which must be inside.
    pub(super) fn advise(&self, at: Bytes, len: Bytes, advice: Advice) -> Result<(), OsError> {
        // SAFETY: inside the owned range, of whose bytes nobody holds a reference.
        unsafe { madvise::advise(self.at(at, len), len, advice) }
    }

    /// Writes one byte in each `step` of a part.
    pub(super) fn touch(&self, at: Bytes, len: Bytes, step: Bytes) {
        let start = self.at(at, len);
        for addr in (start..start + len.as_usize()).step_by(step.as_usize()) {
            // SAFETY: inside the owned range, and only reached as an atomic.
            unsafe { AtomicU8::from_ptr(addr as *mut u8) }.store(1, Ordering::Relaxed);
        }
    }

    /// The first word of the page at `at`.
    pub(super) fn word(&self, at: Bytes) -> &AtomicU64 {
        let addr = self.at(at, page_size().bytes());
        // SAFETY: inside the owned range, aligned as a page is; the borrow keeps it mapped.
        unsafe { AtomicU64::from_ptr(addr as *mut u64) }
    }

    /// Copies bytes in.
    pub(super) fn write(&mut self, at: Bytes, bytes: &[u8]) {
        let addr = self.at(at, Bytes::new(bytes.len() as u64));
        // SAFETY: inside the owned range, which `bytes` cannot overlap; the borrow is exclusive.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), addr as *mut u8, bytes.len()) };
    }

    /// Copies bytes out.
    pub(super) fn read(&mut self, at: Bytes, bytes: &mut [u8]) {
        let addr = self.at(at, Bytes::new(bytes.len() as u64));
        // SAFETY: as in `write`.
        unsafe { ptr::copy_nonoverlapping(addr as *const u8, bytes.as_mut_ptr(), bytes.len()) };
    }

    fn at(&self, at: Bytes, len: Bytes) -> usize {
        let end = at.checked_add(len).expect("no overflow");
        assert!(end.as_usize() <= self.len, "{at} + {len} of {}", self.len);
        self.start + at.as_usize()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_until_it_is_dropped() {
        let page = page_size().bytes();
        let mut bare = Bare::new(Bytes::mib(1), None).unwrap();
        bare.write(page, &[7; 64]);
        let mut bytes = [0; 64];
        bare.read(page, &mut bytes);
        assert_eq!(bytes, [7; 64]);
        assert_eq!(bare.word(page).load(Ordering::Relaxed), u64::from_ne_bytes([7; 8]));
        bare.advise(Bytes::ZERO, Bytes::mib(1), Advice::DontNeed).unwrap();
        assert_eq!(bare.word(page).load(Ordering::Relaxed), 0);
        bare.touch(Bytes::ZERO, Bytes::mib(1), page);
        assert_eq!(bare.word(page).load(Ordering::Relaxed), 1);
    }
}
