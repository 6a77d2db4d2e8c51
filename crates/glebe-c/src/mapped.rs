//! [`Mapped`] is a contiguous mapping of the caller, with a guard page behind it if that page was
//! free.
//!
//! # Safety
//! A guard unmaps only its own page.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::sync::Mutex;

use glebe::contig::Contig;
use glebe::internal::sys::memory::mmap::{set_aside_at, unmap};
use glebe::page_size;

/// Contiguous mappings by first address.
pub(crate) type Contigs = Mutex<BTreeMap<usize, Mapped>>;

#[derive(Debug)]
pub(crate) struct Mapped {
    pub(crate) contig: Contig,
    _guard: Option<Guard>,
}

impl Mapped {
    pub(crate) fn new(contig: Contig) -> Self {
        let end = contig.mapping().addr() + contig.len().as_usize();
        Self { contig, _guard: Guard::behind(end) }
    }
}

/// A page of address space behind a mapping, so that mremap(2) cannot grow the mapping in place.
#[derive(Debug)]
struct Guard(usize);

impl Guard {
    /// Sets the page at `end` aside. Returns `None` on failure, usually because another mapping at
    /// `end` already stops mremap(2).
    fn behind(end: usize) -> Option<Self> {
        // A guard is made only on success, because its drop unmaps the page.
        set_aside_at(end, page_size().bytes()).is_ok().then(|| Self(end))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // SAFETY: `behind` set the page aside, and nothing was mapped over it.
        let _ = unsafe { unmap(self.0, page_size().bytes()) };
    }
}
