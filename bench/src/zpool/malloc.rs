//! [`Allocator`] names the allocators that the pool is compared with. [`ask`] measures a separate
//! process that keeps objects in one allocator.
//!
//! The program itself uses glibc's. Unit: bytes. Source: jemalloc(3), mimalloc's documentation,
//! malloc_trim(3).
//!
//! # Safety
//! A [`Block`] owns memory from one allocator, and gives it back to that allocator.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::slice;

use glebe::internal::sys::memory::vma;
use serde::{Deserialize, Serialize};
use serde_json::{to_value, Value};

use super::store::{replay, HeldBytes, Store};
use super::workload::Workload;
use crate::child::Child;
use crate::Outcome;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Allocator {
    Glibc,
    #[cfg(feature = "jemalloc")]
    Jemalloc,
    Mimalloc,
}

struct Block {
    at: NonNull<u8>,
    len: u32,
    of: Allocator,
}

impl Allocator {
    pub(super) const ALL: &[(Self, &str)] = &[
        (Self::Glibc, "glibc"),
        #[cfg(feature = "jemalloc")]
        (Self::Jemalloc, "jemalloc"),
        (Self::Mimalloc, "mimalloc"),
    ];

    /// Copies `bytes`, which must not be empty.
    #[inline]
    fn copy(self, bytes: &[u8]) -> Option<Block> {
        let len = bytes.len();
        // SAFETY: each function takes any size.
        let at = unsafe {
            match self {
                Self::Glibc => libc::malloc(len),
                #[cfg(feature = "jemalloc")]
                Self::Jemalloc => tikv_jemalloc_sys::malloc(len),
                Self::Mimalloc => libmimalloc_sys::mi_malloc(len),
            }
        };
        let at = NonNull::new(at.cast::<u8>())?;
        // SAFETY: `at` has room for `len` bytes, and is new, so that `bytes` are elsewhere.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), at.as_ptr(), len) };
        Some(Block { at, len: len as u32, of: self })
    }

    fn trim(self) {
        // SAFETY: only mallctl takes pointers, and these controls take no value.
        unsafe {
            match self {
                Self::Glibc => _ = libc::malloc_trim(0),
                #[cfg(feature = "jemalloc")]
                Self::Jemalloc => {
                    for name in [c"thread.tcache.flush", c"arena.4096.purge"] {
                        let (none, len) = (ptr::null_mut(), ptr::null_mut());
                        tikv_jemalloc_sys::mallctl(name.as_ptr(), none, len, none, 0);
                    }
                }
                Self::Mimalloc => libmimalloc_sys::mi_collect(true),
            }
        }
    }
}

impl Block {
    fn bytes(&self) -> &[u8] {
        // SAFETY: `copy` wrote `len` bytes there, and nobody writes them again.
        unsafe { slice::from_raw_parts(self.at.as_ptr(), self.len as usize) }
    }
}

impl Drop for Block {
    #[inline]
    fn drop(&mut self) {
        let at = self.at.as_ptr().cast::<c_void>();
        // SAFETY: this allocator gave the memory, and gets it back once.
        unsafe {
            match self.of {
                Allocator::Glibc => libc::free(at),
                #[cfg(feature = "jemalloc")]
                Allocator::Jemalloc => tikv_jemalloc_sys::free(at),
                Allocator::Mimalloc => libmimalloc_sys::mi_free(at),
            }
        }
    }
}

pub(super) struct Blocks {
    of: Allocator,
    blocks: Vec<Option<Block>>,
    resident_before: u64,
}

impl Blocks {
    pub(super) fn new(of: Allocator, numbers: usize) -> Self {
        Self { of, blocks: (0..numbers).map(|_| None).collect(), resident_before: 0 }
    }
}

impl Store for Blocks {
    #[inline]
    fn put(&mut self, nth: usize, bytes: &[u8]) -> Outcome {
        self.blocks[nth] = Some(self.of.copy(bytes).ok_or("out of memory")?);
        Ok(())
    }

    fn get(&mut self, nth: usize, to: &mut [u8]) -> Outcome<usize> {
        let bytes = self.blocks[nth].as_ref().map_or(&[][..], Block::bytes);
        to[..bytes.len()].copy_from_slice(bytes);
        Ok(bytes.len())
    }

    #[inline]
    fn remove(&mut self, nth: usize) -> Outcome {
        self.blocks[nth] = None;
        Ok(())
    }

    /// Allocates before it frees, as programs do.
    #[inline]
    fn replace(&mut self, nth: usize, bytes: &[u8]) -> Outcome {
        self.put(nth, bytes)
    }

    fn held(&mut self) -> Outcome<HeldBytes> {
        self.of.trim();
        let pages = resident()?.saturating_sub(self.resident_before) as f64;
        let lens = self.blocks.iter().flatten().map(|block| u64::from(block.len));
        Ok(HeldBytes { stored: lens.sum::<u64>() as f64, pages, metadata: 0.0 })
    }

    fn begin(&mut self) -> Outcome {
        // Gives back what loading the trace left in the heap.
        Allocator::Glibc.trim();
        self.resident_before = resident()?;
        Ok(())
    }
}

/// Returns resident bytes that belong to no file.
fn resident() -> Outcome<u64> {
    let mappings = vma::among(&(0..usize::MAX))?;
    let anonymous = mappings.iter().filter(|mapping| mapping.inode == 0);
    Ok(anonymous.map(|mapping| mapping.rss.get()).sum())
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Deletions {
    pub(super) allocator: Allocator,
    /// Replays one run of blocks in `nth`.
    pub(super) nth: usize,
    /// Deletes at random instead of by directories.
    pub(super) halves: bool,
}

pub(crate) fn inside(job: &str) -> Outcome<Value> {
    let job: Deletions = serde_json::from_str(job)?;
    let workload = Workload::of_trace(job.nth)?;
    let steps = if job.halves { &workload.halves } else { &workload.directories };
    let mut blocks = Blocks::new(job.allocator, workload.blocks);
    Ok(to_value(replay(&mut blocks, &workload, steps, false)?)?)
}

pub(super) fn ask(job: Deletions) -> Outcome<(Vec<HeldBytes>, u64)> {
    let child = Child::start("apart", &[&serde_json::to_string(&job)?])?;
    let answer = child.answer()?.ok_or("a child of this program was killed")?;
    Ok(serde_json::from_str(&answer)?)
}
