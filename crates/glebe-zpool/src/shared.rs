//! [`Memory`] holds the parts that all classes of a pool share. A thread locks a class before a
//! part.

use crate::entry::table::Entries;
use crate::memory::account::Account;
use crate::memory::pages::Pages;
use crate::memory::pins::Pins;
use crate::memory::zspages::Zspages;
use glebe_os::internal::sync::{lock, AtomicU64, Mutex, Ordering};

/// Maximum number of classes, including those being emptied.
pub(crate) const CLASSES_MAX: u32 = 512;

#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) entries: Entries,
    pub(crate) zspages: Zspages,
    pub(crate) pages: Pages,
    pub(crate) pins: Pins,
    pub(crate) account: Account,
    /// True if zspages may be sealed.
    pub(crate) lends: bool,
    /// Pages that compaction would free; never too low.
    pub(crate) freeable: AtomicU64,
    /// Slots, and sealed zspages with own pages, that wait for readers.
    pub(crate) waiting: AtomicU64,
    ended: Mutex<Vec<u32>>,
    any_ended: AtomicU64,
}

impl Memory {
    pub(crate) fn new(
        entries: Entries,
        zspages: Zspages,
        pages: Pages,
        account: Account,
        lends: bool,
    ) -> Self {
        let word = || AtomicU64::new(0);
        Self {
            entries,
            zspages,
            pages,
            pins: Pins::new(),
            account,
            lends,
            freeable: word(),
            waiting: word(),
            ended: Mutex::new(Vec::new()),
            any_ended: word(),
        }
    }

    pub(crate) fn add_ended(&self, zspage: u32) {
        lock(&self.ended).push(zspage);
        self.any_ended.store(1, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn take_ended(&self) -> Vec<u32> {
        if self.any_ended.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        let mut ended = lock(&self.ended);
        self.any_ended.store(0, Ordering::Relaxed);
        std::mem::take(&mut ended)
    }

    #[inline]
    pub(crate) fn freeable(&self) -> u64 {
        self.freeable.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }
}
