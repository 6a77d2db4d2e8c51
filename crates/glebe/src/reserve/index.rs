//! [`Index`] of the page cache maps a key's hash to the page uses (page and generation) that may
//! hold the key.
//!
//! A bucket is two cache lines: a header and fifteen slots. One exchange of the header, without a
//! lock, publishes an entry and ends the replaced entry.
//!
//! ```text
//! header  63                 30 29        15 14         0
//!        +---------------------+------------+------------+
//!        |       version       |  claimed   |   valid    |
//!        |         34          |     15     |     15     |
//!        +---------------------+------------+------------+
//! slot    63        49 48          33 32                 0
//!        +------------+--------------+--------------------+
//!        |    tag     |  generation  |        page        |
//!        |     15     |      16      |         33         |
//!        +------------+--------------+--------------------+
//! ```
//!
//! Each change of the header raises `version`, so a successful exchange proves that the bucket did
//! not change since the search. An entry is a hint: after first class took the page, the entry
//! stays until a publication in this bucket ends it.
//!
//! `tag` is the hash's top bits; the low bits choose the bucket. The pages' key words distinguish
//! keys with equal tags. A publication ends the stale entries of its tag.
//!
//! `generation` is the low bits of the page's generation ([`super::words`]), so an entry names one
//! use of its page. If a put reuses the page of its key's stale entry, these bits match with
//! probability 2^-16. A reader may then find the new page before its publication, and later an
//! older page, if another put of the key ends the stale entry.
//!
//! # Safety
//! A bucket's words may be zero.
#![allow(unsafe_code)]

use super::lent::Meta;
use super::table::{Table, Tables, Zeros};
use super::words::PageUse;
use glebe_os::error::OsError;
use glebe_os::internal::sync::{prefetch, AtomicU64, Ordering};

const SLOTS: usize = 15;
const VALID_MASK: u64 = (1 << SLOTS) - 1;
const CLAIMED_SHIFT: u32 = SLOTS as u32;
const VERSION_ONE: u64 = 1 << (2 * SLOTS);
const TAG_SHIFT: u32 = 49;
const GENERATION_SHIFT: u32 = 33;
const _: () = assert!(TAG_SHIFT - GENERATION_SHIFT == u16::BITS);
/// A bucket has about this many entries on average, or fewer.
const LOAD: usize = 6;

#[derive(Debug)]
#[repr(align(128))]
struct Bucket {
    header: AtomicU64,
    slots: [AtomicU64; SLOTS],
}

const _: () = assert!(cfg!(loom) || size_of::<Bucket>() == 128);

// SAFETY: a bucket consists of atomic words, which may be zero.
unsafe impl Zeros for Bucket {}

#[cfg(loom)]
impl Default for Bucket {
    fn default() -> Self {
        let word = || AtomicU64::new(0);
        Self { header: word(), slots: std::array::from_fn(|_| word()) }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct PageKey {
    pub(crate) meta: Meta,
    pub(crate) hash: u64,
}

#[derive(Debug)]
pub(crate) struct Index {
    buckets: Table<Bucket>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    Same,
    Other,
    Stale,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Published {
    pub(crate) replaced: Option<PageUse>,
    /// Page use whose slot was taken because the bucket was full.
    pub(crate) displaced: Option<PageUse>,
}

#[inline]
fn entry_of(hash: u64, at: PageUse) -> u64 {
    debug_assert!(at.page >> GENERATION_SHIFT == 0);
    (hash >> TAG_SHIFT) << TAG_SHIFT | u64::from(at.generation) << GENERATION_SHIFT | at.page as u64
}

#[inline]
fn use_of(entry: u64) -> PageUse {
    let page = entry & ((1 << GENERATION_SHIFT) - 1);
    PageUse { page: page as usize, generation: (entry >> GENERATION_SHIFT) as u16 }
}

#[inline]
fn is_tagged(entry: u64, hash: u64) -> bool {
    entry >> TAG_SHIFT == hash >> TAG_SHIFT
}

fn with(header: u64, set: u64, clear: u64) -> u64 {
    ((header & !clear) | set).wrapping_add(VERSION_ONE)
}

#[inline]
fn slots_of(mut bits: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let slot = bits.trailing_zeros() as usize;
        bits &= bits.wrapping_sub(1);
        (slot < SLOTS).then_some(slot)
    })
}

impl Index {
    pub(crate) fn new(tables: &mut Tables, pages: usize) -> Result<Self, OsError> {
        let buckets = (pages / LOAD).next_power_of_two();
        Ok(Self { buckets: tables.zeros(buckets)? })
    }

