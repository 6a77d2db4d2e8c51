//! [`Mapping`]: the sole owner of mapped bytes.
//!
//! Offsets and lengths are bytes from the start. Other threads, and with a shared file other
//! processes, may change the bytes. So a mapping never lends them as a slice: it copies them in and
//! out. Copies that race give a mix of both and nothing worse; callers that need better order their
//! copies. No lock, no allocation. Not here: which pages are contiguous (`glebe-contig`) or in
//! use (a free tree).
//!
//! # Safety
//! A `Mapping` alone owns `addr..addr + len` from `mmap` to its drop. Each access is checked
//! against `len`. It panics in a child that lacks the mapping and may have other memory there.
#![allow(unsafe_code)]

mod addresses;
mod gathered;
pub mod racy;
mod reserved;
mod shaped;
mod unreserved;
mod window;

use std::fs::File;
use std::ptr;
use std::sync::Arc;

use crate::error::OsError;
pub use crate::internal::sys::memory::madvise::DISCARD_MAX;
use crate::internal::sys::memory::madvise::{
    advise, discard, discard_all, transparent_huge_page, Advice,
};
use crate::internal::sys::memory::memfd::MemFile;
use crate::internal::sys::memory::mmap::{map, map_aligned, map_file, set_aside, unmap, Backing};
use crate::internal::sys::memory::own::Own;
use crate::internal::sys::page_size;
use crate::internal::sys::processes::fork::ForkGuard;
use crate::units::{Bytes, PageSize};

pub use addresses::{Addresses, Piece};
pub use gathered::Stretch;
pub use reserved::Reserved;
pub use window::Window;

/// Other places where the bytes of a mapping may appear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visibility {
    /// In a forked child, as a copy.
    pub in_child: bool,
    /// In a core dump.
    pub in_core_dump: bool,
}

impl Visibility {
    /// Both, like ordinary memory.
    pub const ORDINARY: Self = Self { in_child: true, in_core_dump: true };
    /// Neither.
    pub const PRIVATE: Self = Self { in_child: false, in_core_dump: false };
}

/// Mapped memory; dropping it unmaps it.
#[derive(Debug)]
pub struct Mapping {
    addr: usize,
    len: Bytes,
    /// Size of the kernel's pages.
    page: PageSize,
    in_child: bool,
    /// True if the caller unmaps the bytes.
    is_borrowed: bool,
    /// True if a [`Window`] owns the addresses and may take pages away: writes by offset panic.
    in_window: bool,
    /// The file from which the pages can be mapped again.
    file: Option<Arc<MemFile>>,
    /// Offsets where further VMAs begin, ascending.
    seams: Vec<Bytes>,
    guard: ForkGuard,
    /// The note that the memory is this library's. The kernel shows that for memfds and huge pages.
    own: Option<Own>,
}

const _: () = {
    // Any thread may hold, use and drop a mapping: `read` and `write` copy racy bytes outside the
    // language's memory model, and all fields are plain data.
    const fn shareable<T: Send + Sync>() {}
    shareable::<Mapping>();
};

impl Mapping {
    /// Maps zero-filled ordinary memory, rounded up to whole pages, in huge pages if it is large
    /// enough and the kernel has them. The kernel allocates pages when they are touched.
    ///
    /// # Errors
    /// If mmap(2) or madvise(2) fails, or `len` is zero or exceeds the address space.
    pub fn anonymous(len: Bytes, visibility: Visibility) -> Result<Self, OsError> {
        match transparent_huge_page() {
            Ok(huge) if len >= huge.bytes() => {
                let mapping = Self::aligned(len, huge, visibility)?;
                // Kernels without huge pages refuse this.
                let _ = mapping.advise(Bytes::ZERO, mapping.len, Advice::HugePage);
                Ok(mapping)
            }
            _ => Self::aligned(len, page_size(), visibility),
        }
    }

    /// Maps ordinary memory at a multiple of `align`, in whole base pages.
    pub fn aligned(len: Bytes, align: PageSize, visibility: Visibility) -> Result<Self, OsError> {
        let page = page_size();
        let refused = |what: &str| {
            let source = std::io::Error::new(std::io::ErrorKind::InvalidInput, what);
            OsError::new("mmap", len.to_string(), source)
        };
        if len == Bytes::ZERO {
            return Err(refused("no bytes asked for"));
        }
        let too_long = || refused("longer than the address space");
        let len = len.pages_up(page).checked_bytes(page).ok_or_else(too_long)?;
        let addr =
            if align <= page { map(len, Backing::Ordinary)? } else { map_aligned(len, align)? };
        Self::owned(addr, len, page, None).noted().shown(visibility)
    }

