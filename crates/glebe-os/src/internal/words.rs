//! [`Words`] is a long table of words that holds memory only where it was populated.
//!
//! Words are zero at first and after a discard.
#![allow(unsafe_code)]

use std::ops::Deref;

use crate::error::OsError;
use crate::internal::mapping::Reserved;
use crate::internal::sync::MappedWord;
use crate::units::Bytes;

const WORD: u64 = size_of::<MappedWord>() as u64;

#[derive(Debug)]
pub struct Words {
    mapping: Reserved,
    len: usize,
}

impl Words {
    pub fn new(len: usize) -> Result<Self, OsError> {
        let bytes = (len.max(1) as u64).saturating_mul(WORD);
        Ok(Self { mapping: Reserved::new(Bytes::new(bytes), true)?, len })
    }

    /// `index` counts pages of `page` bytes.
    pub fn populate(&self, index: usize, page: Bytes) -> Result<(), OsError> {
        self.mapping.populate(Bytes::new(index as u64 * page.get()), page)
    }

    pub fn come_as_written(&self) -> Result<(), OsError> {
        self.mapping.commit_all()
    }

    /// Makes a forked child find zeros here.
    pub fn hide(&self) -> Result<(), OsError> {
        self.mapping.wipe_on_fork()
    }

    pub fn lock_in_memory(&self) {
        let _ = self.mapping.lock_in_memory();
    }

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
        unsafe { std::slice::from_raw_parts(self.mapping.as_ptr().cast(), self.len) }
    }
}
