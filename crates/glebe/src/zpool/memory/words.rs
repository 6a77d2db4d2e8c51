//! [`Words`]: a long table of words in address space of its own, which holds pages only where it
//! was populated. Words begin as zero, and are zero again once their page was given back.
//!
//! Not done here: which pages are populated, and that they are counted.
//!
//! # Safety
//! The mapping lives as long as the table and is lent as atomics only; zeros are such.
#![allow(unsafe_code)]

use std::ops::Deref;

use crate::error::OsError;
use crate::mapping::Reserved;
use crate::sync::MappedWord;
use crate::units::Bytes;

const WORD: u64 = size_of::<MappedWord>() as u64;

/// See the module.
#[derive(Debug)]
pub(crate) struct Words {
    mapping: Reserved,
    len: usize,
}

impl Words {
    /// Room for `len` words.
    pub(crate) fn new(len: usize) -> Result<Self, OsError> {
        let bytes = (len.max(1) as u64).saturating_mul(WORD);
        Ok(Self { mapping: Reserved::new(Bytes::new(bytes), true)?, len })
    }

    /// Makes a page's words present; pages are counted from the start, of `page` bytes.
    pub(crate) fn populate(&self, index: usize, page: Bytes) -> Result<(), OsError> {
        self.mapping.populate(Bytes::new(index as u64 * page.get()), page)
    }

    /// Has pages come as their words are written.
    pub(crate) fn come_as_written(&self) -> Result<(), OsError> {
        self.mapping.commit_all()
    }

    /// Lets a forked child find zeros here; a core dump never has these words.
    #[cfg(feature = "encrypt")]
    pub(crate) fn hide(&self) -> Result<(), OsError> {
        self.mapping.wipe_on_fork()
    }

    /// Keeps the words that are present from swap, where the limit on locked memory allows.
    #[cfg(feature = "encrypt")]
    pub(crate) fn lock_in_memory(&self) {
        let _ = self.mapping.lock_in_memory();
    }

    /// Gives a page back, whose words are zero from now on.
    pub(crate) fn discard(&self, index: usize, page: Bytes) -> Result<(), OsError> {
        // SAFETY: the bytes are lent as atomics alone.
        unsafe { self.mapping.give_back(Bytes::new(index as u64 * page.get()), page) }
    }
}

impl Deref for Words {
    type Target = [MappedWord];

    #[inline]
    fn deref(&self) -> &[MappedWord] {
        // SAFETY: `len` words are mapped and readable, aligned to a page; atomics may be of any
        // bits. Callers write where they populated alone.
        unsafe { std::slice::from_raw_parts(self.mapping.as_ptr().cast(), self.len) }
    }
}
