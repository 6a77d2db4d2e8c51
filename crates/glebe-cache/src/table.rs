//! [`Table`] is a place: an index, and a ring of entries. Any part may turn into zeros.
//!
//! ```text
//!  0        64             2 MiB / 32 + 64                             2 MiB
//! +--------+--------------+-------------------------------------------+
//! | head   | sets of 8    | ring: header, key, value, padding | ...   |
//! +--------+--------------+-------------------------------------------+
//! ```
//!
//! A writer takes the next bytes of the ring by one addition to `head`, writes its entry there, and
//! then publishes it: a slot of the key's set gets the entry's position. The newest entries
//! overwrite the oldest. Positions count from the ring's first use on, so a position tells if its
//! entry was overwritten. They begin at random, unlike those of a later ring.
//!
//! A reader copies the value and then checks its checksum, which covers hash, position and length.
//! So a lost, torn or foreign entry is a miss. A writer that stops for a whole turn of the ring
//! spoils a newer entry, whose checksum then fails. Nobody waits for anybody.

use glebe_os::internal::hash::hash;
use glebe_os::internal::mapping::Part;
use glebe_os::internal::sync::{fence, MappedWord, Ordering};
use glebe_os::internal::sys::machine::random;

/// Unit of the ring, and bytes of a set.
const LINE: usize = 64;
const WAYS: usize = 8;
const WORD: usize = size_of::<u64>();
const HEAD: usize = 0;
const SETS: usize = LINE;
/// The index has this share of a place.
const INDEX_SHARE: usize = 32;
/// Bits of a slot that tell the entry's line, plus 1. The others are a part of the hash.
const LINE_BITS: u32 = 48;
/// Bytes of an entry before its key.
const HEADER: usize = 4 * WORD;
/// Bit of a header's lengths: the value is a [`Long`](crate::long::Long).
const IS_LONG: u64 = 1 << 63;
/// Bits of a position. The head may have more.
const POSITIONS: u64 = (1 << LINE_BITS) * LINE as u64 - 1;
/// Attempts to change a slot against other writers.
const TRIES: usize = 64;

/// A view of a place. Cheap to make.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Table<'a> {
    part: Part<'a>,
    sets: usize,
    /// Bytes of the ring.
    ring: usize,
}

/// An entry that was found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    hash: u64,
    position: u64,
    key_len: usize,
    value_len: usize,
    is_long: bool,
    sum: u64,
    slot: usize,
    word: u64,
}

impl Entry {
    pub(crate) fn value_len(&self) -> usize {
        self.value_len
    }

    pub(crate) fn is_long(&self) -> bool {
        self.is_long
    }
}

fn ring_at(len: usize) -> usize {
    SETS + len / INDEX_SHARE / LINE * LINE
}

fn sum(hash_of_key: u64, position: u64, value: &[u8]) -> u64 {
    hash(hash_of_key ^ position.rotate_left(32), value)
}

impl<'a> Table<'a> {
    pub(crate) fn new(part: Part<'a>) -> Self {
        let at = ring_at(part.len());
        Self { part, sets: (at - SETS) / LINE, ring: (part.len() - at) / LINE * LINE }
    }

    /// Finds the newest entry of a key.
    pub(crate) fn find(&self, hash: u64, key: &[u8]) -> Option<Entry> {
        let tag = tag(hash);
        let mut newest: Option<Entry> = None;
        for slot in self.slots(hash) {
            let word = self.part.word(slot).load(Ordering::Acquire);
            if word == 0 || word >> LINE_BITS != tag {
                continue;
            }
            let position = position_of(word);
            if !self.has(position) || newest.is_some_and(|it| it.position > position) {
                continue;
            }
            if let Some(entry) = self.entry(slot, word, hash, key) {
                newest = Some(entry);
            }
        }
        newest
    }

    fn entry(&self, slot: usize, word: u64, hash: u64, key: &[u8]) -> Option<Entry> {
        let position = position_of(word);
        let mut header = [0; HEADER];
        self.copy_out(position, &mut header);
        let field = |nth: usize| {
            let bytes = header[nth * WORD..].first_chunk().copied();
            u64::from_le_bytes(bytes.unwrap_or_default())
        };
        let lens = field(2);
        let is_long = lens & IS_LONG != 0;
        let (key_len, value_len) = (lens as u32 as usize, (lens & !IS_LONG) as usize >> 32);
        let fits = key_len + value_len + HEADER <= self.ring;
        if field(0) != hash || field(1) != position || key_len != key.len() || !fits {
            return None;
        }
        let mut chunk = [0; 256];
        for (nth, expected) in key.chunks(chunk.len()).enumerate() {
            let found = &mut chunk[..expected.len()];
            self.copy_out(position + (HEADER + nth * 256) as u64, found);
            if found != expected {
                return None;
            }
        }
        Some(Entry { hash, position, key_len, value_len, is_long, sum: field(3), slot, word })
    }

    /// Copies the value out. Returns false if the entry is not whole any more.
    pub(crate) fn copy(&self, entry: &Entry, value: &mut [u8]) -> bool {
        if value.len() != entry.value_len {
            return false;
        }
        self.copy_out(entry.position + (HEADER + entry.key_len) as u64, value);
        fence(Ordering::Acquire);
        sum(entry.hash, entry.position, value) == entry.sum
    }

    /// Returns true if the ring overwrites the entry soon.
    pub(crate) fn is_old(&self, entry: &Entry) -> bool {
        let head = self.part.word(HEAD).load(Ordering::Relaxed);
        head.wrapping_sub(entry.position) & POSITIONS > (self.ring - self.ring / 4) as u64
    }

