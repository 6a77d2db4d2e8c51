//! [`Memory`]: what the classes of a pool share: entries, zspages' numbers, pages, pins, and the
//! account of it all. Each part has its own lock, or none; a class's lock is taken before them.

use crate::sync::{lock, AtomicU64, Mutex, Ordering};
use crate::zpool::entry::table::Entries;
use crate::zpool::memory::account::Account;
use crate::zpool::memory::pages::Pages;
use crate::zpool::memory::pins::Pins;
use crate::zpool::memory::zspages::Zspages;

/// Words of a bit a class.
pub(crate) const CLASS_WORDS: usize = 8;
/// Classes that a pool may have at a time, those among them that are being emptied.
pub(crate) const CLASSES_MAX: u32 = CLASS_WORDS as u32 * u64::BITS;

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
    /// Pages that compaction would free.
    freeable: AtomicU64,
    /// Classes that may have such pages: a bit that is set is cleared when none are found.
    ready: [AtomicU64; CLASS_WORDS],
    /// Slots in limbo.
    waiting: AtomicU64,
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
        let ready = std::array::from_fn(|_| AtomicU64::new(0));
        let (freeable, waiting) = (AtomicU64::new(0), AtomicU64::new(0));
        let (ended, any_ended) = (Mutex::new(Vec::new()), AtomicU64::new(0));
        let pins = Pins::new();
        Self {
            entries,
            zspages,
            pages,
            pins,
            account,
            lends,
            freeable,
            ready,
            waiting,
            ended,
            any_ended,
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

    /// Pages that compaction would free.
    #[inline]
    pub(crate) fn freeable(&self) -> u64 {
        self.freeable.load(Ordering::Relaxed)
    }

    /// Slots that wait for readers.
    #[inline]
    pub(crate) fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// One more waits.
    pub(crate) fn add_waiting(&self) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
    }

    /// One waits no more.
    pub(crate) fn sub_waiting(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// `zspages` of `pages` each that compaction would free have come.
    #[inline]
    pub(crate) fn add_freeable(&self, class: u32, pages: u64) {
        self.freeable.fetch_add(pages, Ordering::Relaxed);
        let (word, bit) = (&self.ready[(class / u64::BITS) as usize], 1 << (class % u64::BITS));
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// They have gone.
    #[inline]
    pub(crate) fn sub_freeable(&self, pages: u64) {
        self.freeable.fetch_sub(pages, Ordering::Relaxed);
    }

    /// A class has no such pages; the caller has its lock.
    pub(crate) fn not_ready(&self, class: u32) {
        let (word, bit) = (&self.ready[(class / u64::BITS) as usize], 1 << (class % u64::BITS));
        word.fetch_and(!bit, Ordering::Relaxed);
    }

    /// The first class from `from` on, going round, that compaction would free pages of.
    pub(crate) fn next_ready(&self, from: u32) -> Option<u32> {
        let from = from % CLASSES_MAX;
        let word_at = |word: u32| self.ready[word as usize].load(Ordering::Relaxed);
        let (first, bit) = (from / u64::BITS, from % u64::BITS);
        for step in 0..=CLASS_WORDS as u32 {
            let word = (first + step) % CLASS_WORDS as u32;
            let mut bits = word_at(word);
            if step == 0 {
                bits &= u64::MAX << bit;
            }
            if bits != 0 {
                return Some(word * u64::BITS + bits.trailing_zeros());
            }
        }
        None
    }
}
