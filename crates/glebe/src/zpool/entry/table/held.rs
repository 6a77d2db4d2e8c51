//! The live words of a page of entries, *held* while they are moved.
//!
//! Words are moved while others change them. A mover, under the lock, marks each live word as
//! held: who wants to change it finds another word than it expects, and waits for the lock; who
//! reads it reads what it says. The words are copied, held, to their new places; the directory is
//! changed; then they are let go there. So a word that is live and not held stands where it
//! belongs. A reader of any other word looks at the directory again: if that is the same, so was
//! the entry. Entries that somebody has taken and not published, or changed and not yet given
//! back, are neither live nor free: a page that has one stays as it is.

use super::packed::is_packed;
use super::segments::{State, USED_UP};
use super::{Entries, ALL, SEGMENT};
use crate::sync::{MappedWord, Ordering};
use crate::zpool::entry::word::Entry;

/// The live words of a page, held in their places.
pub(super) struct Taken {
    pub(super) words: Vec<Entry>,
    /// Which entries these are, by segment.
    pub(super) bits: Vec<u64>,
    /// The free words of the segments, which are zero meanwhile.
    pub(super) free: Vec<u64>,
    /// The highest use of those that are not live.
    pub(super) base: u32,
}

impl Entries {
    /// Holds the live words of a page; `None`, and nothing held, if an entry is neither live nor
    /// free.
    pub(super) fn take(&self, state: &State, page: u32) -> Option<Taken> {
        let (unit, seen) = (self.unit(), self.place_of(page << self.page_shift));
        let mut taken = Taken {
            words: Vec::new(),
            bits: Vec::with_capacity(unit as usize),
            free: Vec::with_capacity(unit as usize),
            base: state.pages[page as usize].base,
        };
        for segment in page * unit..(page + 1) * unit {
            let free = self.tables.free[segment as usize].swap(0, Ordering::AcqRel);
            let all = if is_packed(seen) {
                self.bits_of(seen, segment)
            } else if state.released.contains(segment) {
                0
            } else {
                ALL
            };
            taken.free.push(free);
            taken.bits.push(all & !free);
        }
        for (_, at) in self.places(page, &taken.bits) {
            let Some(entry) = hold(at) else {
                self.undo(page, &taken);
                return None;
            };
            taken.words.push(entry);
        }
        // Those that are not live: of a packed page, those that died in it.
        let gone: Vec<u64> = match is_packed(seen) {
            true => taken.free.clone(),
            false => taken.bits.iter().map(|bits| !bits).collect(),
        };
        if taken.base != USED_UP {
            let uses = self
                .places(page, &gone)
                .map(|(index, at)| self.named(index, Entry::from_raw(at.load(Ordering::Acquire))));
            taken.base = uses.fold(taken.base, u32::max);
        }
        Some(taken)
    }

    /// Lets the words of a page go that were taken, where they are now.
    pub(super) fn let_all_go(&self, page: u32, taken: &Taken) {
        for ((_, at), word) in self.places(page, &taken.bits).zip(&taken.words) {
            at.store(word.raw(), Ordering::SeqCst);
        }
    }

    /// Lets what was taken be as it was.
    pub(super) fn undo(&self, page: u32, taken: &Taken) {
        // First, so that whoever gives back one of its live entries sees what else is free.
        for (segment, free) in (page * self.unit()..).zip(&taken.free) {
            self.tables.free[segment as usize].fetch_or(*free, Ordering::AcqRel);
        }
        self.let_all_go(page, taken);
    }

    /// The words of the entries of a page whose bits are set, and their indexes.
    fn places<'a>(
        &'a self,
        page: u32,
        bits: &'a [u64],
    ) -> impl Iterator<Item = (u32, &'a MappedWord)> + 'a {
        let (first, seen) = (page << self.page_shift, self.place_of(page << self.page_shift));
        let segments = (first..).step_by(SEGMENT as usize).zip(bits);
        segments.flat_map(move |(first, bits)| {
            let set = (first..first + SEGMENT).filter(move |at| bits >> (at % SEGMENT) & 1 == 1);
            set.filter_map(move |index| Some((index, self.word_at(seen, index)?)))
        })
    }
}

/// Holds a word that is live.
fn hold(at: &MappedWord) -> Option<Entry> {
    let held =
        |word| Some(Entry::from_raw(word)).filter(|at| at.is_live()).map(|at| at.held().raw());
    let was = at.fetch_update(Ordering::SeqCst, Ordering::Acquire, held);
    was.ok().map(Entry::from_raw)
}
