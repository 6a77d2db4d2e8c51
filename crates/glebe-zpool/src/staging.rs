//! [`Staging`] is a pool whose zspages another owner, the *holder*, moves elsewhere.
//!
//! The holder *seals* zspages: it copies their bytes and then serves their reads. The holder
//! reports *lost* pages, and the pool removes their objects. The pool reports *ended* zspages, and
//! the holder drops their bytes.
//!
//! A call locks one size class at a time, none during a copy.
//!
//! # Safety
//! A zspage that is about to be sealed has no writer, gets none, and keeps its pages.
#![allow(unsafe_code)]

use super::class::{Begun, ClassState, Fullness};
use super::error::Error;
use super::objects::{Objects, Pinned};
use super::options::Options;
use super::pool::ObjectPool;
use super::shared::CLASSES_MAX;
use glebe_os::internal::sync::{MappedWord, Ordering};

/// Keeps objects in a pool's own pages until their zspage is sealed.
#[derive(Debug)]
pub struct Staging {
    pool: ObjectPool,
    next_class: MappedWord,
}

/// Finds zspages to seal.
#[derive(Debug)]
pub struct ToSeal<'a> {
    staging: &'a Staging,
    enough: u64,
    fullness: Fullness,
    /// Classes in a row without a zspage to seal.
    without: u32,
}

/// Keeps a zspage while the caller copies it. A drop without [`Sealing::finish`] leaves it
/// unsealed.
#[derive(Debug)]
#[must_use]
pub struct Sealing<'a> {
    objects: &'a Objects,
    class: u32,
    begun: Begun,
    is_copied: bool,
}

impl<'a> Sealing<'a> {
    pub(super) fn begin(objects: &'a Objects, class: u32, fullness: Fullness) -> Option<Self> {
        let begun = objects.classes.get(class)?.lock().begin_seal(&objects.memory, fullness)?;
        Some(Self { objects, class, begun, is_copied: false })
    }

    /// Returns the number of the zspage.
    pub fn zspage(&self) -> u32 {
        self.begun.zspage
    }

    /// Returns the number of pages that have bytes.
    pub fn pages(&self) -> u32 {
        self.begun.len.div_ceil(self.objects.memory.pages.page_bytes() as usize) as u32
    }

    /// Returns the bytes of the `nth` page.
    ///
    /// # Panics
    /// If the zspage has fewer pages.
    pub fn page(&self, nth: u32) -> &[u8] {
        assert!(nth < self.begun.pages, "page {nth} of {}", self.begun.pages);
        let pages = &self.objects.memory.pages;
        let (start, len) = (pages.start_of(self.begun.page + nth), pages.page_bytes() as usize);
        // SAFETY: until this `Sealing` is dropped, the pages are present, not written and not given
        // back.
        unsafe { pages.frames().bytes(start, len) }
    }

    /// Seals the zspage, which the holder has copied.
    pub fn finish(mut self) {
        self.is_copied = true;
    }
}

impl Drop for Sealing<'_> {
    fn drop(&mut self) {
        let Some(class) = self.objects.classes.get(self.class) else { return };
        if self.is_copied {
            class.lock().finish_seal(&self.objects.memory, self.begun);
        } else {
            class.lock().abort_seal(&self.objects.memory, self.begun);
        }
    }
}

impl<'a> Iterator for ToSeal<'a> {
    type Item = Sealing<'a>;

    fn next(&mut self) -> Option<Sealing<'a>> {
        let staging = self.staging;
        while staging.used_pages() > self.enough {
            if self.without == CLASSES_MAX {
                if self.fullness == Fullness::Fullest {
                    return None;
                }
                (self.fullness, self.without) = (Fullness::Fullest, 0);
            }
            let class = staging.next_class.load(Ordering::Relaxed) as u32 % CLASSES_MAX;
            let found = Sealing::begin(&staging.pool.objects, class, self.fullness);
            if found.is_none() || self.fullness == Fullness::Fullest {
                staging.next_class.store((class + 1).into(), Ordering::Relaxed);
            }
            self.without = if found.is_some() { 0 } else { self.without + 1 };
            if found.is_some() {
                return found;
            }
        }
        None
    }
}

impl Staging {
    /// Makes a pool.
    ///
    /// # Errors
    /// See [`Options::build`].
    pub fn new(options: Options) -> Result<Self, Error> {
        Ok(Self { pool: options.build()?, next_class: MappedWord::new(0) })
    }

