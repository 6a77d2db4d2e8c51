//! [`Words`]: a long table of words in its own address space, with pages only where it was
//! populated.
//!
//! Words start as zero, and become zero when their page is given back. The owner tracks and charges
//! pages.
//!
//! # Safety
//! The mapping lives as long as the table. It is lent only as atomics; zeros are valid atomics.
#![allow(unsafe_code)]

use std::ops::Deref;

use crate::error::OsError;
use crate::internal::mapping::Reserved;
use crate::internal::sync::MappedWord;
use crate::units::Bytes;

const WORD: u64 = size_of::<MappedWord>() as u64;

/// A table of words that holds memory only where it is populated.
#[derive(Debug)]
pub struct Words {
    mapping: Reserved,
    len: usize,
}

impl Words {
    /// Reserves addresses for `len` words.
    ///
    /// # Errors
    /// If the kernel refuses them.
    pub fn new(len: usize) -> Result<Self, OsError> {
        let bytes = (len.max(1) as u64).saturating_mul(WORD);
        Ok(Self { mapping: Reserved::new(Bytes::new(bytes), true)?, len })
    }

    /// Makes a page of words present. `index` counts pages of `page` bytes.
    pub fn populate(&self, index: usize, page: Bytes) -> Result<(), OsError> {
        self.mapping.populate(Bytes::new(index as u64 * page.get()), page)
    }

    /// Lets the kernel add pages when words are written.
    pub fn come_as_written(&self) -> Result<(), OsError> {
        self.mapping.commit_all()
    }

    /// Makes a forked child find zeros here. A core dump never has these words.
    pub fn hide(&self) -> Result<(), OsError> {
        self.mapping.wipe_on_fork()
    }

    /// Keeps present words out of swap, if the limit on locked memory allows it.
    pub fn lock_in_memory(&self) {
        let _ = self.mapping.lock_in_memory();
    }

    /// Gives a page back. Its words become zero.
    pub fn discard(&self, index: usize, page: Bytes) -> Result<(), OsError> {
        // SAFETY: the bytes are lent only as atomics.
        unsafe { self.mapping.give_back(Bytes::new(index as u64 * page.get()), page) }
    }
}

impl Deref for Words {
    type Target = [MappedWord];

    #[inline]
    fn deref(&self) -> &[MappedWord] {
        // SAFETY: `len` words are mapped, readable and aligned; any bits are a valid atomic.
        // Callers write only where they populated.
        unsafe { std::slice::from_raw_parts(self.mapping.as_ptr().cast(), self.len) }
    }
}
