//! [`Staging`]: a pool whose zspages its holder takes elsewhere; all that the two know of each
//! other.
//!
//! Objects come into zspages in ordinary memory. The holder *seals* zspages
//! ([`Staging::to_seal`]): it copies their bytes and keeps account of where they are. From then on
//! it is asked for an object's bytes: a [`Pinned`] object that is sealed has the number of its
//! zspage and an offset there. The holder says which pages of a zspage are *lost*, and their
//! objects end. The pool says which zspages *ended*, and the holder drops their pages.
//!
//! Lock: none of its own; that of one class for each step. Cost: that of the step.

use super::class::Fullness;
use super::error::Error;
use super::objects::Pinned;
use super::options::Options;
use super::pool::ObjectPool;
use super::seal::Sealing;
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
            let found = staging.pool.objects.begin_seal(class, self.fullness);
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
        self.pool.objects.lose(zspage, pages, is_same)
    }

    /// The objects of a sealed zspage, each by the index of its entry and what a handle names, if
    /// of the slots that were ever used so many quarters or fewer are.
    pub(crate) fn sparse_objects(&self, zspage: u32, quarters: u32) -> Vec<(u32, u32)> {
        self.pool.objects.sparse_objects(zspage, quarters)
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
