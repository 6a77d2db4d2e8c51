//! [`Allocator`]: allocators of programs, to compare with, each through its own functions.
//!
//! None of them is this program's global allocator, but glibc's, which everything else here uses
//! too. Source: jemalloc(3), mimalloc's documentation, malloc_trim(3).
//!
//! # Safety
//! A [`Block`] owns what one allocator gave until it is given back to the same one.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::slice;

use serde::{Deserialize, Serialize};

/// Whose malloc.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Allocator {
    /// The C library's.
    Glibc,
    /// Of FreeBSD and Facebook.
    Jemalloc,
    /// Of Microsoft.
    Mimalloc,
}

/// Bytes in memory of an allocator.
#[derive(Debug)]
pub(super) struct Block {
    at: NonNull<u8>,
    len: u32,
    of: Allocator,
}

impl Allocator {
    pub(super) const ALL: [Self; 3] = [Self::Glibc, Self::Jemalloc, Self::Mimalloc];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Glibc => "glibc",
            Self::Jemalloc => "jemalloc",
            Self::Mimalloc => "mimalloc",
        }
    }

    /// A copy of `bytes`, of which there is at least one; `None` without memory.
    #[inline]
    pub(super) fn copy(self, bytes: &[u8]) -> Option<Block> {
        let len = bytes.len();
        // SAFETY: each takes any size.
        let at = unsafe {
            match self {
                Self::Glibc => libc::malloc(len),
                Self::Jemalloc => tikv_jemalloc_sys::malloc(len),
                Self::Mimalloc => libmimalloc_sys::mi_malloc(len),
            }
        };
        let at = NonNull::new(at.cast::<u8>())?;
        // SAFETY: `at` has room for `len` bytes, and is new, so that `bytes` are elsewhere.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), at.as_ptr(), len) };
        Some(Block { at, len: len as u32, of: self })
    }

    /// Gives back to the kernel what the allocator is willing to.
    pub(super) fn trim(self) {
        // SAFETY: none takes a pointer, but mallctl the name of a control that takes no value.
        unsafe {
            match self {
                Self::Glibc => {
                    libc::malloc_trim(0);
                }
                Self::Jemalloc => {
                    // All arenas, by the number that stands for them.
                    let (none, name) = (ptr::null_mut(), c"arena.4096.purge");
                    let tcache = c"thread.tcache.flush";
                    for name in [tcache, name] {
                        let none_len = ptr::null_mut();
                        tikv_jemalloc_sys::mallctl(name.as_ptr(), none, none_len, none, 0);
                    }
                }
                Self::Mimalloc => libmimalloc_sys::mi_collect(true),
            }
        }
    }
}

impl Block {
    /// The copy.
    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: so many bytes were written there, and nobody writes them again.
        unsafe { slice::from_raw_parts(self.at.as_ptr(), self.len as usize) }
    }
}

impl Drop for Block {
    #[inline]
    fn drop(&mut self) {
        let at = self.at.as_ptr().cast::<c_void>();
        // SAFETY: it came from this allocator, and is given back once.
        unsafe {
            match self.of {
                Allocator::Glibc => libc::free(at),
                Allocator::Jemalloc => tikv_jemalloc_sys::free(at),
                Allocator::Mimalloc => libmimalloc_sys::mi_free(at),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_gives_memory_of_its_own_and_takes_it_back() {
        for allocator in Allocator::ALL {
            let blocks: Vec<_> = (1..200_u8)
                .map(|n| allocator.copy(&vec![n; 20 * usize::from(n)]).unwrap())
                .collect();
            for (block, n) in blocks.iter().zip(1_u8..) {
                assert_eq!(block.bytes(), vec![n; 20 * usize::from(n)]);
            }
            drop(blocks);
            allocator.trim();
        }
    }
}
