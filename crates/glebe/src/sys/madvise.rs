//! `madvise`: one advice on one range, and what the kernel says of transparent huge pages.
//!
//! Needs Linux 5.14 for [`Advice::PopulateWrite`], which reports as an error what a touch would
//! report as SIGBUS. Source: madvise(2), admin-guide/mm/transhuge.
//!
//! # Safety
//! Advice changes or removes the memory of whoever owns the range, so [`advise`] is unsafe.
#![allow(unsafe_code)]

use std::io;
use std::path::Path;
use std::ptr;

use crate::error::OsError;
use crate::sys::fault::point;
use crate::sys::file;
use crate::units::{Bytes, PageSize};

/// What to tell the kernel about a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Use transparent huge pages.
    HugePage,
    /// Do not give the range to a forked child.
    DontFork,
    /// Give a forked child zeroes.
    WipeOnFork,
    /// Leave the range out of core dumps.
    DontDump,
    /// Make every page present and writable.
    PopulateWrite,
    /// Drop the pages and their contents.
    DontNeed,
    /// Let the kernel drop the pages when it needs memory, unless they are written before.
    Free,
    /// Make every page present as it is, a hole as a page of zeros that may be shared.
    PopulateRead,
    /// Use no transparent huge pages, and make none of what is there.
    NoHugePage,
    /// Make huge pages of what is there, now.
    Collapse,
    /// Reclaim the pages now.
    PageOut,
}

impl Advice {
    fn number(self) -> i32 {
        match self {
            Advice::HugePage => libc::MADV_HUGEPAGE,
            Advice::DontFork => libc::MADV_DONTFORK,
            Advice::WipeOnFork => libc::MADV_WIPEONFORK,
            Advice::DontDump => libc::MADV_DONTDUMP,
            Advice::PopulateWrite => libc::MADV_POPULATE_WRITE,
            Advice::DontNeed => libc::MADV_DONTNEED,
            Advice::Free => libc::MADV_FREE,
            Advice::PopulateRead => libc::MADV_POPULATE_READ,
            Advice::NoHugePage => libc::MADV_NOHUGEPAGE,
            Advice::Collapse => libc::MADV_COLLAPSE,
            Advice::PageOut => libc::MADV_PAGEOUT,
        }
    }
}

/// Gives `advice` on a range; a call that a signal interrupted is made again.
///
/// # Errors
/// What madvise(2) refuses.
///
/// # Safety
/// The range is the caller's own mapping, and the caller expects what the advice does to it.
#[inline]
pub unsafe fn advise(addr: usize, len: Bytes, advice: Advice) -> Result<(), OsError> {
    let at = ptr::with_exposed_provenance_mut(addr);
    loop {
        // SAFETY: passed on to the caller.
        let made = point("madvise").and_then(|()| unsafe {
            match libc::madvise(at, len.as_usize(), advice.number()) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        });
        let Err(source) = made else { return Ok(()) };
        if source.kind() != io::ErrorKind::Interrupted {
            return Err(refused(addr, len, advice, source));
        }
    }
}

#[cold]
fn refused(addr: usize, len: Bytes, advice: Advice, source: io::Error) -> OsError {
    OsError::new("madvise", format!("{addr:#x}, {len}, {advice:?}"), source)
}

/// Makes the pages of an armed range dirty, as a store to each would; false if one of them is not
/// there, and then some may be dirty and some not.
///
/// # Errors
/// What madvise(2) refuses.
///
/// # Safety
/// As [`advise`].
#[inline]
pub(crate) unsafe fn populate_armed(addr: usize, len: Bytes) -> Result<bool, OsError> {
    // SAFETY: passed on to the caller.
    match unsafe { advise(addr, len, Advice::PopulateWrite) } {
        Ok(()) => Ok(true),
        Err(error) if error.errno() == Some(libc::EFAULT) => Ok(false),
        Err(error) => Err(error),
    }
}

const THP: &str = "/sys/kernel/mm/transparent_hugepage";

/// The size of a transparent huge page.
///
/// # Errors
/// Why there are none: a kernel without them, or switched off.
pub fn transparent_huge_page() -> Result<PageSize, OsError> {
    let path = format!("{THP}/enabled");
    let read = |path: &str| {
        file::read_text(Path::new(path)).map_err(|source| OsError::new("read", path, source))
    };
    let enabled = read(&path)?;
    if enabled.contains("[never]") {
        return Err(OsError::new("read", path, io::Error::other("[never]; madvise is needed")));
    }
    let path = format!("{THP}/hpage_pmd_size");
    let text = read(&path)?;
    let size = text.trim().parse().ok().and_then(PageSize::new);
    size.ok_or_else(|| OsError::new("read", path, io::Error::other(format!("{text:?}"))))
}

/// Whether the kernel makes transparent huge pages of memory for which nobody asked.
#[must_use]
pub fn transparent_huge_pages_everywhere() -> bool {
    let enabled = file::read_text(Path::new(&format!("{THP}/enabled")));
    enabled.is_ok_and(|text| text.contains("[always]"))
}