    /// Maps pages of the hugetlb pool of `page`, set aside but not populated. `len` is a multiple
    /// of it.
    pub fn hugetlb(len: Bytes, page: PageSize, visibility: Visibility) -> Result<Self, OsError> {
        let addr = map(len, Backing::Hugetlb(page))?;
        Self::owned(addr, len, page, None).shown(visibility)
    }

    /// Maps all of a file at a multiple of `align`.
    pub fn shared(
        file: Arc<MemFile>,
        align: PageSize,
        visibility: Visibility,
    ) -> Result<Self, OsError> {
        let (addr, len, page) = (file.map(align)?, file.len()?, file.page());
        Self::owned(addr, len, page, Some(file)).shown(visibility)
    }

    /// Maps `len` bytes of a file from `offset` at a multiple of `align`, all in whole pages. If
    /// others remove pages from the file, a touch finds zeros. If they truncate it, a touch is
    /// SIGBUS.
    pub fn part_of(
        file: &File,
        offset: Bytes,
        len: Bytes,
        align: PageSize,
    ) -> Result<Self, OsError> {
        let addr = set_aside(len, align.max(page_size()))?;
        // SAFETY: the addresses were set aside just now, and nobody else knows of them.
        unsafe {
            if let Err(error) = map_file(file, offset, len, Some(addr)) {
                let _ = unmap(addr, len);
                return Err(error);
            }
        }
        Ok(Self::owned(addr, len, page_size(), None).noted())
    }

    /// Returns the file whose pages these are, if they can be mapped again.
    pub fn file(&self) -> Option<&Arc<MemFile>> {
        self.file.as_ref()
    }

    /// Wraps memory that the caller owns and keeps mapped while the result lives. `addr` and `len`
    /// are whole base pages. Dropping the result does not unmap them.
    ///
    /// # Safety
    /// The bytes may be read and written, and no reference to them exists while the result lives.
    pub unsafe fn borrowed(addr: usize, len: Bytes) -> Self {
        let mut mapping = Self::owned(addr, len, page_size(), None);
        mapping.is_borrowed = true;
        mapping
    }

    /// Wraps a new mapping that children inherit. Dropping it unmaps it.
    fn owned(addr: usize, len: Bytes, page: PageSize, file: Option<Arc<MemFile>>) -> Self {
        let (in_child, is_borrowed, in_window) = (true, false, false);
        let (seams, guard) = (Vec::new(), ForkGuard::new());
        Self { addr, len, page, in_child, is_borrowed, in_window, file, seams, guard, own: None }
    }

    /// Notes the memory as this library's: it looks like the program's.
    fn noted(mut self) -> Self {
        self.own = Some(self.note());
        self
    }

    fn note(&self) -> Own {
        let own = Own::note(self.addr..self.addr + self.len.as_usize());
        if !self.in_child {
            own.is_lost_by_fork(&self.guard);
        }
        own
    }

    fn shown(mut self, visibility: Visibility) -> Result<Self, OsError> {
        if !visibility.in_child {
            self.advise(Bytes::ZERO, self.len, Advice::DontFork)?;
            self.in_child = false;
            self.own.iter().for_each(|own| own.is_lost_by_fork(&self.guard));
        }
        if !visibility.in_core_dump {
            self.advise(Bytes::ZERO, self.len, Advice::DontDump)?;
        }
        Ok(self)
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn len(&self) -> Bytes {
        self.len
    }

    /// Returns the first address.
    #[must_use]
    pub fn addr(&self) -> usize {
        self.addr
    }

    /// Returns a pointer to the first byte. The caller orders and bounds the accesses through it.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        ptr::with_exposed_provenance_mut(self.addr)
    }

    /// Returns true in a forked child that does not have the bytes.
    #[must_use]
    #[inline]
    pub fn is_lost_by_fork(&self) -> bool {
        !self.in_child && self.guard.is_child()
    }

    /// Copies bytes out. Another thread may change them meanwhile.
    ///
    /// # Panics
    /// If `offset + buf.len()` is beyond the end, or this forked child does not have the mapping.
    #[inline]
    pub fn read(&self, offset: Bytes, buf: &mut [u8]) {
        let at = self.checked(offset, buf.len());
        // SAFETY: `checked` ensures that the source is mapped.
        unsafe { racy::copy(buf.as_mut_ptr(), at, buf.len()) }
    }

    /// Copies bytes in. Another thread may read or change them meanwhile.
    ///
    /// # Panics
    /// If `offset + bytes.len()` is beyond the end, this forked child does not have the mapping, or
    /// it belongs to a reserve that may shrink.
    #[inline]
    pub fn write(&self, offset: Bytes, bytes: &[u8]) {
        let at = self.writable(offset, bytes.len());
        // SAFETY: `writable` ensures that the target is mapped.
        unsafe { racy::copy(at, bytes.as_ptr(), bytes.len()) }
    }

