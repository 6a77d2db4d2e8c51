//! [`move_to`] moves mappings; [`Flags`] parses bits of mmap(2).
//!
//! Source: mremap(2).
#![allow(unsafe_code)]

use std::ptr;

use crate::error::OsError;
use crate::internal::sys::call::call;
use crate::internal::sys::memory::mmap;
use crate::units::{Bytes, PageSize};

pub fn check_room(len: Bytes, align: PageSize) -> Result<(), OsError> {
    let start = mmap::set_aside(len, align)?;
    // SAFETY: nothing else uses the new range.
    let _ = unsafe { mmap::unmap(start, len) };
    Ok(())
}

/// Moves a mapping with its pages. On an error the mapping stays.
///
/// # Safety
/// The caller owns both ranges. Nothing needs the bytes at `to`, and no reference to bytes at
/// `from` exists.
pub unsafe fn move_to(from: usize, len: Bytes, to: usize) -> Result<(), OsError> {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    let at = |addr| ptr::with_exposed_provenance_mut::<libc::c_void>(addr);
    let (old, new, bytes) = (at(from), at(to), len.as_usize());
    let subject = || format!("{from:#x}, {len}, {to:#x}");
    call("mremap", subject, || {
        // SAFETY: the caller keeps the contract.
        let moved = unsafe { libc::mremap(old, bytes, bytes, flags, new) };
        moved.expose_provenance() as isize
    })
}

/// Returns false if a failed move cannot have changed its target.
#[must_use]
pub fn was_tried(error: &OsError) -> bool {
    !matches!(error.errno(), Some(libc::EPERM | libc::ENOSYS))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protection {
    pub read: bool,
    pub write: bool,
    pub execute: bool,
}

impl Protection {
    #[must_use]
    pub fn of_bits(bits: i32) -> Option<Self> {
        let (read, write, execute) = (libc::PROT_READ, libc::PROT_WRITE, libc::PROT_EXEC);
        let has = |bit: i32| bits & bit != 0;
        let known = bits & !(read | write | execute) == 0;
        known.then(|| Self { read: has(read), write: has(write), execute: has(execute) })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flags {
    pub anonymous: bool,
    /// True if the mapping must be at the given address.
    pub at_address: bool,
    /// Page size of the hugetlb pool; `Some(None)` if no size was given.
    pub hugetlb: Option<Option<PageSize>>,
}

impl Flags {
    /// Parses the flags of mmap(2). Returns refused or missing bits as the error. `MAP_SHARED` is
    /// refused, because children do not inherit the memory.
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

/// `PR_SET_MDWE` (Linux 6.3), a security module or a filter may forbid execution.
///
/// # Safety
/// The caller owns the mapping, and nobody uses it in a way that is now forbidden.
pub unsafe fn protect(addr: usize, len: Bytes, to: Protection) -> Result<(), OsError> {
    let bits = [(to.read, libc::PROT_READ), (to.write, libc::PROT_WRITE)];
    let bits = bits.into_iter().chain([(to.execute, libc::PROT_EXEC)]);
    let protection = bits.filter(|(is, _)| *is).fold(libc::PROT_NONE, |all, (_, bit)| all | bit);
    // SAFETY: the caller keeps the contract.
    unsafe { mmap::protect(addr, len, protection) }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::internal::sys::memory::mmap::{
        map, map_file, set_aside, set_aside_at, unmap, Backing,
    };
    use crate::internal::sys::page_size;

    #[test]
    fn a_mapping_is_moved_with_its_bytes() {
        let (page, align) = (page_size().bytes(), PageSize::new(4 << 20).unwrap());
        let from = map(page, Backing::Ordinary).unwrap();
        let to = set_aside(page, align).unwrap();
        assert_eq!(to % align.bytes().as_usize(), 0);
        assert!(set_aside_at(to, page).is_err(), "taken");
        // SAFETY: both ranges are this test's.
        unsafe {
            ptr::with_exposed_provenance_mut::<u8>(from).write_volatile(7);
            move_to(from, page, to).unwrap();
            assert_eq!(ptr::with_exposed_provenance::<u8>(to).read_volatile(), 7);
            unmap(to, page).unwrap();
        }
        set_aside_at(to, page).unwrap();
        // SAFETY: the range is this test's.
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
        // SAFETY: the kernel chooses an unused address.
        let mapped = map_file(&file, Bytes::new(u64::MAX), page_size().bytes());
        assert!(mapped.is_err());
    }
}
