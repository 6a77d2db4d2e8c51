//! [`Bare`]: anonymous memory and the bare calls on it, for peers and for comparison.
//!
//! # Safety
//! A `Bare` owns its range from mmap to munmap, or by the region whose memory it is, of which
//! nobody else has the pointer. Bytes are reached as atomics or through copies that
//! are checked against the length; no reference to a byte ever leaves.
#![allow(unsafe_code)]

use std::io;
use std::ptr;
use std::sync::atomic::{AtomicU64, AtomicU8, Ordering};

use glebe::error::OsError;
use glebe::sys::page_size;
use glebe::units::Bytes;
use glebe::volatile::Region;

/// What to tell the kernel of a range.
#[derive(Clone, Copy, Debug)]
pub(super) enum Call {
    /// `MADV_FREE`.
    Free,
    /// `MADV_DONTNEED`.
    DontNeed,
    /// `MADV_POPULATE_WRITE`.
    PopulateWrite,
}

/// A private anonymous mapping.
#[derive(Debug)]
pub(super) struct Bare {
    base: usize,
    mapped: usize,
    start: usize,
    len: usize,
    /// Whose memory it is, where nothing was mapped for it.
    _region: Option<Box<Region>>,
}

impl Bare {
    /// Memory of small pages, or of transparent huge ones of `huge`.
    ///
    /// # Errors
    /// What mmap(2) or madvise(2) refuses.
    pub(super) fn new(len: Bytes, huge: Option<Bytes>) -> Result<Self, OsError> {
        let align = huge.map_or(page_size().bytes(), |huge| huge).as_usize();
        let (len, mapped) = (len.as_usize(), len.as_usize() + align);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: without a fixed address the kernel picks a range that nothing else uses.
        let base = unsafe { libc::mmap(ptr::null_mut(), mapped, prot, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            let error = io::Error::last_os_error();
            return Err(OsError::new("mmap", Bytes::new(len as u64).to_string(), error));
        }
        let base = base as usize;
        let bare = Self { base, mapped, start: base.next_multiple_of(align), len, _region: None };
        let advice = if huge.is_some() { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
        bare.advise(Bytes::ZERO, Bytes::new(len as u64), advice)?;
        Ok(bare)
    }

    /// The memory of a region: to the kernel it is what the region's own calls find.
    pub(super) fn of(region: Region) -> Self {
        let (start, len) = (region.as_ptr().expose_provenance(), region.len().as_usize());
        Self { base: start, mapped: 0, start, len, _region: Some(Box::new(region)) }
    }

    /// Its first address.
    pub(super) fn addr(&self) -> usize {
        self.start
    }

    /// Makes a call on a part.
    ///
    /// # Errors
    /// What madvise(2) refuses.
    ///
    /// # Panics
    /// If the part is not inside.
    pub(super) fn call(&self, at: Bytes, len: Bytes, call: Call) -> Result<(), OsError> {
        let advice = match call {
            Call::Free => libc::MADV_FREE,
            Call::DontNeed => libc::MADV_DONTNEED,
            Call::PopulateWrite => libc::MADV_POPULATE_WRITE,
        };
        self.advise(at, len, advice)
    }

    fn advise(&self, at: Bytes, len: Bytes, advice: libc::c_int) -> Result<(), OsError> {
        let addr = self.at(at, len);
        // SAFETY: inside the owned range, of whose bytes nobody holds a reference.
        let rc = unsafe { libc::madvise(addr as *mut libc::c_void, len.as_usize(), advice) };
        if rc == 0 {
            return Ok(());
        }
        let subject = format!("{addr:#x}, {len}, {advice}");
        Err(OsError::new("madvise", subject, io::Error::last_os_error()))
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

impl Drop for Bare {
    fn drop(&mut self) {
        if self.mapped > 0 {
            // SAFETY: exactly the range that mmap gave, of which no reference is left.
            unsafe { libc::munmap(self.base as *mut libc::c_void, self.mapped) };
        }
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
        bare.call(Bytes::ZERO, Bytes::mib(1), Call::DontNeed).unwrap();
        assert_eq!(bare.word(page).load(Ordering::Relaxed), 0);
        bare.touch(Bytes::ZERO, Bytes::mib(1), page);
        assert_eq!(bare.word(page).load(Ordering::Relaxed), 1);
    }
}
