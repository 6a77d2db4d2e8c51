//! [`Word`]: the state of one granule, in 64 bits shared by all processes.
//!
//! ```text
//! 63 ........ 7 | 6 ... 4  | 3       | 2       | 1    | 0
//! key           | priority | present | purging | lost | marked
//!
//! idle      not purging
//! claimed   purging, present:           the purger looks for pins, and may go back to idle
//! doomed    purging, not present, lost: no pin was found; the bytes are freed, then idle
//! ```
//!
//! *present*: the granule may hold memory. *lost*: its contents are gone, and no unmark has
//! returned the loss. Only the holder of the purge lock changes a purging word. After a kill,
//! another purger continues: it may undo a claim, but must carry out a doom, because the bytes may
//! be gone.
//!
//! *key*: lower keys are purged first. A key is `CENTRE + t` (first in, first out) or `CENTRE - t`
//! (last in, first out). `t`, the mark's time in microseconds, is greater than the last mark's, but
//! below `CENTRE`. Any 64 bits are valid: no offset or length comes from them.

use super::Order;
use crate::Priority;
use glebe_os::internal::sync::{MappedWord, Ordering};

const MARKED: u64 = 1 << 0;
const LOST: u64 = 1 << 1;
const PURGING: u64 = 1 << 2;
const PRESENT: u64 = 1 << 3;
const PRIORITY_SHIFT: u32 = 4;
const KEY_SHIFT: u32 = 7;
const PRIORITY_MASK: u64 = (1 << (KEY_SHIFT - PRIORITY_SHIFT)) - 1;
const CENTRE: u64 = 1 << 56;

