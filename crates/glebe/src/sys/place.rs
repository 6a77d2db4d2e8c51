//! Where mappings lie and what they may be used for: mappings moved, bits of mmap(2) read, and the
//! protection that a caller asks for.
//!
//! Lengths are bytes. A moved mapping keeps its pages, so that neighbours can be made of what was
//! had apart. Source: mmap(2), mremap(2), mprotect(2), fcntl(2).
//!
//! # Safety
//! What moves or changes a mapping is for its owner alone, and unsafe.
#![allow(unsafe_code)]

use std::ptr;

use crate::error::OsError;
use crate::sys::call::call;
use crate::sys::mmap;
use crate::units::{Bytes, PageSize};

/// Whether [`mmap::set_aside`] would be granted now.
///
/// # Errors
/// As there.
pub fn check_room(len: Bytes, align: PageSize) -> Result<(), OsError> {
    let start = mmap::set_aside(len, align)?;
    // SAFETY: set aside above, and nobody else knows of it.
    let _ = unsafe { mmap::unmap(start, len) };
    Ok(())
}

/// Moves a mapping over address space that was set aside.
///
/// # Errors
/// What mremap(2) refuses; then the mapping is where it was.
///
/// # Safety
/// Both ranges are the caller's own, the second holds nothing that is needed, and nobody refers to
/// the first by its address.
pub unsafe fn move_to(from: usize, len: Bytes, to: usize) -> Result<(), OsError> {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    let at = |addr| ptr::with_exposed_provenance_mut::<libc::c_void>(addr);
    let (old, new, bytes) = (at(from), at(to), len.as_usize());
    let subject = || format!("{from:#x}, {len}, {to:#x}");
    call("mremap", subject, || {
        // SAFETY: passed on to the caller.
        let moved = unsafe { libc::mremap(old, bytes, bytes, flags, new) };
        moved.expose_provenance() as isize
    })
}

/// Whether the kernel may have touched the target of a move that failed: not where a filter of
/// system calls, or an old kernel, knew none.
#[must_use]
pub fn was_tried(error: &OsError) -> bool {
    !matches!(error.errno(), Some(libc::EPERM | libc::ENOSYS))
}

/// Which uses of a mapping are allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protection {
    /// Loads.
    pub read: bool,
    /// Stores.
    pub write: bool,
    /// Instructions.
    pub execute: bool,
}

impl Protection {
    /// That of the bits `PROT_*`; `None` where one of them is no other.
    #[must_use]
    pub fn of_bits(bits: i32) -> Option<Self> {
        let (read, write, execute) = (libc::PROT_READ, libc::PROT_WRITE, libc::PROT_EXEC);
        let has = |bit: i32| bits & bit != 0;
        let known = bits & !(read | write | execute) == 0;
        known.then(|| Self { read: has(read), write: has(write), execute: has(execute) })
    }
}

/// What a caller of mmap(2) asked for by the bits `MAP_*`, as far as contiguous memory can be so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flags {
    /// Of no file.
    pub anonymous: bool,
    /// At the address given, or not at all.
    pub at_address: bool,
    /// Of the hugetlb pool of this size; `None` inside where none was named.
    pub hugetlb: Option<Option<PageSize>>,
}

impl Flags {
    /// Those of `bits`; the bits that cannot be as an error. `MAP_POPULATE`, `MAP_LOCKED` and
    /// `MAP_NORESERVE` change nothing. `MAP_SHARED` cannot be, since nobody inherits the memory.
    ///
    /// # Errors
    /// The bits that are refused or missing.
    pub fn of_bits(bits: i32) -> Result<Self, i32> {
        let sizes = libc::MAP_HUGE_MASK << libc::MAP_HUGE_SHIFT;
        let ignored = libc::MAP_POPULATE | libc::MAP_LOCKED | libc::MAP_NORESERVE;
        let asked = libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE | libc::MAP_HUGETLB;
        let mut rest = bits & !(ignored | asked | libc::MAP_PRIVATE);
        let hugetlb = bits & libc::MAP_HUGETLB != 0;
        if hugetlb {
            rest &= !sizes;
        }
        if rest != 0 {
            return Err(rest);
        }
        if bits & libc::MAP_PRIVATE == 0 {
            return Err(libc::MAP_PRIVATE);
        }
        let shift = (bits >> libc::MAP_HUGE_SHIFT) & libc::MAP_HUGE_MASK;
        let size = (shift != 0).then(|| PageSize::new(1 << shift)).flatten();
        Ok(Self {
            anonymous: bits & libc::MAP_ANONYMOUS != 0,
            at_address: bits & libc::MAP_FIXED_NOREPLACE != 0,
            hugetlb: hugetlb.then_some(size),
        })
    }
}