    /// Returns the pool.
    #[inline]
    pub fn pool(&self) -> &ObjectPool {
        &self.pool
    }

    /// Returns the pages in ordinary memory.
    #[inline]
    pub fn used_pages(&self) -> u64 {
        self.pool.objects.memory.pages.used()
    }

    /// Counts the objects in slots.
    pub fn objects(&self) -> u64 {
        self.pool.objects.classes.all().map(|class| class.lock().counts.objects).sum()
    }

    /// Returns a number above all that zspages can get.
    pub fn zspages_max(&self) -> usize {
        self.pool.objects.memory.zspages.most()
    }

    /// Returns a number above all that zspages have now.
    pub fn zspages_end(&self) -> u32 {
        self.pool.objects.memory.zspages.made().1
    }

    /// Returns true if the zspage is sealed.
    pub fn is_sealed(&self, zspage: u32) -> bool {
        self.pool.objects.memory.zspages.about(zspage).is_sealed
    }

    /// Finds zspages to seal, full ones of any class first, until at most `enough` pages are in
    /// ordinary memory.
    pub fn to_seal(&self, enough: u64) -> ToSeal<'_> {
        ToSeal { staging: self, enough, fullness: Fullness::Full, without: 0 }
    }

    /// Gives surplus free pages back to the kernel.
    pub fn trim(&self) {
        self.pool.objects.memory.pages.trim(&self.pool.objects.memory.account);
    }

    /// Frees slots and pages without readers.
    pub fn settle(&self) {
        self.pool.objects.settle();
    }

    /// Returns ended zspages, which keep their numbers until [`Staging::drop_number`].
    #[inline]
    pub fn take_ended(&self) -> Vec<u32> {
        self.pool.objects.memory.take_ended()
    }

    /// Frees the number of a zspage from [`Staging::take_ended`]. The caller has dropped its bytes.
    pub fn drop_number(&self, zspage: u32) {
        let memory = &self.pool.objects.memory;
        memory.zspages.drop_number(&memory.account, zspage);
    }

    /// Removes and counts the objects with bytes in the zspage's `pages` (a bit mask). Does nothing
    /// unless `is_same` confirms the zspage under the class's lock.
    pub fn lose(&self, zspage: u32, pages: u32, is_same: impl Fn() -> bool) -> usize {
        let Objects { memory, .. } = &self.pool.objects;
        let lose = |state: &mut ClassState| match is_same() {
            true => state.lose(memory, zspage, pages),
            false => Vec::new(),
        };
        self.pool.objects.evict_by(zspage, lose)
    }

    /// Returns index and use number of each object of a sealed zspage. Returns nothing if more than
    /// `quarters` / 4 of the slots that were ever used still are.
    pub fn sparse_objects(&self, zspage: u32, quarters: u32) -> Vec<(u32, u32)> {
        let Objects { memory, classes, .. } = &self.pool.objects;
        let class = classes.get(memory.zspages.about(zspage).class);
        let found = class.map(|class| class.lock().sparse_objects(memory, zspage, quarters));
        let named = |(index, entry)| (index, memory.entries.named(index, entry));
        found.into_iter().flatten().map(named).collect()
    }

    /// Returns the entry's use number, new for each object.
    pub fn named(&self, index: u32) -> u32 {
        let entries = &self.pool.objects.memory.entries;
        entries.named(index, entries.load(index))
    }

    /// Pins the object at `index` with use number `named`.
    #[inline]
    pub fn pin(&self, index: u32, named: u32) -> Option<Pinned> {
        self.pool.objects.pin(index, named)
    }

    /// Ends a pin.
    #[inline]
    pub fn unpin(&self, pinned: &Pinned) {
        self.pool.objects.unpin(pinned);
    }

    /// Lends the bytes of a pinned object in ordinary memory.
    #[inline]
    pub fn with_bytes<R>(&self, pinned: &Pinned, then: impl FnOnce(&[u8]) -> R) -> R {
        self.pool.objects.with_bytes(pinned, then)
    }

    /// Moves a pinned object to ordinary memory. Always ends the pin. Returns false on failure.
    pub fn restore(&self, object: (u32, u32), pinned: &Pinned, stored: &[u8]) -> bool {
        self.pool.restore(object, pinned, stored)
    }

    /// Removes the object at `index` if its use number is `named`. Returns true if so.
    pub fn remove(&self, index: u32, named: u32) -> bool {
        let gone = self.pool.objects.remove(index, named);
        self.pool.after_gone();
        gone
    }
}
