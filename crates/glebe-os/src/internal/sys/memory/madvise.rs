//! [`advise`] gives advice by madvise(2).
//!
//! [`Advice::PopulateWrite`] (Linux 5.14) fails where a touch would raise SIGBUS. Source:
//! process_madvise(2), admin-guide/mm/transhuge.
#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::ptr;

use crate::error::OsError;
use crate::internal::sync::{MappedWord, Ordering};
use crate::internal::sys::call::answer;
use crate::internal::sys::files::file;
use crate::units::{Bytes, PageSize};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    HugePage,
    DontFork,
    WipeOnFork,
    DontDump,
    PopulateWrite,
    DontNeed,
    DontNeedLocked,
    Free,
    /// Makes every page present; a hole may get the shared zero page.
    PopulateRead,
    NoHugePage,
    /// Also separates merged pages.
    Unmergeable,
    Collapse,
    PageOut,
    Cold,
    Remove,
}

impl Advice {
    fn known(self) -> (i32, &'static str) {
        match self {
            Advice::HugePage => (libc::MADV_HUGEPAGE, "MADV_HUGEPAGE"),
            Advice::DontFork => (libc::MADV_DONTFORK, "MADV_DONTFORK"),
            Advice::WipeOnFork => (libc::MADV_WIPEONFORK, "MADV_WIPEONFORK"),
            Advice::DontDump => (libc::MADV_DONTDUMP, "MADV_DONTDUMP"),
            Advice::PopulateWrite => (libc::MADV_POPULATE_WRITE, "MADV_POPULATE_WRITE"),
            Advice::DontNeed => (libc::MADV_DONTNEED, "MADV_DONTNEED"),
            Advice::DontNeedLocked => (libc::MADV_DONTNEED_LOCKED, "MADV_DONTNEED_LOCKED"),
            Advice::Free => (libc::MADV_FREE, "MADV_FREE"),
            Advice::PopulateRead => (libc::MADV_POPULATE_READ, "MADV_POPULATE_READ"),
            Advice::NoHugePage => (libc::MADV_NOHUGEPAGE, "MADV_NOHUGEPAGE"),
            Advice::Unmergeable => (libc::MADV_UNMERGEABLE, "MADV_UNMERGEABLE"),
            Advice::Collapse => (libc::MADV_COLLAPSE, "MADV_COLLAPSE"),
            Advice::PageOut => (libc::MADV_PAGEOUT, "MADV_PAGEOUT"),
            Advice::Cold => (libc::MADV_COLD, "MADV_COLD"),
            Advice::Remove => (libc::MADV_REMOVE, "MADV_REMOVE"),
        }
    }
}

/// Gives advice on a range. Repeats an interrupted call.
///
/// # Safety
/// The caller owns the mapping and accepts the effect of the advice.
#[inline]
pub unsafe fn advise(addr: usize, len: Bytes, advice: Advice) -> Result<(), OsError> {
    // SAFETY: the caller keeps the contract.
    let advised = unsafe { try_advise(addr, len, advice) };
    advised.map_err(|source| refused(addr, len, advice, source))
}

/// Gives advice like [`advise`]. Allocates nothing.
///
/// # Safety
/// See [`advise`].
#[inline]
pub unsafe fn try_advise(addr: usize, len: Bytes, advice: Advice) -> io::Result<()> {
    let at = ptr::with_exposed_provenance_mut(addr);
    let (number, _) = advice.known();
    loop {
        // SAFETY: the caller keeps the contract.
        match answer("madvise", || unsafe { libc::madvise(at, len.as_usize(), number) }) {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(refused) => return Err(refused),
        }
    }
}

#[cold]
fn refused(addr: usize, len: Bytes, advice: Advice, source: io::Error) -> OsError {
    OsError::new("madvise", format!("{addr:#x}, {len}, {}", advice.known().1), source)
}

/// Drops the pages of a range, locked pages too (Linux 5.18).
///
/// # Safety
/// See [`advise`].
#[inline]
pub unsafe fn discard(addr: usize, len: Bytes) -> Result<(), OsError> {
    // SAFETY: the caller keeps the contract.
    let discarded = unsafe { try_discard(addr, len) };
    discarded.map_err(|source| refused(addr, len, Advice::DontNeed, source))
}

/// Drops pages like [`discard`]. Allocates nothing.
///
/// # Safety
/// See [`advise`].
#[inline]
pub unsafe fn try_discard(addr: usize, len: Bytes) -> io::Result<()> {
    // SAFETY: the caller keeps the contract.
    let Err(error) = (unsafe { try_advise(addr, len, Advice::DontNeed) }) else { return Ok(()) };
    if error.raw_os_error() != Some(libc::EINVAL) {
        return Err(error);
    }
    // EINVAL means that the range is locked, or that its mapping never takes this advice.
    // SAFETY: the caller keeps the contract.
    unsafe { try_advise(addr, len, Advice::DontNeedLocked) }.map_err(|_| error)
}

pub const DISCARD_MAX: usize = 32;
/// Names the calling thread, and so its process's memory. Linux 6.17 changed the process's number,
/// but not this one.
const PIDFD_SELF: libc::c_int = -10_000;
/// 1 once the kernel has refused a call for many ranges.
static ONE_BY_ONE: MappedWord = MappedWord::new(0);

