//! [`Long`] is a value in parts, in different places, so that long values fill places evenly.
//!
//! The key's entry has the value's length and a random number, which is the parts' key. So parts of
//! two values never mix. A lost part makes the whole value a miss.

use glebe_lease::internal::PlaceUse;
use glebe_os::internal::hash::hash;
use glebe_os::internal::sys::machine::random;

use crate::store::Store;
use crate::table::Table;

/// Bytes of a part.
const PART: usize = 64 << 10;
const WORD: usize = size_of::<u64>();

#[derive(Clone, Copy, Debug)]
pub(crate) struct Long {
    number: u64,
    len: usize,
}

impl Long {
    /// Values of more bytes are stored in parts.
    pub(crate) const MIN: usize = 2 * PART;
    /// Bytes in the key's entry.
    pub(crate) const HEAD: usize = 2 * WORD;

    /// Stores the parts; `None` if the cache has no memory for one.
    pub(crate) fn put(store: &Store, value: &[u8]) -> Option<Self> {
        // The kernel's numbers differ in forked children, unlike the standard library's.
        let mut number = [0; WORD];
        random::fill(&mut number).ok()?;
        let long = Self { number: u64::from_le_bytes(number), len: value.len() };
        for (nth, part) in value.chunks(PART).enumerate() {
            let (key, hash) = long.part(store, nth);
            let put = store.with(store.place_of(hash), PlaceUse::Fill, |at| {
                Table::new(at).put(hash, &key, part, false)
            });
            put.filter(|is_kept| *is_kept)?;
        }
        Some(long)
    }

    /// Returns false if a part is lost.
    pub(crate) fn copy(&self, store: &Store, value: &mut [u8]) -> bool {
        value.len() == self.len
            && value.chunks_mut(PART).enumerate().all(|(nth, part)| {
                let (key, hash) = self.part(store, nth);
                let copied = store.with(store.place_of(hash), PlaceUse::Read, |at| {
                    let table = Table::new(at);
                    table.find(hash, &key).is_some_and(|entry| table.copy(&entry, part))
                });
                copied == Some(true)
            })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn head(&self) -> [u8; Self::HEAD] {
        words([self.number, self.len as u64])
    }

    pub(crate) fn of_head(head: [u8; Self::HEAD]) -> Self {
        let word =
            |at: usize| head[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        Self { number: word(0), len: word(WORD) as usize }
    }

    fn part(&self, store: &Store, nth: usize) -> ([u8; Self::HEAD], u64) {
        let key = words([self.number, nth as u64]);
        (key, hash(store.seed(), &key))
    }
}

fn words(words: [u64; 2]) -> [u8; Long::HEAD] {
    let mut bytes = [0; Long::HEAD];
    bytes.chunks_exact_mut(WORD).zip(words).for_each(|(to, word)| {
        to.copy_from_slice(&word.to_le_bytes());
    });
    bytes
}
