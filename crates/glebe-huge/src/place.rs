//! [`Place`] is a range of addresses that files of a lease fill, side by side.
//!
//! # Safety
//! The range is the place's own from the reservation on, or was given by the program, which asked
//! for `MAP_FIXED` there.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::AsRawFd;

use glebe_os::internal::sys::memory::direct::{
    mmap, mprotect, munmap, MAP_ANONYMOUS, MAP_FIXED, MAP_FIXED_NOREPLACE, MAP_NORESERVE,
    MAP_PRIVATE, MAP_SHARED, PROT_NONE,
};

const RESERVED: i32 = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

/// Where a mapping shall be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spot {
    /// There, in place of what is mapped.
    Fixed(usize),
    /// There, if nothing is mapped.
    Unused(usize),
    /// There, if nothing is mapped, else anywhere.
    Hint(usize),
    Anywhere,
}

#[derive(Debug)]
pub(crate) struct Place {
    base: usize,
    len: usize,
    /// The program gave the range, so nobody else may get it.
    is_given: bool,
    is_kept: bool,
}

impl Place {
    /// Reserves addresses. A fixed spot loses what is mapped there.
    ///
    /// # Errors
    /// The error number of mmap(2).
    pub(crate) fn reserve(spot: Spot, len: usize, align: usize) -> Result<Self, i32> {
        let base = match spot {
            Spot::Fixed(at) => reserved(at, len, MAP_FIXED)?,
            Spot::Unused(at) => reserved(at, len, MAP_FIXED_NOREPLACE)?,
            Spot::Hint(at) => match reserved(at, len, MAP_FIXED_NOREPLACE) {
                Ok(base) => base,
                Err(_) => anywhere(len, align)?,
            },
            Spot::Anywhere => anywhere(len, align)?,
        };
        let is_given = matches!(spot, Spot::Fixed(_));
        Ok(Self { base, len, is_given, is_kept: false })
    }

    pub(crate) fn base(&self) -> usize {
        self.base
    }

    /// Maps the beginning of a file at an offset. Returns the bytes that fit.
    ///
    /// # Errors
    /// The error number of mmap(2).
    pub(crate) fn put(
        &self,
        offset: usize,
        file: &File,
        len: usize,
        prot: i32,
        flags: i32,
    ) -> Result<usize, i32> {
        let len = len.min(self.len.saturating_sub(offset));
        if len > 0 {
            let (at, flags) = (self.base + offset, flags | MAP_SHARED | MAP_FIXED);
            // SAFETY: the range is in the place.
            unsafe { mmap(at, len, prot, flags, file.as_raw_fd(), 0) }?;
        }
        Ok(len)
    }

    /// Leaves ordinary memory there.
    ///
    /// # Errors
    /// The error number of mprotect(2).
    pub(crate) fn fill(self, prot: i32) -> Result<(), i32> {
        // SAFETY: the range is the place's.
        unsafe { mprotect(self.base, self.len, prot) }?;
        self.keep();
        Ok(())
    }

    /// Leaves the mappings there.
    pub(crate) fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.is_kept {
            return;
        }
        let _ = match self.is_given {
            true => reserved(self.base, self.len, MAP_FIXED),
            // SAFETY: the range is the place's.
            false => unsafe { munmap(self.base, self.len) },
        };
    }
}

fn reserved(at: usize, len: usize, flags: i32) -> Result<usize, i32> {
    // SAFETY: the program gave the range, or nothing is there.
    unsafe { mmap(at, len, PROT_NONE, RESERVED | flags, -1, 0) }
}

fn anywhere(len: usize, align: usize) -> Result<usize, i32> {
    let whole = len.saturating_add(align);
    let got = reserved(0, whole, 0)?;
    let base = got.next_multiple_of(align);
    for (from, to) in [(got, base), (base + len, got + whole)] {
        if from < to {
            // SAFETY: the range was just reserved, and is not part of the place.
            let _ = unsafe { munmap(from, to - from) };
        }
    }
    Ok(base)
}