/// Drops ranges (address, length) in order until one fails. Returns the number dropped. Since Linux
/// 6.15 one system call drops the first [`DISCARD_MAX`] ranges.
///
/// # Safety
/// See [`advise`].
pub unsafe fn discard_all(ranges: &[(usize, Bytes)]) -> usize {
    let mut gone = 0;
    if ranges.len() > 1 && ONE_BY_ONE.load(Ordering::Relaxed) == 0 {
        // SAFETY: the caller keeps the contract.
        match unsafe { discard_many(ranges) } {
            Ok(bytes) => gone = whole(ranges, bytes),
            Err(error) if is_never(&error) => ONE_BY_ONE.store(1, Ordering::Relaxed),
            Err(_) => {} // the loop below finds the bad range
        }
    }
    // SAFETY: the caller keeps the contract.
    let is_gone = |(at, len): &(usize, Bytes)| unsafe { discard(*at, *len).is_ok() };
    gone + ranges[gone..].iter().take_while(|range| is_gone(range)).count()
}

fn is_never(error: &io::Error) -> bool {
    let number = error.raw_os_error();
    matches!(number, Some(libc::EPERM | libc::ENOSYS | libc::EINVAL | libc::EBADF))
}

fn whole(ranges: &[(usize, Bytes)], bytes: u64) -> usize {
    let ends = ranges.iter().scan(0, |end, (_, len)| {
        *end += len.get();
        Some(*end)
    });
    ends.take_while(|end| *end <= bytes).count()
}

unsafe fn discard_many(ranges: &[(usize, Bytes)]) -> io::Result<u64> {
    let none = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };
    let mut iovecs = [none; DISCARD_MAX];
    for (iovec, (at, len)) in iovecs.iter_mut().zip(ranges) {
        let iov_base = ptr::with_exposed_provenance_mut(*at);
        *iovec = libc::iovec { iov_base, iov_len: len.as_usize() };
    }
    let count = ranges.len().min(DISCARD_MAX);
    let (advice, _) = Advice::DontNeed.known();
    // SAFETY: `iovecs` has `count` entries; the caller owns the ranges.
    let done = answer("process_madvise", || unsafe {
        let call = libc::SYS_process_madvise;
        libc::syscall(call, PIDFD_SELF, iovecs.as_ptr(), count, advice, 0)
    })?;
    Ok(done as u64)
}

/// Makes the pages of a range dirty. Returns false at a missing page, which the range's userfaultfd
/// stops the kernel from filling.
///
/// # Safety
/// See [`advise`].
#[inline]
pub unsafe fn populate_armed(addr: usize, len: Bytes) -> Result<bool, OsError> {
    // SAFETY: the caller keeps the contract.
    match unsafe { advise(addr, len, Advice::PopulateWrite) } {
        Ok(()) => Ok(true),
        Err(error) if found_no_page(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns true if populating stopped where a touch raises SIGBUS.
pub fn found_no_page(error: &OsError) -> bool {
    error.errno() == Some(libc::EFAULT)
}

/// Asks for transparent huge pages within `memory`. Ignores a refusal.
pub fn prefer_huge<T>(memory: &mut [MaybeUninit<T>]) {
    let Ok(huge) = transparent_huge_page() else { return };
    let huge = huge.bytes().as_usize();
    let bytes = memory.as_mut_ptr_range();
    let start = bytes.start.expose_provenance().next_multiple_of(huge);
    let Some(len) = (bytes.end.addr() & !(huge - 1)).checked_sub(start).filter(|&len| len > 0)
    else {
        return;
    };
    // SAFETY: the range lies within `memory`, and the advice keeps contents.
    let _ = unsafe { advise(start, Bytes::new(len as u64), Advice::HugePage) };
}

const THP: &str = "/sys/kernel/mm/transparent_hugepage";

pub fn transparent_huge_page() -> Result<PageSize, OsError> {
    let path = format!("{THP}/enabled");
    if file::text(&path)?.contains("[never]") {
        return Err(OsError::new("read", path, io::Error::other("[never]; madvise is needed")));
    }
    let path = format!("{THP}/hpage_pmd_size");
    PageSize::new(file::number(&path)?)
        .ok_or_else(|| file::strange(path.as_ref(), "no power of two"))
}

/// Returns true if the kernel makes transparent huge pages without advice.
#[must_use]
pub fn transparent_huge_pages_everywhere() -> bool {
    file::chosen(format!("{THP}/enabled")).is_ok_and(|mode| mode == "always")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_went_in_part_are_not_counted() {
        let ranges = [3, 1, 4].map(|len| (0, Bytes::new(len)));
        for (bytes, expected) in [(0, 0), (2, 0), (3, 1), (4, 2), (7, 2), (8, 3)] {
            assert_eq!(whole(&ranges, bytes), expected, "{bytes} bytes");
        }
    }

    #[test]
    fn a_refusal_names_the_advice_as_the_manual_does() {
        let source = io::Error::from_raw_os_error(libc::EINVAL);
        let said = refused(0x1000, Bytes::mib(2), Advice::DontNeed, source).to_string();
        assert!(said.starts_with("madvise(0x1000, 2 MiB, MADV_DONTNEED): "), "{said}");
    }

    #[test]
    fn a_range_that_is_not_mapped_ends_it() {
        let page = crate::internal::sys::page_size().bytes();
        let ranges = [(page.as_usize() * 16, page); 2];
        // SAFETY: nothing is mapped in the lowest pages.
        assert_eq!(unsafe { discard_all(&ranges) }, 0);
    }
}
