//! [`Staging`]: a pool whose zspages its holder takes elsewhere; all that the two know of each
//! other.
//!
//! Objects come into zspages in ordinary memory. The holder *seals* zspages
//! ([`Staging::to_seal`]): it copies their bytes and keeps account of where they are. From then on
//! it is asked for an object's bytes: a [`Pinned`] object that is sealed has the number of its
//! zspage and an offset there. The holder says which pages of a zspage are *lost*, and their
//! objects end. The pool says which zspages *ended*, and the holder drops their pages.
//!
//! Lock: none of its own; that of one class for each step, and none while bytes are copied. Cost:
//! that of the step.
//!
//! # Safety
//! A zspage that is about to be sealed has no writer and gets none, and keeps its pages.
#![allow(unsafe_code)]

use super::class::{Begun, Fullness, State};
use super::error::Error;
use super::objects::{Objects, Pinned};
use super::options::Options;
use super::pool::ObjectPool;
use super::shared::CLASSES_MAX;
use crate::sync::{MappedWord, Ordering};

/// See the module.
#[derive(Debug)]
pub(crate) struct Staging {
    pool: ObjectPool,
    /// The class at which the search for a zspage to seal goes on.
    next_class: MappedWord,
}

/// Zspages to seal, one after the other; the next is looked for when that before is sealed.
#[derive(Debug)]
pub(crate) struct ToSeal<'a> {
    staging: &'a Staging,
    /// Ends when so few pages are in ordinary memory.
    enough: u64,
    fullness: Fullness,
    /// Classes in a row that had none.
    without: u32,
}

/// A zspage whose bytes its holder copies elsewhere, page by page. Dropped before
/// [`Sealing::finish`], it leaves the zspage as it was.
#[derive(Debug)]
#[must_use]
pub(crate) struct Sealing<'a> {
    objects: &'a Objects,
    class: u32,
    begun: Begun,
    is_copied: bool,
}

impl<'a> Sealing<'a> {
    /// Begins to seal a zspage of the class of a number, if there is one.
    pub(super) fn begin(objects: &'a Objects, class: u32, fullness: Fullness) -> Option<Self> {
        let begun = objects.classes.get(class)?.lock().begin_seal(&objects.memory, fullness)?;
        Some(Self { objects, class, begun, is_copied: false })
    }

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
            // All full ones of a class, but of those that are not full one a class.
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
    /// A pool that is made with `options`.
    ///
    /// # Errors
    /// As [`Options::build`].
    pub(crate) fn new(options: Options) -> Result<Self, Error> {
        Ok(Self { pool: options.build()?, next_class: MappedWord::new(0) })
    }

    /// The pool, for what does not depend on where objects are.
    #[inline]
    pub(crate) fn pool(&self) -> &ObjectPool {
        &self.pool
    }

    /// Pages of zspages in ordinary memory.
    #[inline]
    pub(crate) fn used_pages(&self) -> u64 {
        self.pool.objects.memory.pages.used()
    }

    /// Objects in slots.
    pub(crate) fn objects(&self) -> u64 {
        self.pool.objects.classes.all().map(|class| class.lock().counts.objects).sum()
    }

    /// No zspage ever has this number or a higher one.
    pub(crate) fn zspages_max(&self) -> usize {
        self.pool.objects.memory.zspages.most()
    }

    /// No zspage has this number or a higher one now.
    pub(crate) fn zspages_end(&self) -> u32 {
        self.pool.objects.memory.zspages.made().1
    }

    /// Whether the bytes of a zspage are elsewhere.
    pub(crate) fn is_sealed(&self, zspage: u32) -> bool {
        self.pool.objects.memory.zspages.about(zspage).is_sealed
    }

    /// Zspages to seal until `enough` pages or fewer are in ordinary memory: full ones of any
    /// class first, then the fullest.
    pub(crate) fn to_seal(&self, enough: u64) -> ToSeal<'_> {
        ToSeal { staging: self, enough, fullness: Fullness::Full, without: 0 }
    }

    /// Gives memory that sealed zspages left back to the kernel, but for some that is kept.
    pub(crate) fn trim(&self) {
        self.pool.objects.memory.pages.trim(&self.pool.objects.memory.account);
    }

    /// Frees the slots that waited for readers who have left.
    pub(crate) fn settle(&self) {
        self.pool.objects.settle();
    }

    /// Sealed zspages whose last object is gone. Each keeps its number until
    /// [`Staging::drop_number`].
    #[inline]
    pub(crate) fn take_ended(&self) -> Vec<u32> {
        self.pool.objects.memory.take_ended()
    }

    /// Lets a zspage that ended go: what its holder knew of it is forgotten.
    pub(crate) fn drop_number(&self, zspage: u32) {
        let memory = &self.pool.objects.memory;
        memory.zspages.drop_number(&memory.account, zspage);
    }

    /// Ends the objects of a sealed zspage that have bytes in one of `pages`, a bit each; how many.
    /// None if `is_same` says no under the class's lock.
    pub(crate) fn lose(&self, zspage: u32, pages: u32, is_same: impl Fn() -> bool) -> usize {
        let Objects { memory, .. } = &self.pool.objects;
        let lose = |state: &mut State| match is_same() {
            true => state.lose(memory, zspage, pages),
            false => Vec::new(),
        };
        self.pool.objects.evict_by(zspage, lose)
    }

    /// The objects of a sealed zspage, each by the index of its entry and what a handle names, if
    /// of the slots that were ever used so many quarters or fewer are.
    pub(crate) fn sparse_objects(&self, zspage: u32, quarters: u32) -> Vec<(u32, u32)> {
        let Objects { memory, classes, .. } = &self.pool.objects;
        let class = classes.get(memory.zspages.about(zspage).class);
        let found = class.map(|class| class.lock().sparse_objects(memory, zspage, quarters));
        let named = |(index, entry)| (index, memory.entries.named(index, entry));
        found.into_iter().flatten().map(named).collect()
    }

    /// What a handle of the entry at `index` names now.
    pub(crate) fn named(&self, index: u32) -> u32 {
        let entries = &self.pool.objects.memory.entries;
        entries.named(index, entries.load(index))
    }

    /// Pins an object, if it is there, until [`Staging::unpin`].
    #[inline]
    pub(crate) fn pin(&self, index: u32, named: u32) -> Option<Pinned> {
        self.pool.objects.pin(index, named)
    }

    /// Ends a pin.
    #[inline]
    pub(crate) fn unpin(&self, pinned: &Pinned) {
        self.pool.objects.unpin(pinned);
    }

    /// Lends the bytes of a pinned object that is not sealed for the time of a call.
    #[inline]
    pub(crate) fn with_bytes<R>(&self, pinned: &Pinned, then: impl FnOnce(&[u8]) -> R) -> R {
        self.pool.objects.with_bytes(pinned, then)
    }

    /// Brings a pinned object whose stored bytes are `stored` back to ordinary memory, unless it
    /// has changed since. Ends the pin.
    pub(crate) fn restore(&self, object: (u32, u32), pinned: &Pinned, stored: &[u8]) -> bool {
        self.pool.restore(object, pinned, stored)
    }

    /// Removes an object; whether it was there.
    pub(crate) fn remove(&self, index: u32, named: u32) -> bool {
        let gone = self.pool.objects.remove(index, named);
        self.pool.after_gone();
        gone
    }
}
