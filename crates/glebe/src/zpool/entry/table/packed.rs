//! Sparse pages of entries: those that are live, close together.
//!
//! A word of the *directory* for each page says whether its entries lie in their own places or
//! *packed*, and counts every change of that:
//!
//! ```text
//!  63                32 31              1    0       chunk, in units of a 64th of a page
//! +--------------------+-----------------+--------+  +--------------------+-------------------+
//! |      changes       |   first unit    | packed |  | a bit for each     | the words of them |
//! +--------------------+-----------------+--------+  | entry: one unit    | by index          |
//! ```
//!
//! An entry is where the bits before its own say. Of a packed page nothing is taken; when entries
//! die, their bits are set in the words of free entries, as everywhere; a page that shrank by a
//! sixteenth is packed anew, and one that died leaves. Where pages are wanted, one is *unpacked*.
//!
//! Words are moved while others change them: see [`held`](super::held).
//!
//! Lock: that of [`Entries`]. Cost of a change: the page's live entries, twice; unpacked, all.

use super::segments::{State, USED_UP};
use super::store::UNITS;
use super::{Entries, EPOCHS, EPOCH_BITS, EPOCH_LAST, SEGMENT};
use crate::sync::{lock, MappedWord, Ordering};
use crate::zpool::entry::word::{Entry, GENERATION_BITS};
use crate::zpool::memory::account::{Account, NoRoom};
use crate::zpool::memory::bits::RUN_MAX;

const PACKED: u64 = 1;
const UNIT_AT: u32 = 1;
const UNIT_BITS: u32 = 31;
const CHANGES_AT: u32 = UNIT_AT + UNIT_BITS;
/// Of so many units one must be saved for a page to be packed anew.
const UNITS_PER_SAVED: u32 = 16;

/// Whether a word of the directory says so.
#[inline]
pub(super) const fn is_packed(seen: u64) -> bool {
    seen & PACKED != 0
}

const fn first_unit(seen: u64) -> u32 {
    (seen >> UNIT_AT) as u32 & ((1 << UNIT_BITS) - 1)
}

/// Live entries for which a chunk has room, of a page of so many.
pub(super) const fn most_live(per_page: u32) -> u32 {
    (RUN_MAX - 1) * (per_page / UNITS)
}

impl Entries {
    /// Words of a unit, which is as many as a page has segments.
    pub(super) fn unit(&self) -> u32 {
        self.words_per_page() / UNITS
    }

    fn units_for(&self, live: u32) -> u32 {
        1 + live.div_ceil(self.unit())
    }

