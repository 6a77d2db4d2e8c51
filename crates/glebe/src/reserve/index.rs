//! The index of the page cache: from a key's hash to the page that may hold it.
//!
//! Buckets of two cache lines, each one header word and fifteen slots. Nobody locks: an entry is
//! published, together with the end of the entry that it replaces, by one exchange of the header.
//!
//! ```text
//! header  63                 30 29        15 14         0      slot  63      32 31       0
//!        +---------------------+------------+------------+          +----------+----------+
//!        |       version       |  claimed   |   valid    |          |   tag    |   page   |
//!        |         34          |     15     |     15     |          |    32    |    32    |
//!        +---------------------+------------+------------+          +----------+----------+
//! ```
//!
//! The version grows with every change, so an exchange proves that the bucket is as it was
//! searched. An entry says "may hold": pages that first class took keep their entries until
//! somebody finds them stale. Keys that crowd one bucket displace each other, which costs a miss.

use super::table::{Table, Tables};
use crate::error::OsError;
use crate::sync::{prefetch, AtomicU64, Ordering};

const SLOTS: usize = 15;
const VALID_MASK: u64 = (1 << SLOTS) - 1;
const CLAIMED_SHIFT: u32 = SLOTS as u32;
const VERSION_ONE: u64 = 1 << (2 * SLOTS);
/// Entries that a bucket holds on average when every page is in use.
const LOAD: usize = 6;

#[derive(Debug)]
#[repr(align(128))]
struct Bucket {
    header: AtomicU64,
    slots: [AtomicU64; SLOTS],
}

const _: () = assert!(cfg!(loom) || size_of::<Bucket>() == 128);

#[derive(Debug)]
pub(crate) struct Index {
    buckets: Table<Bucket>,
}

/// What had to go for an entry to be published.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Published {
    /// The page that held the same key.
    pub(crate) replaced: Option<usize>,
    /// A page of another key that lost its entry for want of room.
    pub(crate) displaced: Option<usize>,
}

fn with(header: u64, set: u64, clear: u64) -> u64 {
    ((header & !clear) | set).wrapping_add(VERSION_ONE)
}

/// The slots whose bits are set, lowest first.
#[inline]
fn slots_of(mut bits: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let slot = bits.trailing_zeros() as usize;
        bits &= bits.wrapping_sub(1);
        (slot < SLOTS).then_some(slot)
    })
}

impl Index {
    /// For at most `pages` entries.
    pub(crate) fn new(tables: &mut Tables, pages: usize) -> Result<Self, OsError> {
        let buckets = (pages / LOAD).next_power_of_two();
        let bucket = |_| Bucket {
            header: AtomicU64::new(0),
            slots: std::array::from_fn(|_| AtomicU64::new(0)),
        };
        Ok(Self { buckets: tables.table(buckets, bucket)? })
    }

    fn bucket(&self, hash: u64) -> &Bucket {
        &self.buckets[hash as usize & (self.buckets.len() - 1)]
    }

    fn entry(hash: u64, page: usize) -> u64 {
        (hash >> 32) << 32 | page as u64
    }

    /// Starts to fetch the bucket of `hash`.
    #[inline]
    pub(crate) fn prefetch(&self, hash: u64) {
        let bucket = self.bucket(hash);
        prefetch(&bucket.header);
        prefetch(&bucket.slots[SLOTS - 1]);
    }

    /// Calls `take` with each page that may hold a key of this hash, until it says yes and the
    /// entry was still there afterwards.
    #[inline]
    pub(crate) fn find(&self, hash: u64, mut take: impl FnMut(usize) -> bool) -> Option<usize> {
        let bucket = self.bucket(hash);
        let header = bucket.header.load(Ordering::Acquire);
        for slot in slots_of(header & VALID_MASK) {
            let entry = bucket.slots[slot].load(Ordering::Acquire);
            let page = entry as u32 as usize;
            if entry == Self::entry(hash, page) && take(page) && bucket.still(slot, entry) {
                return Some(page);
            }
        }
        None
    }

    /// Makes `page` the one entry of its key; `same` says whether a page holds the same key, and
    /// `stale` whether a page holds nothing that an entry of a tag could mean. `None` when as
    /// many threads as a bucket has slots are publishing in this one.
    pub(crate) fn publish(
        &self,
        hash: u64,
        page: usize,
        same: impl Fn(usize) -> bool,
        stale: impl Fn(usize, u32) -> bool,
    ) -> Option<Published> {
        let bucket = self.bucket(hash);
        let (slot, displaced) = bucket.claim(hash, stale)?;
        let entry = Self::entry(hash, page);
        bucket.slots[slot].store(entry, Ordering::Release);
        let mut header = bucket.header.load(Ordering::Acquire);
        loop {
            let old = bucket.search(header, hash, &same);
            // An entry that this page had before it was taken and given back would be found again
            // with the page, and outlive the one that is published here.
            let twins: u64 = slots_of(header & VALID_MASK)
                .filter(|slot| bucket.slots[*slot].load(Ordering::Acquire) == entry)
                .map(|slot| 1 << slot)
                .sum();
            let claimed = 1 << (slot as u32 + CLAIMED_SHIFT);
            let clear = claimed | twins | old.map_or(0, |(slot, _)| 1 << slot);
            let next = with(header, 1 << slot, clear);
            match bucket.exchange(header, next) {
                Ok(()) => {
                    let replaced = old.map(|(_, page)| page);
                    return Some(Published { replaced, displaced });
                }
                Err(now) => header = now,
            }
        }
    }

