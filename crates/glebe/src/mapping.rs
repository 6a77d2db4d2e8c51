//! [`Mapping`]: the sole owner of mapped bytes.
//!
//! Offsets and lengths are bytes from the start of the mapping. The bytes may be changed by other
//! threads, and under hugetlb by nobody else: they are never lent as a slice, only copied in and
//! out. A copy that races with another gives bytes of both and nothing worse; who needs better
//! orders the copies by its own means. No lock, no allocation.
//!
//! Not done here: whether pages are contiguous ([`crate::contig`]), who uses which (a free tree).
//!
//! # Safety
//! A `Mapping` holds `addr..addr + len` from `mmap` until its drop and gives it to nobody else;
//! every access is checked against `len`, and, where fork does not pass the mapping on, refused
//! in a child, where the same addresses may be somebody else's.
#![allow(unsafe_code)]

mod addresses;
mod gathered;
pub(crate) mod racy;
mod reserved;
mod shaped;
mod unreserved;
mod window;

use std::fs::File;
use std::ptr;
use std::sync::Arc;

use crate::error::OsError;
use crate::sys::fork::ForkGuard;
pub(crate) use crate::sys::madvise::DISCARD_MAX;
use crate::sys::madvise::{advise, discard, discard_all, transparent_huge_page, Advice};
use crate::sys::memfd::MemFile;
use crate::sys::mmap::{map, map_aligned, map_file, set_aside, unmap, Backing};
use crate::sys::own::Own;
use crate::sys::page_size;
use crate::units::{Bytes, PageSize};

pub(crate) use addresses::{Addresses, Piece};
pub(crate) use gathered::Stretch;
pub(crate) use reserved::Reserved;
pub(crate) use window::Window;

/// Where else the bytes of a mapping may turn up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visibility {
    /// In a forked child, as a copy.
    pub in_child: bool,
    /// In a core dump.
    pub in_core_dump: bool,
}

impl Visibility {
    /// As ordinary memory is.
    pub const ORDINARY: Self = Self { in_child: true, in_core_dump: true };
    /// Nowhere.
    pub const PRIVATE: Self = Self { in_child: false, in_core_dump: false };
}

/// Mapped memory, unmapped when this is dropped.
#[derive(Debug)]
pub struct Mapping {
    addr: usize,
    len: Bytes,
    /// The page that the kernel maps it by: the unit of [`Mapping::discard`].
    page: PageSize,
    in_child: bool,
    /// Whether the bytes are the caller's, who unmaps them.
    is_borrowed: bool,
    /// Whether the addresses are a [`Window`]'s, who may take pages away: nothing is written here.
    in_window: bool,
    /// Where the pages can be mapped from once more.
    file: Option<Arc<MemFile>>,
    /// Where another mapping of the kernel's begins, ascending: none of most.
    seams: Vec<Bytes>,
    guard: ForkGuard,
    /// Says that the memory is not the program's; of memfds and huge pages the kernel says it.
    own: Option<Own>,
}

const _: () = {
    // `read` and `write` copy racy bytes outside the language's memory model, and every other
    // field is plain data: any thread may hold, use and drop a mapping.
    const fn shareable<T: Send + Sync>() {}
    shareable::<Mapping>();
};

impl Mapping {
    /// Zero-filled ordinary memory, rounded up to whole pages, in huge pages where it is large
    /// enough and the kernel has them. Pages come when they are touched.
    ///
    /// # Errors
    /// What mmap(2) or madvise(2) refuses: a length of zero, one beyond the address space.
    pub fn anonymous(len: Bytes, visibility: Visibility) -> Result<Self, OsError> {
        match transparent_huge_page() {
            Ok(huge) if len >= huge.bytes() => {
                let mapping = Self::aligned(len, huge, visibility)?;
                // Refused by kernels built without them: then small pages do.
                let _ = mapping.advise(Bytes::ZERO, mapping.len, Advice::HugePage);
                Ok(mapping)
            }
            _ => Self::aligned(len, page_size(), visibility),
        }
    }