    fn bucket(&self, hash: u64) -> &Bucket {
        &self.buckets[hash as usize & (self.buckets.len() - 1)]
    }

    #[inline]
    pub(crate) fn prefetch(&self, hash: u64) {
        let bucket = self.bucket(hash);
        prefetch(&bucket.header);
        prefetch(&bucket.slots[SLOTS - 1]);
    }

    #[inline]
    pub(crate) fn find(&self, hash: u64, mut take: impl FnMut(PageUse) -> bool) -> Option<PageUse> {
        let bucket = self.bucket(hash);
        let header = bucket.header.load(Ordering::Acquire);
        slots_of(header & VALID_MASK).find_map(|slot| {
            let entry = bucket.entry(slot);
            let at = use_of(entry);
            (is_tagged(entry, hash) && take(at) && bucket.still(slot, entry)).then_some(at)
        })
    }

    /// Makes `at` the only entry of its key. Returns `None` if other publishers have claimed all
    /// slots.
    pub(crate) fn publish(
        &self,
        hash: u64,
        at: PageUse,
        held: impl Fn(PageUse) -> Held,
    ) -> Option<Published> {
        let bucket = self.bucket(hash);
        let (slot, displaced) = bucket.claim(hash, &held)?;
        let entry = entry_of(hash, at);
        bucket.slots[slot].store(entry, Ordering::Release);
        let mut header = bucket.header.load(Ordering::Acquire);
        loop {
            let (ended, replaced) = bucket.ended_by(header, hash, entry, &held);
            let claimed = 1 << (slot as u32 + CLAIMED_SHIFT);
            match bucket.exchange(header, with(header, 1 << slot, claimed | ended)) {
                Ok(()) => return Some(Published { replaced, displaced }),
                Err(now) => header = now,
            }
        }
    }

    pub(crate) fn remove(&self, hash: u64, same: impl Fn(PageUse) -> bool) -> Option<PageUse> {
        let bucket = self.bucket(hash);
        let mut header = bucket.header.load(Ordering::Acquire);
        loop {
            let (slot, at) = bucket.tagged(header, hash).find(|(_, at)| same(*at))?;
            match bucket.exchange(header, with(header, 0, 1 << slot)) {
                Ok(()) => return Some(at),
                Err(now) => header = now,
            }
        }
    }
}

impl Bucket {
    fn exchange(&self, old: u64, new: u64) -> Result<(), u64> {
        self.header.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire).map(|_| ())
    }

    #[inline]
    fn entry(&self, slot: usize) -> u64 {
        self.slots[slot].load(Ordering::Acquire)
    }

    #[inline]
    fn still(&self, slot: usize, entry: u64) -> bool {
        self.entry(slot) == entry && self.header.load(Ordering::Acquire) & (1 << slot) != 0
    }

