//! [`Window`] is a range of addresses where memory comes and goes.
//!
//! Addresses without memory read as zero, so a late reader finds zeros, not SIGSEGV or another
//! owner's bytes. For every reader, the kernel replaces memory by zeros in one step. Offsets and
//! lengths are bytes, in whole pages. The caller orders the moves.
//!
//! # Safety
//! From `mmap` to the drop, nothing else is mapped in the range, except in the hole of a failed
//! move until `mend` fills it. A forked child lacks the range and unmaps nothing.
#![allow(unsafe_code)]

use super::Mapping;
use crate::error::OsError;
use crate::internal::sys::memory::commit;
use crate::internal::sys::memory::madvise::{advise, Advice};
use crate::internal::sys::memory::mmap::{cut, make_readable, set_aside_at, unmap};
use crate::internal::sys::memory::own::Own;
use crate::internal::sys::memory::place;
use crate::internal::sys::processes::fork::ForkGuard;
use crate::units::{Bytes, PageSize};

#[derive(Debug)]
pub struct Window {
    addr: usize,
    len: Bytes,
    locks: bool,
    guard: ForkGuard,
    /// Dropped before the range is unmapped.
    own: Option<Own>,
}

impl Window {
    pub fn reserve(len: Bytes, align: PageSize) -> Result<Self, OsError> {
        let whole = len.checked_add(align.bytes()).unwrap_or(len);
        let commit::ReservedRange { addr: at, locks } = commit::reserve(whole, true)?;
        // SAFETY: nobody else knows the new range.
        let addr = unsafe { cut(at, whole, len, align) };
        let guard = ForkGuard::new();
        let own = Own::note(addr..addr + len.as_usize());
        own.is_lost_by_fork(&guard);
        let window = Self { addr, len, locks, guard, own: Some(own) };
        // SAFETY: the range is new, and the advice changes no bytes.
        unsafe { advise(addr, len, Advice::DontFork)? };
        Ok(window)
    }

    pub fn len(&self) -> Bytes {
        self.len
    }

    /// Moves a mapping to `offset`, a multiple of its page size, where the window has no memory.
    /// Dropping the result leaves the memory in the window. If mremap(2) fails, the memory is
    /// freed, except pages that a second failure leaves in the window.
    pub fn take_in(&self, offset: Bytes, mapping: Mapping) -> Result<Mapping, OsError> {
        let len = mapping.len;
        let to = self.checked(offset, len);
        let stretches = mapping.as_stretches(0);
        for (nth, stretch) in stretches.iter().enumerate() {
            let (from, at) = (mapping.addr + stretch.offset.as_usize(), stretch.offset.as_usize());
            // SAFETY: the owner gives up the mapping, and the window has no memory at the target.
            if let Err(error) = unsafe { place::move_to(from, stretch.len, to + at) } {
                self.mend(to + at, stretch.len);
                if nth > 0 {
                    let _ = self.vacate(offset, stretch.offset);
                }
                mapping.unmap_but(&stretches[..nth]);
                return Err(error);
            }
        }
        let mut here = Mapping::owned(to, len, mapping.page, None);
        (here.in_child, here.guard) = (mapping.in_child, mapping.guard);
        (here.is_borrowed, here.in_window) = (true, true);
        here.seams.clone_from(&mapping.seams);
        here.bricks.clone_from(&mapping.bricks);
        mapping.unmap_but(&stretches);
        Ok(here)
    }

    /// Fills the hole that a failed mremap(2) may leave at its target.
    fn mend(&self, at: usize, len: Bytes) {
        if set_aside_at(at, len).is_ok() {
            // SAFETY: the addresses were just mapped as part of the window.
            unsafe {
                let _ = make_readable(at, len, true);
                let _ = advise(at, len, Advice::DontFork);
            }
        }
    }

    /// Frees the memory of a range, which then reads as zero. An error leaves the memory there.
    pub fn vacate(&self, offset: Bytes, len: Bytes) -> Result<(), OsError> {
        let at = self.checked(offset, len);
        // SAFETY: `checked` found the range in the window; the caller knows that nobody writes
        // there.
        unsafe {
            commit::vacate(at, len, self.locks)?;
            // An error does no harm, because a child then gets zeros.
            let _ = advise(at, len, Advice::DontFork);
        }
        Ok(())
    }

    pub(super) fn checked(&self, offset: Bytes, len: Bytes) -> usize {
        let end = offset.checked_add(len);
        assert!(end.is_some_and(|end| end <= self.len), "{len} at {offset} of {}", self.len);
        assert!(!self.guard.is_child(), "a window of a parent's, used in a child");
        self.addr + offset.as_usize()
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        if !self.guard.is_child() {
            self.own = None;
            // SAFETY: nothing refers to the range after the drop.
            let _ = unsafe { unmap(self.addr, self.len) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::internal::mapping::Visibility;
    use crate::internal::sys::page_size;
    use crate::units::Pages;

    fn byte_at(addr: usize) -> u8 {
        // SAFETY: callers pass addresses of a live window.
        unsafe { std::ptr::with_exposed_provenance::<u8>(addr).read_volatile() }
    }

    #[test]
    fn memory_comes_and_goes_and_zeros_are_read_where_there_is_none() {
        let (page, align) = (page_size(), PageSize::new(1 << 30).unwrap());
        let bytes = |pages: u64| Pages::new(pages).bytes(page);
        let window = Window::reserve(bytes(64), align).unwrap();
        assert_eq!(window.addr % align.bytes().as_usize(), 0);
        let at = |nth: u64| byte_at(window.addr + bytes(nth).as_usize());
        assert_eq!((at(0), at(63)), (0, 0));
        for round in 1..=3_u8 {
            let parts: Vec<Mapping> = (0..2)
                .map(|_| Mapping::aligned(bytes(4), page, Visibility::PRIVATE).unwrap())
                .collect();
            parts.iter().for_each(|part| part.write(bytes(3), &[round]));
            let two = Mapping::joined(parts, page).unwrap();
            let inside = window.take_in(bytes(8), two).unwrap();
            assert_eq!((at(7), at(11), at(15), at(16)), (0, round, round, 0));
            drop(inside); // leaves the memory there
            assert_eq!(at(11), round);
            window.vacate(bytes(10), bytes(2)).unwrap();
            assert_eq!((at(11), at(15)), (0, round));
            window.vacate(bytes(8), bytes(8)).unwrap();
            assert_eq!(at(15), 0);
        }
    }

    #[test]
    #[should_panic(expected = "may shrink")]
    fn what_is_in_a_window_is_not_written_by_offset() {
        let page = page_size().bytes();
        let window = Window::reserve(page, page_size()).unwrap();
        let mapping = Mapping::aligned(page, page_size(), Visibility::PRIVATE).unwrap();
        window.take_in(Bytes::ZERO, mapping).unwrap().write(Bytes::ZERO, &[1]);
    }
}
