//! [`Mapping`] owns mapped bytes, and copies bytes in and out.
//!
//! Offsets and lengths are bytes from the start. A `Mapping` never lends its bytes as a slice,
//! because other threads or processes may change them. A copy that races with a write may mix old
//! and new bytes; a caller that needs whole values must order the two.
//!
//! # Safety
//! Unless borrowed, a `Mapping` alone owns `addr..addr + len` from `mmap` to its drop. Each access
//! is checked against `len`, and panics in a child that lacks the mapping and may have other memory
//! there.
#![allow(unsafe_code)]

mod addresses;
mod bricks;
mod gathered;
mod part;
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
use crate::internal::sys::memory::mmap::{
    map, map_aligned, map_file_lazily, map_file_over, set_aside, unmap, Backing,
};
use crate::internal::sys::memory::own::Own;
use crate::internal::sys::page_size;
use crate::internal::sys::processes::fork::ForkGuard;
use crate::units::{Bytes, PageSize};

pub use addresses::{Addresses, Piece};
pub use bricks::{frames_of, BrickSize, Bricks};
pub use gathered::Stretch;
pub use part::Part;
pub use reserved::Reserved;
pub use window::Window;

/// Says whether a forked child and a core dump get the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visibility {
    pub in_child: bool,
    pub in_core_dump: bool,
}

impl Visibility {
    pub const ORDINARY: Self = Self { in_child: true, in_core_dump: true };
    pub const PRIVATE: Self = Self { in_child: false, in_core_dump: false };
}

#[derive(Debug)]
pub struct Mapping {
    addr: usize,
    len: Bytes,
    page: PageSize,
    in_child: bool,
    is_borrowed: bool,
    /// True if a [`Window`] may remove the pages, so `write` and `zero` panic.
    in_window: bool,
    file: Option<Arc<MemFile>>,
    bricks: Option<Arc<Bricks>>,
    /// Offsets where further VMAs begin, ascending.
    seams: Vec<Bytes>,
    guard: ForkGuard,
    own: Option<Own>,
}

const _: () = {
    // `Mapping` is `Sync`, because `read` and `write` copy by assembly or volatile accesses.
    const fn shareable<T: Send + Sync>() {}
    shareable::<Mapping>();
};

impl Mapping {
    /// Maps zeroed memory, in aligned huge pages if `len` is at least a huge page.
    pub fn anonymous(len: Bytes, visibility: Visibility) -> Result<Self, OsError> {
        match transparent_huge_page() {
            Ok(huge) if len >= huge.bytes() => {
                let mapping = Self::aligned(len, huge, visibility)?;
                // Kernels without huge pages refuse this advice.
                let _ = mapping.advise(Bytes::ZERO, mapping.len, Advice::HugePage);
                Ok(mapping)
            }
            _ => Self::aligned(len, page_size(), visibility),
        }
    }

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

    /// Maps and reserves pages of the hugetlb pool with page size `page`. `len` is a multiple of
    /// `page`.
    pub fn hugetlb(len: Bytes, page: PageSize, visibility: Visibility) -> Result<Self, OsError> {
        let addr = map(len, Backing::Hugetlb(page))?;
        Self::owned(addr, len, page, None).shown(visibility)
    }

    pub fn shared(
        file: Arc<MemFile>,
        align: PageSize,
        visibility: Visibility,
    ) -> Result<Self, OsError> {
        let (addr, len, page) = (file.map(align)?, file.len()?, file.page());
        Self::owned(addr, len, page, Some(file)).shown(visibility)
    }

    /// Maps `len` bytes of a file from `offset` on, both whole pages, at a multiple of `align`. An
    /// access to a hole punched later finds zeros; beyond a shortened file it raises SIGBUS.
    pub fn part_of(
        file: &File,
        offset: Bytes,
        len: Bytes,
        align: PageSize,
    ) -> Result<Self, OsError> {
        let mut addr = map_file_lazily(file, offset, len)?;
        if addr % align.bytes().as_usize() != 0 {
            // SAFETY: nobody else knows the addresses. The file did not refuse, so it does not
            // refuse now.
            unsafe {
                unmap(addr, len)?;
                addr = set_aside(len, align)?;
                map_file_over(file, offset, len, addr)?;
            }
        }
        Ok(Self::owned(addr, len, page_size(), None).noted())
    }

    pub fn file(&self) -> Option<&Arc<MemFile>> {
        self.file.as_ref()
    }

    /// Wraps whole base pages that the caller keeps mapped. Dropping the result does not unmap
    /// them.
    ///
    /// # Safety
    /// The bytes stay accessible, and no reference to them exists, until the result is dropped.
    pub unsafe fn borrowed(addr: usize, len: Bytes) -> Self {
        let mut mapping = Self::owned(addr, len, page_size(), None);
        mapping.is_borrowed = true;
        mapping
    }

    fn owned(addr: usize, len: Bytes, page: PageSize, file: Option<Arc<MemFile>>) -> Self {
        let (bricks, seams, guard, own) = (None, Vec::new(), ForkGuard::new(), None);
        let (in_child, is_borrowed, in_window) = (true, false, false);
        Self { addr, len, page, in_child, is_borrowed, in_window, file, bricks, seams, guard, own }
    }

    /// Notes that the memory is this library's, because `/proc/self/maps` does not show the owner.
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