    fn tagged(&self, header: u64, hash: u64) -> impl Iterator<Item = (usize, PageUse)> + use<'_> {
        slots_of(header & VALID_MASK).filter_map(move |slot| {
            let entry = self.entry(slot);
            is_tagged(entry, hash).then(|| (slot, use_of(entry)))
        })
    }

    fn ended_by(
        &self,
        header: u64,
        hash: u64,
        entry: u64,
        held: &impl Fn(PageUse) -> Held,
    ) -> (u64, Option<PageUse>) {
        let (mut ended, mut replaced) = (0, None);
        for (slot, at) in self.tagged(header, hash) {
            if at == use_of(entry) {
                ended |= 1 << slot; // a stale entry with the same bits
                continue;
            }
            match held(at) {
                Held::Other => continue,
                Held::Same => replaced = Some(at),
                Held::Stale => {}
            }
            ended |= 1 << slot;
        }
        (ended, replaced)
    }

    fn claim(
        &self,
        hash: u64,
        held: &impl Fn(PageUse) -> Held,
    ) -> Option<(usize, Option<PageUse>)> {
        let mut header = self.header.load(Ordering::Acquire);
        loop {
            let (slot, displaced) = self.choose(header, hash, held)?;
            let next = with(header, 1 << (slot as u32 + CLAIMED_SHIFT), 1 << slot);
            match self.exchange(header, next) {
                Ok(()) => return Some((slot, displaced)),
                Err(now) => header = now,
            }
        }
    }

    fn choose(
        &self,
        header: u64,
        hash: u64,
        held: &impl Fn(PageUse) -> Held,
    ) -> Option<(usize, Option<PageUse>)> {
        let valid = header & VALID_MASK;
        let claimed = (header >> CLAIMED_SHIFT) & VALID_MASK;
        if let Some(slot) = slots_of(!(valid | claimed) & VALID_MASK).next() {
            return Some((slot, None));
        }
        let at = |slot: usize| use_of(self.entry(slot));
        if let Some(slot) = slots_of(valid).find(|slot| held(at(*slot)) == Held::Stale) {
            return Some((slot, None));
        }
        let nth = (hash >> 20) as usize % valid.count_ones().max(1) as usize;
        let slot = slots_of(valid).nth(nth)?;
        Some((slot, Some(at(slot))))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use glebe_os::units::Bytes;

    fn index(pages: usize) -> Index {
        Index::new(&mut Tables::new(Bytes::mib(2)).unwrap(), pages).unwrap()
    }

    const OTHER: fn(PageUse) -> Held = |_| Held::Other;
    const TAG: u64 = 1 << TAG_SHIFT;
    const HASH: u64 = 0x2bcd * TAG + 1;

    fn at(page: usize, generation: u16) -> PageUse {
        PageUse { page, generation }
    }

    fn same(same: PageUse) -> impl Fn(PageUse) -> Held {
        move |other| if other == same { Held::Same } else { Held::Other }
    }

    #[test]
    fn entries_give_back_what_they_were_made_of() {
        for at in [at(0, 0), at((1 << GENERATION_SHIFT) - 1, 0), at(0, u16::MAX), at(7, 9)] {
            let entry = entry_of(HASH, at);
            assert_eq!(use_of(entry), at);
            assert!(is_tagged(entry, HASH) && !is_tagged(entry, HASH ^ TAG));
        }
    }

    #[test]
    fn publishing_a_key_again_ends_its_old_entry() {
        let index = index(64);
        assert_eq!(index.publish(HASH, at(7, 1), OTHER), Some(Published::default()));
        let again = index.publish(HASH, at(8, 1), same(at(7, 1))).unwrap();
        assert_eq!(again.replaced, Some(at(7, 1)));
        assert_eq!(index.find(HASH, |_| true), Some(at(8, 1)));
        assert_eq!(index.remove(HASH, |other| other == at(8, 1)), Some(at(8, 1)));
        assert_eq!(index.find(HASH, |_| true), None);
    }

    #[test]
    fn publishing_a_key_ends_the_stale_entries_of_its_tag() {
        let index = index(64);
        for old in [at(7, 1), at(7, 2), at(9, 1)] {
            index.publish(HASH, old, OTHER);
        }
        let held = |other: PageUse| if other.page == 9 { Held::Other } else { Held::Stale };
        let again = index.publish(HASH, at(7, 3), held).unwrap();
        assert_eq!(again, Published::default());
        assert_eq!(index.remove(HASH, |other| other.page == 7), Some(at(7, 3)));
        assert_eq!(index.remove(HASH, |other| other.page == 7), None);
        assert_eq!(index.find(HASH, |_| true), Some(at(9, 1)));
    }

    #[test]
    fn a_page_whose_bits_came_round_has_one_entry() {
        let index = index(64);
        index.publish(HASH, at(7, 1), OTHER);
        index.publish(HASH, at(8, 1), OTHER);
        let again = index.publish(HASH, at(7, 1), same(at(8, 1))).unwrap();
        assert_eq!(again.replaced, Some(at(8, 1)));
        assert_eq!(index.remove(HASH, |other| other == at(7, 1)), Some(at(7, 1)));
        assert_eq!(index.find(HASH, |_| true), None);
    }

    #[test]
    fn another_tag_is_another_key() {
        let index = index(6);
        index.publish(TAG, at(3, 1), OTHER);
        assert_eq!(index.find(2 * TAG, |_| true), None);
    }

    #[test]
    fn a_full_bucket_takes_the_stale_slot_first_and_then_somebodys() {
        let index = index(6);
        for page in 0..SLOTS {
            let all = index.publish(page as u64 * TAG, at(page, 1), OTHER).unwrap();
            assert_eq!(all.displaced, None);
        }
        let stale = |other| if other == at(4, 1) { Held::Stale } else { Held::Other };
        let published = index.publish(99 * TAG, at(99, 1), stale).unwrap();
        assert_eq!(published, Published::default());
        assert_eq!(index.find(4 * TAG, |_| true), None);
        let published = index.publish(98 * TAG, at(98, 1), OTHER).unwrap();
        assert!(published.displaced.is_some());
        assert_eq!(index.find(98 * TAG, |_| true), Some(at(98, 1)));
    }

    #[test]
    fn an_entry_that_goes_while_it_is_read_is_no_hit() {
        let index = index(6);
        index.publish(5 * TAG, at(5, 1), OTHER);
        let gone = |_| index.remove(5 * TAG, |_| true).is_some();
        assert_eq!(index.find(5 * TAG, gone), None);
    }
}