    /// Writes an entry again, unless another writer has changed its slot.
    pub(crate) fn renew(&self, entry: &Entry, key: &[u8], value: &[u8]) {
        let word = self.write(entry.hash, key, value, entry.is_long);
        self.exchange(entry.slot, entry.word, word);
    }

    /// Stores a value, which replaces an older one. Returns false if the key lost against other
    /// writers, or is too long for the ring; then no older value is left.
    pub(crate) fn put(&self, hash: u64, key: &[u8], value: &[u8], is_long: bool) -> bool {
        if HEADER + key.len() + value.len() > self.ring {
            self.remove(hash);
            return false;
        }
        let word = self.write(hash, key, value, is_long);
        for _ in 0..TRIES {
            let (slot, was) = self.victim(hash);
            if self.exchange(slot, was, word) {
                // Two writers may publish in two slots at once. Then one sees the other's slot.
                self.clear(hash, Some(slot));
                return true;
            }
        }
        self.remove(hash);
        false
    }

    /// Removes a key's entries.
    pub(crate) fn remove(&self, hash: u64) {
        self.clear(hash, None);
    }

    /// Empties a key's slots but `own`. Tries again if a reader renews an entry meanwhile.
    fn clear(&self, hash: u64, own: Option<usize>) {
        for slot in self.slots(hash).filter(|slot| Some(*slot) != own) {
            for _ in 0..TRIES {
                let word = self.part.word(slot).load(Ordering::SeqCst);
                let is_other = word == 0 || word >> LINE_BITS != tag(hash);
                if is_other || self.exchange(slot, word, 0) {
                    break;
                }
            }
        }
    }

    /// Writes an entry, and returns the word that publishes it.
    fn write(&self, hash: u64, key: &[u8], value: &[u8], is_long: bool) -> u64 {
        let len = (HEADER + key.len() + value.len()).next_multiple_of(LINE) as u64;
        let position = self.head().fetch_add(len, Ordering::SeqCst);
        let position = (position & POSITIONS) / LINE as u64 * LINE as u64;
        let lens = key.len() as u64 | (value.len() as u64) << 32;
        let lens = if is_long { lens | IS_LONG } else { lens };
        let fields = [hash, position, lens, sum(hash, position, value)];
        let mut header = [0; HEADER];
        header.chunks_exact_mut(WORD).zip(fields).for_each(|(to, field)| {
            to.copy_from_slice(&field.to_le_bytes());
        });
        self.copy_in(position, &header);
        self.copy_in(position + HEADER as u64, key);
        self.copy_in(position + (HEADER + key.len()) as u64, value);
        fence(Ordering::Release);
        tag(hash) << LINE_BITS | (position / LINE as u64 + 1) & ((1 << LINE_BITS) - 1)
    }

    fn head(&self) -> &MappedWord {
        let head = self.part.word(HEAD);
        if head.load(Ordering::Relaxed) == 0 {
            self.begin(head);
        }
        head
    }

    #[cold]
    fn begin(&self, head: &MappedWord) {
        let mut start = [1; WORD];
        // Any number will do.
        let _ = random::fill(&mut start);
        let start = (u64::from_le_bytes(start) & POSITIONS | 1).wrapping_mul(LINE as u64);
        let _ = head.compare_exchange(0, start, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// Returns the slot to write: this key's, else a free one, else the one of the oldest entry.
    fn victim(&self, hash: u64) -> (usize, u64) {
        let all = self.slots(hash).map(|slot| (slot, self.part.word(slot).load(Ordering::SeqCst)));
        let rank = |(_, word): &(usize, u64)| match *word {
            word if word != 0 && word >> LINE_BITS == tag(hash) => (0, 0),
            0 => (1, 0),
            word if !self.has(position_of(word)) => (1, 1),
            word => (2, position_of(word)),
        };
        all.min_by_key(rank).unwrap_or((SETS, 0))
    }

    fn slots(&self, hash: u64) -> impl Iterator<Item = usize> {
        let first = SETS + (hash as u32 as usize % self.sets) * LINE;
        (0..WAYS).map(move |way| first + way * WORD)
    }

    fn exchange(&self, slot: usize, was: u64, word: u64) -> bool {
        let word_at = self.part.word(slot);
        word_at.compare_exchange(was, word, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Returns true unless the ring has overwritten the entry.
    fn has(&self, position: u64) -> bool {
        let head = self.part.word(HEAD).load(Ordering::Acquire);
        head.wrapping_sub(position) & POSITIONS <= self.ring as u64
    }

    fn copy_out(&self, position: u64, bytes: &mut [u8]) {
        let (at, first) = self.place(position, bytes.len());
        let (head, tail) = bytes.split_at_mut(first);
        self.part.read(at, head);
        if !tail.is_empty() {
            self.part.read(self.ring_at(), tail);
        }
    }

    fn copy_in(&self, position: u64, bytes: &[u8]) {
        let (at, first) = self.place(position, bytes.len());
        let (head, tail) = bytes.split_at(first);
        self.part.write(at, head);
        if !tail.is_empty() {
            self.part.write(self.ring_at(), tail);
        }
    }

    /// Returns where the bytes at a position begin, and how many there are before the ring's end.
    fn place(&self, position: u64, len: usize) -> (usize, usize) {
        let at = (position % self.ring as u64) as usize;
        (self.ring_at() + at, len.min(self.ring - at))
    }

    fn ring_at(&self) -> usize {
        SETS + self.sets * LINE
    }
}

fn tag(hash: u64) -> u64 {
    // Bits that choose neither the place nor the set.
    hash >> 32 & 0xffff
}

fn position_of(word: u64) -> u64 {
    (word.wrapping_sub(1) & ((1 << LINE_BITS) - 1)) * LINE as u64
}

#[cfg(test)]
mod tests;