    #[must_use]
    pub fn len(&self) -> Bytes {
        self.len
    }

    #[must_use]
    pub fn addr(&self) -> usize {
        self.addr
    }

    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        ptr::with_exposed_provenance_mut(self.addr)
    }

    #[must_use]
    #[inline]
    pub fn is_lost_by_fork(&self) -> bool {
        !self.in_child && self.guard.is_child()
    }

    /// Copies bytes out, even while other threads change them. Panics beyond the end, or in a child
    /// without the mapping.
    #[inline]
    pub fn read(&self, offset: Bytes, buf: &mut [u8]) {
        let at = self.checked(offset, buf.len());
        // SAFETY: `checked` ensures that the source is mapped.
        unsafe { racy::copy(buf.as_mut_ptr(), at, buf.len()) }
    }

    /// Copies bytes in, even while other threads access them. Panics like [`Mapping::read`], or if
    /// the mapping is in a [`Window`].
    #[inline]
    pub fn write(&self, offset: Bytes, bytes: &[u8]) {
        let at = self.writable(offset, bytes.len());
        // SAFETY: `writable` ensures that the target is mapped.
        unsafe { racy::copy(at, bytes.as_ptr(), bytes.len()) }
    }

    /// Panics like [`Mapping::write`].
    #[inline]
    pub fn zero(&self, offset: Bytes, len: Bytes) {
        let count = usize::try_from(len.get()).unwrap_or(usize::MAX);
        let at = self.writable(offset, count);
        // SAFETY: `writable` ensures that the target is mapped.
        unsafe { racy::zero(at, count) }
    }

    /// Makes whole pages present, so that a lack of memory is an error here and not a later signal.
    pub fn populate(&self, offset: Bytes, len: Bytes) -> Result<(), OsError> {
        self.advise(offset, len, Advice::PopulateWrite)
    }

    pub fn prefer_huge_pages(&self) -> Result<(), OsError> {
        self.advise(Bytes::ZERO, self.len, Advice::HugePage)
    }

    pub fn refuse_huge_pages(&self) -> Result<(), OsError> {
        self.advise(Bytes::ZERO, self.len, Advice::NoHugePage)
    }

    pub fn refuse_merging(&self) -> Result<(), OsError> {
        self.advise(Bytes::ZERO, self.len, Advice::Unmergeable)
    }

    /// Lets the kernel free, under memory pressure, pages that are not written again.
    pub fn offer(&self) -> Result<(), OsError> {
        self.advise(Bytes::ZERO, self.len, Advice::Free)
    }

    pub fn reclaim(&self) -> Result<(), OsError> {
        self.advise(Bytes::ZERO, self.len, Advice::PageOut)
    }

    pub fn wipe_on_fork(&self) -> Result<(), OsError> {
        self.advise(Bytes::ZERO, self.len, Advice::WipeOnFork)
    }

    /// Frees page `index`. Takes `&mut self`, because another thread's access to a freed hugetlb
    /// page may raise SIGBUS.
    pub fn discard(&mut self, index: usize) -> Result<(), OsError> {
        let size = self.page.bytes();
        let offset = Bytes::new(index as u64 * size.get());
        match (&self.file, self.bricks()) {
            (Some(file), _) => file.punch(offset, size),
            (None, Some(bricks)) => bricks.punch(index),
            // SAFETY: `&mut self` excludes others, and no reference to the bytes exists.
            (None, None) => unsafe { self.give_back(offset, size) },
        }
    }

    /// Frees whole pages. They then read as zero, unless they map a file.
    ///
    /// # Safety
    /// No reference to bytes of these pages exists, except to atomics.
    pub unsafe fn give_back(&self, offset: Bytes, len: Bytes) -> Result<(), OsError> {
        let at = self.checked(offset, len.as_usize()).addr();
        // SAFETY: the mapping owns the range; the caller gives up its bytes.
        unsafe { discard(at, len) }
    }

    /// Frees ranges (offset, length) in order until one fails, and returns the number freed.
    /// Replaces each offset by its address.
    ///
    /// # Safety
    /// See [`Mapping::give_back`].
    pub unsafe fn give_back_all(&self, ranges: &mut [(usize, Bytes)]) -> usize {
        for (at, len) in &mut *ranges {
            *at = self.checked(Bytes::new(*at as u64), len.as_usize()).addr();
        }
        // SAFETY: as in `give_back`.
        unsafe { discard_all(ranges) }
    }

    fn advise(&self, offset: Bytes, len: Bytes, advice: Advice) -> Result<(), OsError> {
        let at = self.checked(offset, len.as_usize()).addr();
        // SAFETY: the mapping owns the range. `Free` may lose bytes, which a caller of `offer`
        // accepts.
        unsafe { advise(at, len, advice) }
    }

    #[inline]
    fn writable(&self, offset: Bytes, count: usize) -> *mut u8 {
        assert!(!self.in_window, "memory of a reserve that may shrink, written outside of a block");
        self.checked(offset, count)
    }

    /// Panics unless `count` bytes are mapped from `offset` on.
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
            // The entry must go before another mapping can get the addresses.
            self.own = None;
            // SAFETY: nothing refers to the mapping after the drop.
            let _ = unsafe { unmap(self.addr, self.len) };
        }
    }
}

#[cfg(test)]
mod tests;
