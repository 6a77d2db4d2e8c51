//! [`Store`] says where the data is: at an offset in the file, or in the caller's shared memory.
//!
//! Unit: bytes of the data, whole pages. MADV_REMOVE frees memory for every process that maps it.
//! [`Store::data`] misses swapped-out pages of [`Store::Memory`], as mincore(2) does.
//!
//! # Safety
//! The caller of `SharedOptions::over` keeps its memory mapped while the store exists. A granule's
//! state word says whether its bytes may be lost.
#![allow(unsafe_code)]

use glebe_os::error::OsError;
use glebe_os::internal::sys::memory::madvise::{advise, Advice};
use glebe_os::internal::sys::memory::memory_file::MemoryFile;
use glebe_os::internal::sys::memory::mincore;
use glebe_os::internal::sys::page_size;
use glebe_os::units::{Bytes, Pages};

#[derive(Clone, Copy, Debug)]
pub(super) enum Store {
    File(u64),
    Memory(usize),
}

impl Store {
    pub(super) fn allocate(self, file: &MemoryFile, at: u64, len: u64) -> Result<(), OsError> {
        match self {
            Self::File(start) => file.allocate(start + at, len),
            Self::Memory(addr) => {
                // SAFETY: in the caller's memory; no byte changes.
                unsafe { advise(addr + at as usize, Bytes::new(len), Advice::PopulateWrite) }
            }
        }
    }

    pub(super) fn punch(self, file: &MemoryFile, at: u64, len: u64) -> Result<(), OsError> {
        match self {
            Self::File(start) => file.punch(start + at, len),
            Self::Memory(addr) => {
                // SAFETY: in the caller's memory; the words allow the loss.
                unsafe { advise(addr + at as usize, Bytes::new(len), Advice::Remove) }
            }
        }
    }

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