    /// Sets bytes to zero. Another thread may read or change them meanwhile.
    ///
    /// # Panics
    /// See [`Mapping::write`].
    #[inline]
    pub fn zero(&self, offset: Bytes, len: Bytes) {
        let count = usize::try_from(len.get()).unwrap_or(usize::MAX);
        let at = self.writable(offset, count);
        // SAFETY: `writable` ensures that the target is mapped.
        unsafe { racy::zero(at, count) }
    }

    /// Makes whole pages present and writable. A lack of memory is an error here, not a signal
    /// later.
    pub fn populate(&self, offset: Bytes, len: Bytes) -> Result<(), OsError> {
        self.advise(offset, len, Advice::PopulateWrite)
    }

    pub fn prefer_huge_pages(&self) -> Result<(), OsError> {
        self.advise(Bytes::ZERO, self.len, Advice::HugePage)
    }

    /// Asks for no transparent huge pages here.
    pub fn refuse_huge_pages(&self) -> Result<(), OsError> {
        self.advise(Bytes::ZERO, self.len, Advice::NoHugePage)
    }

    /// Lets the kernel take the pages that nobody writes from now on.
    pub fn offer(&self) -> Result<(), OsError> {
        self.advise(Bytes::ZERO, self.len, Advice::Free)
    }

    pub fn reclaim(&self) -> Result<(), OsError> {
        self.advise(Bytes::ZERO, self.len, Advice::PageOut)
    }

    /// Makes a forked child find zeros here, not a copy.
    pub fn wipe_on_fork(&self) -> Result<(), OsError> {
        self.advise(Bytes::ZERO, self.len, Advice::WipeOnFork)
    }

    /// Gives one page back to the kernel. The access is exclusive: if the pool has no page left, a
    /// later touch of a hugetlb page is SIGBUS.
    pub fn discard(&mut self, index: usize) -> Result<(), OsError> {
        let size = self.page.bytes();
        let offset = Bytes::new(index as u64 * size.get());
        match &self.file {
            Some(file) => file.punch(offset, size),
            // SAFETY: exclusive access: no reference to the bytes exists.
            None => unsafe { self.give_back(offset, size) },
        }
    }

    /// Gives whole pages back to the kernel. They read as zero afterwards.
    ///
    /// # Safety
    /// No reference to bytes of these pages exists, except to atomics.
    pub unsafe fn give_back(&self, offset: Bytes, len: Bytes) -> Result<(), OsError> {
        let at = self.checked(offset, len.as_usize()).addr();
        // SAFETY: the mapping owns the range; the caller gives up its bytes.
        unsafe { discard(at, len) }
    }

    /// Gives back ranges of offset and length, at most [`DISCARD_MAX`]. Returns the number of
    /// ranges, from the first on, whose pages are gone.
    ///
    /// # Safety
    /// See [`Mapping::give_back`].
    pub unsafe fn give_back_all(&self, ranges: &mut [(usize, Bytes)]) -> usize {
        for (at, len) in &mut *ranges {
            *at = self.checked(Bytes::new(*at as u64), len.as_usize()).addr();
        }
        // SAFETY: the mapping owns the ranges; the caller gives up their bytes.
        unsafe { discard_all(ranges) }
    }

    fn advise(&self, offset: Bytes, len: Bytes, advice: Advice) -> Result<(), OsError> {
        let at = self.checked(offset, len.as_usize()).addr();
        // SAFETY: the mapping owns the range. Only Free changes contents, and callers of `offer`
        // have the bytes to themselves.
        unsafe { advise(at, len, advice) }
    }

    /// Checks like [`Mapping::checked`], and that no window may take the pages away.
    #[inline]
    fn writable(&self, offset: Bytes, count: usize) -> *mut u8 {
        assert!(!self.in_window, "memory of a reserve that may shrink, written outside of a block");
        self.checked(offset, count)
    }

    /// Returns the address of `offset`, from which `count` bytes are mapped. Panics if they are
    /// not.
    #[inline]
    fn checked(&self, offset: Bytes, count: usize) -> *mut u8 {
        let end = offset.checked_add(Bytes::new(count as u64));
        assert!(
            end.is_some_and(|end| end <= self.len),
            "{count} bytes at {:#x} of a mapping of {:#x}",
            offset.get(),
            self.len.get()
        );
        assert!(!self.is_lost_by_fork(), "a mapping that fork does not pass on, used in a child");
        self.as_ptr().wrapping_add(offset.as_usize())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if !self.is_borrowed && !self.is_lost_by_fork() {
            // The note ends before others can get the addresses.
            self.own = None;
            // SAFETY: nothing refers to the mapping after its owner is dropped. If the kernel
            // refuses (too many mappings after a split), the next mapping tries again.
            let _ = unsafe { unmap(self.addr, self.len) };
        }
    }
}

#[cfg(test)]
mod tests;