    /// Ordinary memory at a multiple of `align`, rounded up to whole base pages.
    pub(crate) fn aligned(
        len: Bytes,
        align: PageSize,
        visibility: Visibility,
    ) -> Result<Self, OsError> {
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

    /// Memory of the hugetlb pool of `page`; `len` is a multiple of it. Its pages are set aside
    /// but not populated.
    pub(crate) fn hugetlb(
        len: Bytes,
        page: PageSize,
        visibility: Visibility,
    ) -> Result<Self, OsError> {
        let addr = map(len, Backing::Hugetlb(page))?;
        Self::owned(addr, len, page, None).shown(visibility)
    }

    /// All of a file, at a multiple of `align`.
    pub(crate) fn shared(
        file: Arc<MemFile>,
        align: PageSize,
        visibility: Visibility,
    ) -> Result<Self, OsError> {
        let (addr, len, page) = (file.map(align)?, file.len()?, file.page());
        Self::owned(addr, len, page, Some(file)).shown(visibility)
    }

    /// `len` bytes of a file from `offset` on, at a multiple of `align`; all in whole pages. Others
    /// may take pages out of the file, or cut it: a touch then finds zeros, or is SIGBUS.
    pub(crate) fn part_of(
        file: &File,
        offset: Bytes,
        len: Bytes,
        align: PageSize,
    ) -> Result<Self, OsError> {
        let addr = set_aside(len, align.max(page_size()))?;
        // SAFETY: over addresses set aside just now, of which nobody else knows.
        unsafe {
            if let Err(error) = map_file(file, offset, len, Some(addr)) {
                let _ = unmap(addr, len);
                return Err(error);
            }
        }
        Ok(Self::owned(addr, len, page_size(), None).noted())
    }

    /// The file whose pages these are, if they can be mapped elsewhere too.
    pub(crate) fn file(&self) -> Option<&Arc<MemFile>> {
        self.file.as_ref()
    }

    /// Memory of somebody else's, who keeps it mapped as long as this lives; `addr` and `len` are
    /// whole base pages. It is not unmapped here.
    ///
    /// # Safety
    /// The bytes may be read and written, and nobody holds a reference to them meanwhile.
    pub(crate) unsafe fn borrowed(addr: usize, len: Bytes) -> Self {
        let mut mapping = Self::owned(addr, len, page_size(), None);
        mapping.is_borrowed = true;
        mapping
    }

    /// What was mapped just now, which everybody sees; dropping it unmaps it.
    fn owned(addr: usize, len: Bytes, page: PageSize, file: Option<Arc<MemFile>>) -> Self {
        let (in_child, is_borrowed, in_window) = (true, false, false);
        let (seams, guard) = (Vec::new(), ForkGuard::new());
        Self { addr, len, page, in_child, is_borrowed, in_window, file, seams, guard, own: None }
    }

    /// Memory that looks like the program's.
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

    /// Bytes mapped.
    #[must_use]
    pub fn len(&self) -> Bytes {
        self.len
    }

    /// The first address.
    #[must_use]
    pub fn addr(&self) -> usize {
        self.addr
    }

    /// The first byte. What is done through the pointer is the caller's to order and to bound.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        ptr::with_exposed_provenance_mut(self.addr)
    }

    /// Whether the bytes are not there because this process was forked from their owner's.
    #[must_use]
    #[inline]
    pub fn is_lost_by_fork(&self) -> bool {
        !self.in_child && self.guard.is_child()
    }

    /// Copies bytes out; another thread may be changing them.
    ///
    /// # Panics
    /// If `offset + buf.len()` is beyond the end, or the mapping was lost by fork.
    #[inline]
    pub fn read(&self, offset: Bytes, buf: &mut [u8]) {
        let at = self.checked(offset, buf.len());
        // SAFETY: `checked` says that the source is mapped; `buf` is a slice.
        unsafe { racy::copy(buf.as_mut_ptr(), at, buf.len()) }
    }

    /// Copies bytes in; another thread may be reading or changing them.
    ///
    /// # Panics
    /// If `offset + bytes.len()` is beyond the end, the mapping was lost by fork, or it is of a
    /// reserve that may shrink.
    #[inline]
    pub fn write(&self, offset: Bytes, bytes: &[u8]) {
        let at = self.writable(offset, bytes.len());
        // SAFETY: `checked` says that the target is mapped; `bytes` is a slice.
        unsafe { racy::copy(at, bytes.as_ptr(), bytes.len()) }
    }