    /// The bits of a segment in the chunk of a packed page.
    #[inline]
    pub(super) fn bits_of(&self, seen: u64, segment: u32) -> u64 {
        let unit = self.unit();
        let at = first_unit(seen) * unit + segment % unit;
        self.tables.packed.get(at as usize).map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Where the words of a segment begin in the chunk of its page.
    fn packed_start(&self, seen: u64, segment: u32) -> u32 {
        let unit = self.unit();
        let first = segment - segment % unit;
        let before = (first..segment).map(|at| self.bits_of(seen, at).count_ones()).sum::<u32>();
        (first_unit(seen) + 1) * unit + before
    }

    /// Where the word of an entry is in the chunk of its page, if it is there.
    fn packed_at(&self, seen: u64, index: u32) -> Option<&MappedWord> {
        let segment = index / SEGMENT;
        let (bits, bit) = (self.bits_of(seen, segment), 1 << (index % SEGMENT));
        if bits & bit == 0 {
            return None;
        }
        let at = self.packed_start(seen, segment) + (bits & (bit - 1)).count_ones();
        self.tables.packed.get(at as usize)
    }

    /// Where the word of an entry is, if it has one, of a page of which the directory says `seen`.
    pub(super) fn word_at(&self, seen: u64, index: u32) -> Option<&MappedWord> {
        match is_packed(seen) {
            true => self.packed_at(seen, index),
            false => self.tables.words.get(index as usize),
        }
    }

    /// What an entry of a packed page says; anything, if the page changes meanwhile.
    pub(super) fn load_packed(&self, seen: u64, index: u32) -> Entry {
        let at = self.packed_at(seen, index);
        at.map_or(Entry::free(0), |at| Entry::from_raw(at.load(Ordering::SeqCst)))
    }

    /// Whether a packed page may be due, now that these entries of a segment have died.
    #[inline]
    pub(super) fn is_worth_a_look(&self, seen: u64, segment: u32, died: u64) -> bool {
        let died = died.count_ones();
        died.is_power_of_two() || died >= self.bits_of(seen, segment).count_ones()
    }

    /// Packs a page of which few entries are live.
    #[inline]
    pub(super) fn pack_if_sparse(&self, account: &Account, page: u32) {
        if self.current.load(Ordering::Relaxed) / u64::from(self.unit()) == u64::from(page) {
            return;
        }
        let free = |segment: u32| self.tables.free[segment as usize].load(Ordering::Relaxed);
        // A segment without a free entry may have been released.
        let segments = (page * self.unit()..(page + 1) * self.unit()).map(free);
        let some = segments.filter(|free| *free != 0);
        if some.map(u64::count_zeros).sum::<u32>() <= self.packed_max {
            self.pack(account, page);
        }
    }

    /// Packs a page, if it may be.
    #[cold]
    pub(crate) fn pack(&self, account: &Account, page: u32) {
        let mut state = lock(&self.state);
        let segments = page * self.unit()..(page + 1) * self.unit();
        let about = state.pages[page as usize];
        let live: u32 = segments
            .clone()
            .filter(|segment| !state.released.contains(*segment))
            .map(|at| self.tables.free[at as usize].load(Ordering::Relaxed).count_zeros())
            .sum();
        if about.is_packed
            || !about.is_present
            || about.retired > 0
            || live == 0
            || live > self.packed_max
            || segments.end > state.fresh
            || segments.clone().any(|segment| self.is_current(segment))
        {
            return;
        }
        if !state.directory_pages.contains(page >> self.page_shift) {
            if self.come(account, &self.tables.directory, page >> self.page_shift).is_err() {
                return;
            }
            state.directory_pages.put(page >> self.page_shift, 1);
        }
        let units = self.units_for(live);
        let Some(first) = self.take_units(account, &mut state.store, units) else {
            return;
        };
        if !self.put_packed(&mut state, page, first, units) {
            return self.give_back(account, &mut state.store, first, units);
        }
        for segment in segments {
            if state.available.contains(segment) {
                state.available.remove(segment, 1);
            }
            if state.released.contains(segment) {
                state.released.remove(segment, 1);
            }
        }
        let gone = self.tables.words.discard(page as usize, self.page.bytes()).is_ok();
        let about = &mut state.pages[page as usize];
        (about.segments, about.is_packed, about.is_present) = (0, true, !gone);
        if gone {
            account.release(self.page.bytes().get());
        }
        state.packed.put(page, 1);
    }

    /// Packs a packed page anew, or lets it go, if enough of it has died.
    #[cold]
    pub(super) fn look_at(&self, account: &Account, page: u32) {
        let mut state = lock(&self.state);
        if state.pages[page as usize].is_packed {
            self.look_under(account, &mut state, page);
        }
    }

    /// As [`Entries::look_at`], of a packed page, with the lock.
    pub(super) fn look_under(&self, account: &Account, state: &mut State, page: u32) {
        let (unit, seen) = (self.unit(), self.place_of(page << self.page_shift));
        let (mut had, mut live) = (0, 0);
        for segment in page * unit..(page + 1) * unit {
            let bits = self.bits_of(seen, segment);
            let died = self.tables.free[segment as usize].load(Ordering::Acquire);
            had += bits.count_ones();
            live += (bits & !died).count_ones();
        }
        let (before, after) = (self.units_for(had), self.units_for(live));
        if live == 0 {
            if let Some(taken) = self.take(state, page) {
                self.change_place(page, 0);
                self.give_back(account, &mut state.store, first_unit(seen), before);
                self.let_page_go(state, page, taken.base);
                self.let_free_go(account, state, page);
            }
            return;
        }
        if (before - after) * UNITS_PER_SAVED < before {
            return;
        }
        let Some(first) = self.take_units(account, &mut state.store, after) else { return };
        if self.put_packed(state, page, first, after) {
            self.give_back(account, &mut state.store, first_unit(seen), before);
        } else {
            self.give_back(account, &mut state.store, first, after);
        }
    }

    /// What is known of a packed page when nothing of it is left.
    fn let_page_go(&self, state: &mut State, page: u32, base: u32) {
        let about = &mut state.pages[page as usize];
        (about.is_packed, about.is_stale) = (false, about.is_present);
        about.base = base;
        if state.packed.contains(page) {
            state.packed.remove(page, 1);
        }
        if base != USED_UP {
            state.released.put(page * self.unit(), self.unit());
        }
    }

    /// Unpacks a page, if there is one that may be; whether it did.
    pub(super) fn unpack_one(&self, account: &Account, state: &mut State) -> Result<bool, NoRoom> {
        let Some(page) = state.packed.take(1) else { return Ok(false) };
        let done = self.unpack(account, state, page);
        if !matches!(done, Ok(true)) {
            state.packed.put(page, 1);
        }
        done
    }

    fn unpack(&self, account: &Account, state: &mut State, page: u32) -> Result<bool, NoRoom> {
        let was_present = state.pages[page as usize].is_present;
        if !was_present {
            self.come(account, &self.tables.words, page)?;
            state.pages[page as usize].is_present = true;
        }
        let seen = self.place_of(page << self.page_shift);
        // Where that fails the page stays for the next time.
        let Some(taken) = self.take(state, page) else { return Ok(false) };
        let (first, unit) = (page << self.page_shift, self.unit());
        let base = state.pages[page as usize].base;
        let mut words = taken.words.iter();
        for index in first..first + self.words_per_page() {
            let is_in = |bits: &[u64]| {
                bits[(index / SEGMENT % unit) as usize] >> (index % SEGMENT) & 1 == 1
            };
            let live = is_in(&taken.bits).then(|| words.next()).flatten();
            let word = match live {
                Some(word) => word.held(),
                // What died since goes on as it is.
                None if is_in(&taken.free) => self.load_packed(seen, index),
                None => {
                    if base >> GENERATION_BITS != 0 {
                        self.set_epoch(index, base >> GENERATION_BITS);
                    }
                    Entry::free(base)
                }
            };
            // A page that came just now is all zeros.
            if was_present || word.raw() != 0 {
                self.tables.words[index as usize].store(word.raw(), Ordering::Release);
            }
        }
        self.change_place(page, 0);
        let about = &mut state.pages[page as usize];
        about.is_packed = false;
        about.base = 0;
        for (segment, bits) in (page * unit..).zip(&taken.bits) {
            if *bits == 0 {
                state.released.put(segment, 1);
                continue;
            }
            state.pages[page as usize].segments += 1;
            // While its live words are held nothing of it is given back.
            self.tables.free[segment as usize].store(!bits, Ordering::Release);
            state.available.put(segment, 1);
        }
        self.let_all_go(page, &taken);
        let had = taken.bits.iter().zip(&taken.free).map(|(bits, died)| (bits | died).count_ones());
        self.give_back(account, &mut state.store, first_unit(seen), self.units_for(had.sum()));
        Ok(true)
    }

    /// Lets no segment be current.
    #[cfg(loom)]
    pub(crate) fn leave(&self) {
        let _state = lock(&self.state);
        self.current.store(super::NONE, Ordering::Relaxed);
    }

    /// Makes an entry that is free begin with a use.
    #[cfg(loom)]
    pub(crate) fn begin_at(&self, index: u32, named: u32) {
        self.tables.words[index as usize].store(Entry::free(named).raw(), Ordering::SeqCst);
        self.set_epoch(index, named >> GENERATION_BITS);
        self.has_epochs.store(1, Ordering::SeqCst);
    }

    #[cfg(loom)]
    pub(crate) fn is_packed(&self, page: u32) -> bool {
        is_packed(self.place_of(page << self.page_shift))
    }

    #[cfg(loom)]
    pub(crate) fn unpack_first(&self, account: &Account) -> bool {
        self.unpack_one(account, &mut lock(&self.state)).unwrap_or(false)
    }

    /// Sets the epoch of an entry that is nobody's; the page of epochs is present.
    fn set_epoch(&self, index: u32, epoch: u32) {
        let word = &self.tables.epochs[(index / EPOCHS) as usize];
        let at = index % EPOCHS * EPOCH_BITS;
        let others = word.load(Ordering::Relaxed) & !(u64::from(EPOCH_LAST) << at);
        word.store(others | u64::from(epoch) << at, Ordering::Release);
    }

    /// Changes the word of the directory, to that of a chunk or, of zero, to the entries' own
    /// places.
    fn change_place(&self, page: u32, to: u64) {
        let place = &self.tables.directory[page as usize];
        let changes = (place.load(Ordering::Relaxed) >> CHANGES_AT) as u32;
        let changes = u64::from(changes.wrapping_add(1));
        place.store(changes << CHANGES_AT | to, Ordering::SeqCst);
    }

    /// Moves the live words of a page to a chunk of so many units, which are what it takes if
    /// nothing else is going on; whether it did.
    fn put_packed(&self, state: &mut State, page: u32, first: u32, units: u32) -> bool {
        let unit = self.unit();
        let Some(taken) = self.take(state, page) else { return false };
        if self.units_for(taken.words.len() as u32) != units {
            self.undo(page, &taken);
            return false;
        }
        let words = taken.words.iter().map(|word| word.held().raw());
        let all = taken.bits.iter().copied().chain(words);
        for (at, word) in self.tables.packed[(first * unit) as usize..].iter().zip(all) {
            at.store(word, Ordering::Release);
        }
        self.change_place(page, u64::from(first) << UNIT_AT | PACKED);
        self.let_all_go(page, &taken);
        state.pages[page as usize].base = taken.base;
        true
    }
}
