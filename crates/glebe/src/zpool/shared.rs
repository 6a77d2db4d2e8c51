//! [`Memory`]: what the classes of a pool share: entries, zspages' numbers, pages, pins, and the
//! account of it all. Each part has its own lock, or none; a class's lock is taken before them.

use crate::sync::{lock, AtomicU64, Mutex, Ordering};
use crate::zpool::entry::table::Entries;
use crate::zpool::memory::account::Account;
use crate::zpool::memory::pages::Pages;
use crate::zpool::memory::pins::Pins;
use crate::zpool::memory::zspages::Zspages;

/// Classes that a pool may have at a time, those among them that are being emptied.
pub(crate) const CLASSES_MAX: u32 = 512;

/// See the module.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) entries: Entries,
    pub(crate) zspages: Zspages,
    pub(crate) pages: Pages,
    pub(crate) pins: Pins,
    pub(crate) account: Account,
    /// Whether zspages are sealed: then empty ones leave, since the staging is small.
    pub(crate) lends: bool,
    /// Pages that compaction would free, or some more.
    pub(crate) freeable: AtomicU64,
    /// Slots, and pages of sealed zspages, that wait for readers.
    pub(crate) waiting: AtomicU64,
    /// Sealed zspages that ended, whose numbers are still taken.
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

    /// A sealed zspage has ended; who copied its bytes is told by [`Memory::take_ended`].
    pub(crate) fn add_ended(&self, zspage: u32) {
        lock(&self.ended).push(zspage);
        self.any_ended.store(1, Ordering::Relaxed);
    }

    /// Sealed zspages that have ended since. Their numbers are given back by
    /// [`Zspages::drop_number`].
    #[inline]
    pub(crate) fn take_ended(&self) -> Vec<u32> {
        if self.any_ended.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        let mut ended = lock(&self.ended);
        self.any_ended.store(0, Ordering::Relaxed);
        std::mem::take(&mut ended)
    }

    /// Pages that compaction would free, or some more.
    #[inline]
    pub(crate) fn freeable(&self) -> u64 {
        self.freeable.load(Ordering::Relaxed)
    }

    /// What waits for readers.
    #[inline]
    pub(crate) fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }
}