const _: () = assert!(PRIORITY_MASK == Priority::HIGHEST.get() as u64);
const _: () = assert!((CENTRE + CENTRE - 1) << KEY_SHIFT >> KEY_SHIFT == CENTRE + CENTRE - 1);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Word(pub(crate) u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key(u64);

impl Key {
    /// `time` comes from [`tick`].
    pub(crate) fn new(order: Order, time: u64) -> Self {
        let time = time.min(CENTRE - 1);
        match order {
            Order::Fifo => Self(CENTRE + time),
            Order::Lifo => Self(CENTRE - time),
        }
    }

    pub(crate) fn order(self) -> Order {
        if self.0 >= CENTRE {
            Order::Fifo
        } else {
            Order::Lifo
        }
    }

    pub(crate) fn get(self) -> u64 {
        self.0
    }

    /// Negative for last in, first out.
    pub(crate) fn micros(self) -> i64 {
        self.0 as i64 - CENTRE as i64
    }
}

pub(super) fn micros_of(key: u64) -> i64 {
    Key(key).micros()
}

/// Returns the next mark's time in microseconds, and stores it in `clock`.
pub(crate) fn tick(clock: &MappedWord, now: u64) -> u64 {
    let next = |last: u64| now.max(last.saturating_add(1)).min(CENTRE - 1);
    let done = clock.fetch_update(Ordering::AcqRel, Ordering::Acquire, |last| Some(next(last)));
    let (Ok(last) | Err(last)) = done;
    next(last)
}

impl Word {
    pub(crate) fn is_marked(self) -> bool {
        self.0 & MARKED != 0
    }

    pub(crate) fn is_lost(self) -> bool {
        self.0 & LOST != 0
    }

    #[inline]
    pub(crate) fn is_purging(self) -> bool {
        self.0 & PURGING != 0
    }

    #[inline]
    pub(crate) fn is_present(self) -> bool {
        self.0 & PRESENT != 0
    }

    pub(crate) fn is_claimed(self) -> bool {
        self.is_purging() && self.is_present()
    }

    pub(crate) fn is_doomed(self) -> bool {
        self.is_purging() && !self.is_present()
    }

    pub(crate) fn is_candidate(self) -> bool {
        self.is_marked() && self.is_present() && !self.is_purging()
    }

    pub(crate) fn priority(self) -> Priority {
        let bits = self.0 >> PRIORITY_SHIFT & PRIORITY_MASK;
        Priority::new(bits as u8).unwrap_or(Priority::HIGHEST)
    }

    pub(crate) fn key(self) -> Key {
        Key(self.0 >> KEY_SHIFT)
    }

    fn with_key(self, key: Key, priority: Priority) -> Self {
        let flags = self.0 & (MARKED | LOST | PURGING | PRESENT);
        Self(key.0 << KEY_SHIFT | u64::from(priority.get()) << PRIORITY_SHIFT | flags)
    }

    pub(crate) fn marked(self, priority: Priority, key: Key, holds_memory: bool) -> Self {
        let found = if holds_memory { PRESENT } else { 0 };
        Self(self.with_key(key, priority).0 | MARKED | found)
    }

    /// Removes mark and loss, after the loss was returned.
    pub(crate) fn unmarked(self) -> Self {
        Self(self.0 & PRESENT)
    }

    /// Removes the mark. A loss stays.
    pub(crate) fn ended(self) -> Self {
        Self(self.0 & (PRESENT | LOST))
    }

    pub(crate) fn with_present(self) -> Self {
        Self(self.0 | PRESENT)
    }

    /// A marked word gets `time`.
    pub(crate) fn restored(self, time: u64) -> Self {
        let renewed = self.with_key(Key::new(self.key().order(), time), self.priority());
        Self(if self.is_marked() { renewed.0 } else { self.0 } & !LOST)
    }

    pub(crate) fn claimed(self) -> Self {
        Self(self.0 | PURGING)
    }

    pub(crate) fn unclaimed(self) -> Self {
        Self(self.0 & !PURGING)
    }

    pub(crate) fn doomed(self) -> Self {
        Self(self.0 & !PRESENT | LOST)
    }

    pub(crate) fn purged(self) -> Self {
        Self(self.0 & !PURGING)
    }
}

pub(crate) fn change(
    at: &MappedWord,
    with: impl Fn(Word) -> Option<Word>,
) -> Result<(Word, Word), Word> {
    let order = (Ordering::SeqCst, Ordering::SeqCst);
    match at.fetch_update(order.0, order.1, |now| with(Word(now)).map(|next| next.0)) {
        Ok(was) => Ok((Word(was), with(Word(was)).unwrap_or(Word(was)))),
        Err(now) => Err(Word(now)),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_word_says_what_was_put_into_it() {
        for priority in Priority::all() {
            for order in [Order::Fifo, Order::Lifo] {
                let key = Key::new(order, 12_345);
                let word = Word(LOST).marked(priority, key, true);
                assert_eq!(
                    (word.priority(), word.key(), word.key().order()),
                    (priority, key, order)
                );
                assert!(word.is_marked() && word.is_lost() && word.is_candidate());
                let doomed = word.claimed().doomed();
                assert!(word.claimed().is_claimed() && doomed.is_doomed() && doomed.is_lost());
                assert_eq!(word.claimed().unclaimed(), word);
                assert!(!doomed.purged().is_present() && !doomed.purged().is_candidate());
                assert_eq!(word.unmarked(), Word(PRESENT));
                assert_eq!(word.ended(), Word(PRESENT | LOST));
                let young = word.restored(20_000);
                assert_eq!(young, Word(0).marked(priority, Key::new(order, 20_000), true));
            }
        }
    }

    #[test]
    fn first_in_goes_before_later_and_last_in_before_earlier() {
        let key = Key::new;
        assert!(key(Order::Fifo, 1) < key(Order::Fifo, 2));
        assert!(key(Order::Lifo, 2) < key(Order::Lifo, 1));
        assert!(key(Order::Lifo, 1) < key(Order::Fifo, 1));
    }

    #[test]
    fn time_goes_on_whatever_the_file_says() {
        let clock = MappedWord::new(0);
        assert_eq!([tick(&clock, 5), tick(&clock, 5), tick(&clock, 4)], [5, 6, 7]);
        for wrong in [u64::MAX, CENTRE, CENTRE - 1] {
            let clock = MappedWord::new(wrong);
            let times = [tick(&clock, 5), tick(&clock, 5)];
            assert_eq!(times, [CENTRE - 1; 2], "{wrong:#x}");
            assert!(times.iter().all(|time| Key::new(Order::Lifo, *time).get() > 0));
        }
    }
}
