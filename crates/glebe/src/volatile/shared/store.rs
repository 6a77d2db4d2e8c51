//! [`Store`]: where the data lies: in the file behind what is said of it, or in memory of the
//! caller's that other processes share.
//!
//! Offsets and lengths are bytes from the start of the data, whole pages. Of the caller's memory
//! there is no descriptor: it is freed by MADV_REMOVE, in the file that it is of, for every process
//! that maps it, and looked at by mincore(2), by which a page that was swapped out is not there.
//!
//! # Safety
//! Memory of the caller's stays mapped as long as this lives, by the caller's word; who may lose
//! its bytes is for the words of the ledger to say.
#![allow(unsafe_code)]

use crate::error::OsError;
use crate::sys::madvise::{advise, Advice};
use crate::sys::memory_file::MemoryFile;
use crate::sys::{mincore, page_size};
use crate::units::{Bytes, Pages};

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(super) enum Store {
    /// In the file from this offset on.
    File(u64),
    /// In memory from this address on.
    Memory(usize),
}

impl Store {
    /// Gives a part memory; what has some keeps it.
    pub(super) fn allocate(self, file: &MemoryFile, at: u64, len: u64) -> Result<(), OsError> {
        match self {
            Self::File(start) => file.allocate(start + at, len),
            Self::Memory(addr) => {
                // SAFETY: the caller's memory, of which no byte changes.
                unsafe { advise(addr + at as usize, Bytes::new(len), Advice::PopulateWrite) }
            }
        }
    }

    /// Takes the memory of a part away.
    pub(super) fn punch(self, file: &MemoryFile, at: u64, len: u64) -> Result<(), OsError> {
        match self {
            Self::File(start) => file.punch(start + at, len),
            Self::Memory(addr) => {
                // SAFETY: the caller's memory, of which nobody relies on these bytes.
                unsafe { advise(addr + at as usize, Bytes::new(len), Advice::Remove) }
            }
        }
    }

    /// The stretches of a part that hold data, from where to where.
    pub(super) fn data(
        self,
        file: &MemoryFile,
        at: u64,
        len: u64,
    ) -> Result<Vec<(u64, u64)>, OsError> {
        let (mut found, mut from, end) = (Vec::new(), at, at + len);
        match self {
            Self::File(start) => {
                while let Some((first, stop)) = file.next_data(start + from, start + end)? {
                    found.push((first - start, stop - start));
                    from = stop - start;
                }
            }
            Self::Memory(addr) => {
                let bytes = |pages: u64| at + Pages::new(pages).bytes(page_size()).get();
                let runs = mincore::there(addr + at as usize, Bytes::new(len))?;
                found.extend(runs.iter().map(|run| (bytes(run.start()), bytes(run.end()))));
            }
        }
        Ok(found)
    }
}
