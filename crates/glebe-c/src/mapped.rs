//! [`Mapped`]: a contiguous mapping of the caller's, and what keeps it from being grown.
//!
//! # Safety
//! A guard unmaps the page that it set aside itself.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::sync::Mutex;

use glebe::contig::Contig;
use glebe::sys::mmap::{set_aside_at, unmap};
use glebe::sys::page_size;

/// Contiguous mappings by their first address.
pub(crate) type Contigs = Mutex<BTreeMap<usize, Mapped>>;

/// A mapping of the caller's.
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

/// Address space behind a mapping, so that it cannot be grown in its place.
#[derive(Debug)]
struct Guard(usize);

impl Guard {
    /// None where something is mapped there already, which does as well.
    fn behind(end: usize) -> Option<Self> {
        // Made only then: the drop of one unmaps.
        set_aside_at(end, page_size().bytes()).is_ok().then(|| Self(end))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // SAFETY: set aside by `behind`, and nothing was put there.
        let _ = unsafe { unmap(self.0, page_size().bytes()) };
    }
}