/// Changes what a mapping may be used for.
///
/// # Errors
/// What mprotect(2) refuses: a use that this process cannot have of the memory. By itself every
/// source gives every use; a process that had itself denied it (`PR_SET_MDWE`, Linux 6.3), or that
/// a security module or a filter of system calls denies it, gets no instructions from any.
///
/// # Safety
/// The range is the caller's own mapping, and nobody uses it in a way that is forbidden from now
/// on.
pub unsafe fn protect(addr: usize, len: Bytes, to: Protection) -> Result<(), OsError> {
    let bits = [(to.read, libc::PROT_READ), (to.write, libc::PROT_WRITE)];
    let bits = bits.into_iter().chain([(to.execute, libc::PROT_EXEC)]);
    let protection = bits.filter(|(is, _)| *is).fold(libc::PROT_NONE, |all, (_, bit)| all | bit);
    // SAFETY: passed on to the caller.
    unsafe { mmap::protect(addr, len, protection) }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::sys::mmap::{map, map_file, set_aside, set_aside_at, unmap, Backing};
    use crate::sys::page_size;

    #[test]
    fn a_mapping_is_moved_with_its_bytes() {
        let (page, align) = (page_size().bytes(), PageSize::new(4 << 20).unwrap());
        let from = map(page, Backing::Ordinary).unwrap();
        let to = set_aside(page, align).unwrap();
        assert_eq!(to % align.bytes().as_usize(), 0);
        assert!(set_aside_at(to, page).is_err(), "taken");
        // SAFETY: both were mapped above, and are this test's alone.
        unsafe {
            ptr::with_exposed_provenance_mut::<u8>(from).write_volatile(7);
            move_to(from, page, to).unwrap();
            assert_eq!(ptr::with_exposed_provenance::<u8>(to).read_volatile(), 7);
            unmap(to, page).unwrap();
        }
        set_aside_at(to, page).unwrap();
        // SAFETY: as above.
        unsafe { unmap(to, page).unwrap() };
    }

    #[test]
    fn bits_are_read() {
        let all = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        assert!(Protection::of_bits(all).is_some_and(|is| is.read && is.write && is.execute));
        assert!(Protection::of_bits(0).is_some_and(|is| !is.read && !is.write));
        assert_eq!(Protection::of_bits(1 << 20), None);
        let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let flags = Flags::of_bits(anonymous | libc::MAP_POPULATE).unwrap();
        assert!(flags.anonymous && !flags.at_address && flags.hugetlb.is_none());
        let huge = anonymous | libc::MAP_HUGETLB | libc::MAP_HUGE_2MB;
        assert_eq!(Flags::of_bits(huge).unwrap().hugetlb, Some(PageSize::new(2 << 20)));
        assert_eq!(Flags::of_bits(libc::MAP_SHARED), Err(libc::MAP_SHARED));
        assert_eq!(Flags::of_bits(libc::MAP_ANONYMOUS), Err(libc::MAP_PRIVATE));
        assert_eq!(Flags::of_bits(anonymous | libc::MAP_FIXED), Err(libc::MAP_FIXED));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        assert!(set_aside(Bytes::new(u64::MAX), page_size()).is_err());
        assert!(set_aside_at(1, page_size().bytes()).is_err());
        let file = File::open("/dev/null").unwrap();
        // SAFETY: at an address of the kernel's choice.
        let mapped = unsafe { map_file(&file, Bytes::new(u64::MAX), page_size().bytes(), None) };
        assert!(mapped.is_err());
    }
}