    /// Ends the entry for which `same` says yes; its page.
    pub(crate) fn remove(&self, hash: u64, same: impl Fn(usize) -> bool) -> Option<usize> {
        let bucket = self.bucket(hash);
        let mut header = bucket.header.load(Ordering::Acquire);
        loop {
            let (slot, page) = bucket.search(header, hash, &same)?;
            match bucket.exchange(header, with(header, 0, 1 << slot)) {
                Ok(()) => return Some(page),
                Err(now) => header = now,
            }
        }
    }
}

impl Bucket {
    fn exchange(&self, old: u64, new: u64) -> Result<(), u64> {
        self.header.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire).map(|_| ())
    }

    /// Whether `slot` is valid and holds `entry`.
    fn still(&self, slot: usize, entry: u64) -> bool {
        self.slots[slot].load(Ordering::Acquire) == entry
            && self.header.load(Ordering::Acquire) & (1 << slot) != 0
    }

    fn search(
        &self,
        header: u64,
        hash: u64,
        same: &impl Fn(usize) -> bool,
    ) -> Option<(usize, usize)> {
        slots_of(header & VALID_MASK).find_map(|slot| {
            let entry = self.slots[slot].load(Ordering::Acquire);
            let page = entry as u32 as usize;
            (entry == Index::entry(hash, page) && same(page)).then_some((slot, page))
        })
    }

    /// A slot for a new entry: an empty one, else a stale one, else somebody's.
    fn claim(
        &self,
        hash: u64,
        stale: impl Fn(usize, u32) -> bool,
    ) -> Option<(usize, Option<usize>)> {
        let mut header = self.header.load(Ordering::Acquire);
        loop {
            let (slot, displaced) = self.choose(header, hash, &stale)?;
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
        stale: &impl Fn(usize, u32) -> bool,
    ) -> Option<(usize, Option<usize>)> {
        let valid = header & VALID_MASK;
        let claimed = (header >> CLAIMED_SHIFT) & VALID_MASK;
        if let Some(slot) = slots_of(!(valid | claimed) & VALID_MASK).next() {
            return Some((slot, None));
        }
        let entry = |slot: usize| self.slots[slot].load(Ordering::Acquire);
        let is_stale =
            |slot: &usize| stale(entry(*slot) as u32 as usize, (entry(*slot) >> 32) as u32);
        if let Some(slot) = slots_of(valid).find(is_stale) {
            return Some((slot, None));
        }
        let nth = (hash >> 20) as usize % valid.count_ones().max(1) as usize;
        let slot = slots_of(valid).nth(nth)?;
        Some((slot, Some(entry(slot) as u32 as usize)))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::units::Bytes;

    fn index(pages: usize) -> Index {
        Index::new(&mut Tables::new(Bytes::mib(2)).unwrap(), pages).unwrap()
    }

    const NEVER: fn(usize, u32) -> bool = |_, _| false;

    #[test]
    fn publishing_a_key_again_ends_its_old_entry() {
        let index = index(64);
        let hash = 0xabcd_0000_0000_0001;
        assert_eq!(index.publish(hash, 7, |_| false, NEVER), Some(Published::default()));
        let again = index.publish(hash, 8, |page| page == 7, NEVER).unwrap();
        assert_eq!(again.replaced, Some(7));
        assert_eq!(index.find(hash, |_| true), Some(8));
        assert_eq!(index.remove(hash, |page| page == 8), Some(8));
        assert_eq!(index.find(hash, |_| true), None);
    }

    #[test]
    fn a_page_that_comes_back_to_its_key_has_one_entry() {
        let index = index(64);
        let hash = 0xabcd_0000_0000_0001;
        index.publish(hash, 7, |_| false, NEVER);
        // First class took page 7 and gave it back; its entry is still there.
        index.publish(hash, 8, |_| false, NEVER);
        let again = index.publish(hash, 7, |page| page == 8, NEVER).unwrap();
        assert_eq!(again.replaced, Some(8));
        assert_eq!(index.remove(hash, |page| page == 7), Some(7));
        assert_eq!(index.find(hash, |_| true), None);
    }

    #[test]
    fn another_tag_is_another_key() {
        let index = index(6);
        index.publish(1 << 32, 3, |_| true, NEVER);
        assert_eq!(index.find(2 << 32, |_| true), None);
    }

    #[test]
    fn a_full_bucket_takes_the_stale_slot_first_and_then_somebodys() {
        let index = index(6);
        for page in 0..SLOTS {
            let all = index.publish((page as u64) << 32, page, |_| false, NEVER).unwrap();
            assert_eq!(all.displaced, None);
        }
        let stale = |page: usize, tag: u32| page == 4 && tag == 4;
        let published = index.publish(99 << 32, 99, |_| false, stale).unwrap();
        assert_eq!(published, Published::default());
        assert_eq!(index.find(4 << 32, |_| true), None);
        let published = index.publish(98 << 32, 98, |_| false, NEVER).unwrap();
        assert!(published.displaced.is_some());
        assert_eq!(index.find(98 << 32, |_| true), Some(98));
    }

    #[test]
    fn an_entry_that_goes_while_it_is_read_is_no_hit() {
        let index = index(6);
        index.publish(5 << 32, 5, |_| false, NEVER);
        let gone = |_| index.remove(5 << 32, |_| true).is_some();
        assert_eq!(index.find(5 << 32, gone), None);
    }
}
