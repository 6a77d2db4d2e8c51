//! [`Sealing`]: a zspage whose bytes its holder copies elsewhere.
//!
//! The pool knows nothing of where they go: its caller reads them page by page, and says that it
//! has them or has not. From then on the caller is asked for an object's bytes, by the zspage's
//! number and the object's place there ([`Pinned::offset`](crate::zpool::objects::Pinned::offset)).
//!
//! Lock: the class's, at the beginning and at the end, not while bytes are copied.
//!
//! # Safety
//! A zspage that is about to be sealed has no writer and gets none, and keeps its pages.
#![allow(unsafe_code)]

use crate::zpool::class::{Begun, Fullness};
use crate::zpool::objects::Objects;

/// See the module. Dropped before [`Sealing::finish`], it leaves the zspage as it was.
#[derive(Debug)]
#[must_use]
pub(crate) struct Sealing<'a> {
    objects: &'a Objects,
    class: u32,
    begun: Begun,
    is_over: bool,
}

impl Objects {
    /// Begins to seal a zspage of the class of a number, if there is one.
    pub(crate) fn begin_seal(&self, class: u32, fullness: Fullness) -> Option<Sealing<'_>> {
        let begun = self.classes.get(class)?.lock().begin_seal(&self.memory, fullness)?;
        Some(Sealing { objects: self, class, begun, is_over: false })
    }

    /// The entries of a sealed zspage's objects, each with its index and what a handle names, if of
    /// the slots that were ever used so many quarters or fewer are.
    pub(crate) fn sparse_objects(&self, zspage: u32, quarters: u32) -> Vec<(u32, u32)> {
        let memory = &self.memory;
        let Some(class) = self.classes.get(memory.zspages.about(zspage).class) else {
            return Vec::new();
        };
        let found = class.lock().sparse_objects(memory, zspage, quarters);
        let named = |(index, entry)| (index, memory.entries.named(index, entry));
        found.into_iter().map(named).collect()
    }

    /// Removes the objects of a sealed zspage that have bytes in one of `pages`, a bit each; how
    /// many.
    /// Nothing if `is_same` says no under the class's lock.
    pub(crate) fn lose(&self, zspage: u32, pages: u32, is_same: impl Fn() -> bool) -> usize {
        self.evict_by(zspage, |state| {
            if is_same() {
                state.lose(&self.memory, zspage, pages)
            } else {
                Vec::new()
            }
        })
    }
}

impl Sealing<'_> {
    /// The zspage's number.
    pub(crate) fn zspage(&self) -> u32 {
        self.begun.zspage
    }

    /// How many of its pages have bytes.
    pub(crate) fn pages(&self) -> u32 {
        self.begun.len.div_ceil(self.objects.memory.pages.page_bytes() as usize) as u32
    }

    /// The bytes of one of its pages.
    pub(crate) fn page(&self, nth: u32) -> &[u8] {
        assert!(nth < self.begun.pages, "page {nth} of {}", self.begun.pages);
        let pages = &self.objects.memory.pages;
        let (start, len) = (pages.start_of(self.begun.page + nth), pages.page_bytes() as usize);
        // SAFETY: as the module says, as long as this is there: the pages are present, nobody
        // writes there, and they are given back at the end alone.
        unsafe { pages.frames().bytes(start, len) }
    }

    /// The bytes are elsewhere now, and who is asked for them knows where.
    pub(crate) fn finish(mut self) {
        self.is_over = true;
        if let Some(class) = self.objects.classes.get(self.class) {
            class.lock().finish_seal(&self.objects.memory, self.begun);
        }
    }
}

impl Drop for Sealing<'_> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        if let Some(class) = self.objects.classes.get(self.class) {
            class.lock().abort_seal(&self.objects.memory, self.begun);
        }
    }
}
