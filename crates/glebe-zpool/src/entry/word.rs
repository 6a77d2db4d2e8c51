//! [`Entry`] is the word behind a handle, and says where the object's bytes are.
//!
//! ```text
//!  63        38 37    28 27              16 15  13  12  11        0
//! +------------+--------+------------------+------+-----+------------+
//! |   zspage   |  slot  |     bytes-1      | kind |  0  | generation |    4 KiB pages
//! |     26     |   10   |        12        |  3   |  1  |     12     |
//! +------------+--------+------------------+------+-----+------------+
//! ```
//!
//! On machines other than x86-64, the length has four more bits and the generation four fewer.
//! `bytes` counts stored bytes. A free entry has the generation of its next object; the word zero
//! is free.
//!
//! An object that repeats a 32-bit value may be *filled*: the value replaces zspage and slot, and
//! `bytes` is the object's length.

pub(crate) const ZSPAGE_BITS: u32 = 26;
const SLOT_BITS: u32 = 10;
const LENGTH_BITS: u32 = if cfg!(target_arch = "x86_64") { 12 } else { 16 };
const KIND_BITS: u32 = 3;
pub(crate) const GENERATION_BITS: u32 = KIND_AT - 1;
pub(crate) const EPOCH_BITS: u32 = 8;

const KIND_AT: u32 = LENGTH_AT - KIND_BITS;
const LENGTH_AT: u32 = SLOT_AT - LENGTH_BITS;
const SLOT_AT: u32 = ZSPAGE_AT - SLOT_BITS;
const ZSPAGE_AT: u32 = u64::BITS - ZSPAGE_BITS;

pub(crate) const SLOTS_MAX: u32 = 1 << SLOT_BITS;
/// Bytes of the longest object whose length fits.
pub(crate) const PAGE_MAX: u64 = 1 << LENGTH_BITS;

/// How the bytes of an object are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The entry names no object.
    Free,
    /// As given.
    Raw,
    /// A page, compressed by the pool's codec.
    Coded,
    /// Less than a page, compressed. The last two bytes are the object's length.
    Short,
    /// A repeated 32-bit value, stored in the entry.
    Filled,
}

const KINDS: [Kind; 5] = [Kind::Free, Kind::Raw, Kind::Coded, Kind::Short, Kind::Filled];

const FREE: u64 = Kind::Free as u64;
const FILLED: u64 = Kind::Filled as u64;

#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Entry(u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub zspage: u32,
    pub(crate) slot: u32,
}

const fn field(word: u64, at: u32, bits: u32) -> u64 {
    word >> at & ((1 << bits) - 1)
}

impl Entry {
    pub(crate) const fn from_raw(word: u64) -> Self {
        Self(word)
    }

    pub(crate) const fn raw(self) -> u64 {
        self.0
    }

    pub(crate) const fn free(generation: u32) -> Self {
        Self(field(generation as u64, 0, GENERATION_BITS))
    }

    #[inline]
    pub(crate) fn live(kind: Kind, place: Place, len: usize, generation: u32) -> Self {
        debug_assert!(place.zspage >> ZSPAGE_BITS == 0 && place.slot < SLOTS_MAX);
        debug_assert!(!matches!(kind, Kind::Free | Kind::Filled));
        Self(Self::place_word(place) | Self::rest(kind, len, generation))
    }

    pub(crate) fn filled(fill: u32, len: usize, generation: u32) -> Self {
        Self(u64::from(fill) << SLOT_AT | Self::rest(Kind::Filled, len, generation))
    }

    #[inline]
    fn place_word(place: Place) -> u64 {
        u64::from(place.zspage) << ZSPAGE_AT | u64::from(place.slot) << SLOT_AT
    }

    #[inline]
    fn rest(kind: Kind, len: usize, generation: u32) -> u64 {
        debug_assert!((1..=PAGE_MAX).contains(&(len as u64)));
        (len as u64 - 1) << LENGTH_AT
            | (kind as u64) << KIND_AT
            | field(u64::from(generation), 0, GENERATION_BITS)
    }

    #[inline]
    pub(crate) fn kind(self) -> Kind {
        // Every word has a valid kind; the remainder only avoids a bounds check.
        KINDS[field(self.0, KIND_AT, KIND_BITS) as usize % KINDS.len()]
    }

    #[inline]
    pub(crate) fn is_live(self) -> bool {
        field(self.0, KIND_AT, KIND_BITS) != FREE
    }

    #[inline]
    pub(crate) fn generation(self) -> u32 {
        field(self.0, 0, GENERATION_BITS) as u32
    }

    #[inline]
    pub(crate) fn has_place(self) -> bool {
        let kind = field(self.0, KIND_AT, KIND_BITS);
        kind != FREE && kind != FILLED
    }

    /// Returns the number of stored bytes; zero for a filled object.
    #[inline]
    pub fn len(self) -> usize {
        if field(self.0, KIND_AT, KIND_BITS) == FILLED {
            0
        } else {
            self.bytes()
        }
    }

    #[inline]
    pub(crate) fn bytes(self) -> usize {
        field(self.0, LENGTH_AT, LENGTH_BITS) as usize + 1
    }

    pub(crate) fn fill(self) -> u32 {
        (self.0 >> SLOT_AT) as u32
    }

    #[inline]
    pub fn place(self) -> Place {
        let zspage = field(self.0, ZSPAGE_AT, ZSPAGE_BITS) as u32;
        Place { zspage, slot: field(self.0, SLOT_AT, SLOT_BITS) as u32 }
    }

    #[inline]
    pub(crate) fn moved(self, to: Place) -> Self {
        Self(self.0 & ((1 << SLOT_AT) - 1) | Self::place_word(to))
    }

    #[inline]
    pub(crate) fn freed(self) -> Self {
        Self::free(self.generation().wrapping_add(1))
    }
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} {:?} {} g{}", self.kind(), self.place(), self.len(), self.generation())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_do_not_touch() {
        let (zspages, slots) = ((1 << ZSPAGE_BITS) - 1, SLOTS_MAX - 1);
        let generations = (1 << GENERATION_BITS) - 1;
        for zspage in [0, 1, zspages] {
            for slot in [0, 1, slots] {
                for len in [1, 2, PAGE_MAX as usize] {
                    for generation in [0, 1, generations] {
                        let place = Place { zspage, slot };
                        parts(place, len, generation);
                    }
                }
            }
        }
        assert_eq!(Entry::free(0).raw(), 0);
    }

    fn parts(place: Place, len: usize, generation: u32) {
        for (number, kind) in KINDS.into_iter().enumerate() {
            assert_eq!(kind as usize, number);
            if matches!(kind, Kind::Free | Kind::Filled) {
                continue;
            }
            let entry = Entry::live(kind, place, len, generation);
            assert_eq!((entry.place(), entry.bytes()), (place, len));
            assert_eq!((entry.kind(), entry.generation()), (kind, generation));
            assert_eq!(entry.len(), len);
            assert_eq!(entry.moved(Place { zspage: 7, slot: 3 }).moved(place), entry);
            let freed = entry.freed();
            assert!(!freed.is_live() && !freed.has_place() && entry.has_place());
            assert_eq!(freed.generation(), (generation + 1) & ((1 << GENERATION_BITS) - 1));
        }
        for fill in [0, 1, u32::MAX] {
            let entry = Entry::filled(fill, len, generation);
            assert_eq!((entry.fill(), entry.bytes(), entry.len()), (fill, len, 0));
            assert_eq!((entry.kind(), entry.generation()), (Kind::Filled, generation));
            assert!(!entry.has_place() && entry.is_live());
        }
    }
}