    /// Sets bytes to zero; another thread may be reading or changing them.
    ///
    /// # Panics
    /// As [`Mapping::write`].
    #[inline]
    pub fn zero(&self, offset: Bytes, len: Bytes) {
        let count = usize::try_from(len.get()).unwrap_or(usize::MAX);
        let at = self.writable(offset, count);
        // SAFETY: `checked` says that the target is mapped.
        unsafe { racy::zero(at, count) }
    }

    /// Makes pages present and writable; what cannot be had is an error here, never a signal
    /// later. The range is whole pages.
    pub(crate) fn populate(&self, offset: Bytes, len: Bytes) -> Result<(), OsError> {
        self.advise(offset, len, Advice::PopulateWrite)
    }

    /// Asks for transparent huge pages.
    pub(crate) fn prefer_huge_pages(&self) -> Result<(), OsError> {
        self.advise(Bytes::ZERO, self.len, Advice::HugePage)
    }

    /// Asks for no transparent huge pages to be made of what is there.
    pub(crate) fn refuse_huge_pages(&self) -> Result<(), OsError> {
        self.advise(Bytes::ZERO, self.len, Advice::NoHugePage)
    }

    /// Lets the kernel take pages that nobody writes from now on.
    pub(crate) fn offer(&self) -> Result<(), OsError> {
        self.advise(Bytes::ZERO, self.len, Advice::Free)
    }

    /// Has the kernel reclaim what it can of these pages, now.
    pub(crate) fn reclaim(&self) -> Result<(), OsError> {
        self.advise(Bytes::ZERO, self.len, Advice::PageOut)
    }

    /// Lets a forked child find zeros here instead of a copy.
    pub(crate) fn wipe_on_fork(&self) -> Result<(), OsError> {
        self.advise(Bytes::ZERO, self.len, Advice::WipeOnFork)
    }

    /// Gives one page back to the kernel. Takes the mapping exclusively: a hugetlb page that is
    /// touched again may not be had, which is SIGBUS.
    pub(crate) fn discard(&mut self, index: usize) -> Result<(), OsError> {
        let size = self.page.bytes();
        let offset = Bytes::new(index as u64 * size.get());
        match &self.file {
            Some(file) => file.punch(offset, size),
            // SAFETY: exclusive access: nobody refers to the bytes.
            None => unsafe { self.give_back(offset, size) },
        }
    }

    /// Gives whole pages back to the kernel; what is read there later is zero.
    ///
    /// # Safety
    /// Nobody has a reference to bytes of these pages, but to atomics.
    pub(crate) unsafe fn give_back(&self, offset: Bytes, len: Bytes) -> Result<(), OsError> {
        let at = self.checked(offset, len.as_usize()).addr();
        // SAFETY: the range is this mapping's own, and the caller has its bytes.
        unsafe { discard(at, len) }
    }

    /// As [`Mapping::give_back`], ranges by offset and length, [`DISCARD_MAX`] at most; of how
    /// many, from the first on, the pages are gone.
    ///
    /// # Safety
    /// As [`Mapping::give_back`].
    pub(crate) unsafe fn give_back_all(&self, ranges: &mut [(usize, Bytes)]) -> usize {
        for (at, len) in &mut *ranges {
            *at = self.checked(Bytes::new(*at as u64), len.as_usize()).addr();
        }
        // SAFETY: the ranges are this mapping's own, and the caller has their bytes.
        unsafe { discard_all(ranges) }
    }

    fn advise(&self, offset: Bytes, len: Bytes, advice: Advice) -> Result<(), OsError> {
        let at = self.checked(offset, len.as_usize()).addr();
        // SAFETY: the range is this mapping's own; of the advice that changes contents, Free is
        // given by `offer` alone, whose callers have the bytes to themselves.
        unsafe { advise(at, len, advice) }
    }

    /// As [`Mapping::checked`], where nobody may have taken the pages away.
    #[inline]
    fn writable(&self, offset: Bytes, count: usize) -> *mut u8 {
        assert!(!self.in_window, "memory of a reserve that may shrink, written outside of a block");
        self.checked(offset, count)
    }

    /// The address of `offset`, where `count` bytes from it are mapped in this process.
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
            // Before the addresses can be somebody else's.
            self.own = None;
            // SAFETY: nothing refers to the mapping once its owner is dropped. What the kernel
            // refuses (too many mappings after a split) is made up for by the next mapping.
            let _ = unsafe { unmap(self.addr, self.len) };
        }
    }
}

#[cfg(test)]
mod tests;
