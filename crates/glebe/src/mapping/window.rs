//! [`Window`]: addresses into which memory is moved, and from which it goes again.
//!
//! Owns the range from `mmap` to its drop. Where no memory is, the range reads as zero and costs
//! none: a reader that comes late, or was stopped in the middle of a copy, finds zeros instead of
//! SIGSEGV or somebody else's bytes. The kernel puts the one in the place of the other at once,
//! for every reader either before or after. Offsets and lengths are bytes, whole pages of the
//! memory there. No lock: who moves what in and out is the caller's to order. Cost: one system
//! call for each mapping that is moved in, two or three for each range that goes.
//!
//! # Safety
//! Nothing else is mapped in the range as long as this lives: each change of it is made by one
//! system call that leaves no hole. In a forked child, which has none of it, nothing is unmapped.
#![allow(unsafe_code)]

use super::Mapping;
use crate::error::OsError;
use crate::sys::commit;
use crate::sys::fork::ForkGuard;
use crate::sys::madvise::{advise, Advice};
use crate::sys::mmap::{cut, make_readable, set_aside_at, unmap};
use crate::sys::own::Own;
use crate::sys::place;
use crate::units::{Bytes, PageSize};

/// See the module.
#[derive(Debug)]
pub(crate) struct Window {
    addr: usize,
    len: Bytes,
    /// Whether the process locks what it maps.
    locks: bool,
    guard: ForkGuard,
    /// Until the addresses can be somebody else's.
    own: Option<Own>,
}

impl Window {
    /// Reserves `len` at a multiple of `align`, without memory.
    ///
    /// # Errors
    /// What mmap(2) refuses: a limit on addresses.
    pub(crate) fn reserve(len: Bytes, align: PageSize) -> Result<Self, OsError> {
        let whole = len.checked_add(align.bytes()).unwrap_or(len);
        let commit::Addresses { addr: at, locks } = commit::reserve(whole, true)?;
        // SAFETY: reserved just now, and nobody knows of it.
        let addr = unsafe { cut(at, whole, len, align) };
        let guard = ForkGuard::new();
        let own = Own::note(addr..addr + len.as_usize());
        own.is_lost_by_fork(&guard);
        let window = Self { addr, len, locks, guard, own: Some(own) };
        // SAFETY: reserved just now; it says who else sees the bytes and changes none.
        unsafe { advise(addr, len, Advice::DontFork)? };
        Ok(window)
    }

    /// Bytes of addresses.
    pub(crate) fn len(&self) -> Bytes {
        self.len
    }

    /// Moves a mapping to `offset`, a multiple of its page where no memory is. It keeps its pages;
    /// the addresses stay the window's, which unmaps them.
    ///
    /// # Errors
    /// What mremap(2) refuses: too many mappings. Then the mapping is gone, its pages are given
    /// back, and the window is as it was.
    pub(crate) fn take_in(&self, offset: Bytes, mapping: Mapping) -> Result<Mapping, OsError> {
        let len = mapping.len;
        let to = self.checked(offset, len);
        let stretches = mapping.as_stretches(0);
        for (nth, stretch) in stretches.iter().enumerate() {
            let (from, at) = (mapping.addr + stretch.offset.as_usize(), stretch.offset.as_usize());
            // SAFETY: the mapping is given up by its owner, and no memory is at the target.
            if let Err(error) = unsafe { place::move_to(from, stretch.len, to + at) } {
                self.mend(to + at, stretch.len);
                if nth > 0 {
                    // Where that is refused too, the pages stay until others come or all ends.
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
        mapping.unmap_but(&stretches);
        Ok(here)
    }

    /// Reserves addresses again that a failed move may have left empty. The kernel looks at its
    /// limits before it unmaps the target, so they mostly are as they were, and this is refused.
    fn mend(&self, at: usize, len: Bytes) {
        if set_aside_at(at, len).is_ok() {
            // SAFETY: part of the window, set aside just now.
            unsafe {
                let _ = make_readable(at, len, true);
                let _ = advise(at, len, Advice::DontFork);
            }
        }
    }

    /// Gives the memory of a range back to the kernel; from then on it reads as zero.
    ///
    /// # Errors
    /// What mmap(2) refuses: too many mappings. Then the memory is as it was.
    pub(crate) fn vacate(&self, offset: Bytes, len: Bytes) -> Result<(), OsError> {
        let at = self.checked(offset, len);
        // SAFETY: within the window; the caller has seen the end of all who write there.
        unsafe {
            commit::vacate(at, len, self.locks)?;
            // A child that finds zeros there does no harm.
            let _ = advise(at, len, Advice::DontFork);
        }
        Ok(())
    }

    fn checked(&self, offset: Bytes, len: Bytes) -> usize {
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
            // SAFETY: nothing refers to what is mapped there once its owner is dropped. What the
            // kernel refuses is made up for by the next mapping.
            let _ = unsafe { unmap(self.addr, self.len) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::Visibility;
    use crate::sys::page_size;
    use crate::units::Pages;

    fn byte_at(addr: usize) -> u8 {
        // SAFETY: callers pass addresses of a window, which can be read as long as it lives.
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
