//! What is kept of a zspage: [`Zspages`], what readers and removers need, by its number; and
//! [`Blocks`], what only its class needs, without gaps.
//!
//! ```text
//! table, two words a zspage                      block, words of 32 bits
//!  63      44 43   32 31                 0       0  number
//! +----------+-------+--------------------+      1  first page
//! |  flags   | class |     first page     |      2  previous in its list
//! +----------+-------+--------------------+      3  next in its list
//!  63              32 31                 0       4  tried 1 | used slots 15 | slots ever used 16
//! +------------------+--------------------+      5  sealed 1 | first free slot 16
//! |       age        |      ordinal       |      6  back pointers, one a slot
//! +------------------+--------------------+
//! ```
//!
//! A *back pointer* is the index of the entry whose object lies in the slot, or, with its highest
//! bit set, the next free slot. The *ordinal* is the block's place among those of its class; a
//! block that leaves is replaced by the last, so blocks take no more memory than zspages are
//! there. Words of the table change under the lock of the class that the zspage belongs to; what
//! is read without it is proved by the entry that led there, or checked again under the lock.
//! Pages of the table that no zspage needs leave. `age` counts zspages made before this one, or
//! before it was found to be read.

use super::account::{Account, NoRoom};
use super::bits::{resize_close, Bits};
use super::words::Words;
use crate::sync::{lock, Mutex, Ordering};
use crate::units::PageSize;

const WORDS: usize = 2;
const CLASS_AT: u32 = 32;
const CLASS_BITS: u32 = 12;
/// Somebody read an object of the zspage since this was last cleared.
const REFERENCED: u64 = 1 << 44;
/// The zspage exists.
const EXISTS: u64 = 1 << 45;
/// It was looked at for idle objects.
const LOOKED_AT: u64 = 1 << 46;
/// Its bytes are elsewhere: it has no pages of its own.
const SEALED: u64 = 1 << 47;
const AGE_AT: u32 = 32;

/// Of so many numbers in use one may be free before the table counts as sparse, and of a page of
/// them one in so many.
const USED_PER_FREE: u32 = 8;
const PAGE_PER_FREE: u32 = 4;

/// See the module.
#[derive(Debug)]
pub(crate) struct Zspages {
    table: Words,
    page: PageSize,
    numbers: Mutex<Numbers>,
}

#[derive(Debug, Default)]
struct Numbers {
    free: Bits,
    /// From here on no number was ever used.
    fresh: u32,
    /// Zspages of each page of the table; `None` where it is not present.
    pages: Vec<Option<u16>>,
    spare: Option<u32>,
    made: u32,
}

/// What the table says of a zspage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct About {
    pub(crate) class: u32,
    pub(crate) page: u32,
    pub(crate) exists: bool,
    pub(crate) is_referenced: bool,
    pub(crate) is_sealed: bool,
}

impl Zspages {
    pub(crate) fn new(table: Words, page: PageSize) -> Self {
        Self { table, page, numbers: Mutex::new(Numbers::default()) }
    }

    /// The words that [`Zspages::new`] wants for `most` zspages.
    pub(crate) const fn table_len(most: usize) -> usize {
        most * WORDS
    }

    /// How many zspages there may be.
    pub(crate) fn most(&self) -> usize {
        self.table.len() / WORDS
    }

    fn per_page(&self) -> u32 {
        (self.page.bytes().get() / size_of::<[u64; WORDS]>() as u64) as u32
    }

    /// A number for a new zspage, and how many were made with it.
    pub(crate) fn take(&self, account: &Account) -> Result<(u32, u32), NoRoom> {
        let mut numbers = lock(&self.numbers);
        let free = numbers.free.take(1);
        let number = free.unwrap_or(numbers.fresh);
        let page = number / self.per_page();
        if let Err(error) = self.begin(account, &mut numbers, number, page) {
            free.into_iter().for_each(|number| numbers.free.put(number, 1));
            return Err(error);
        }
        numbers.fresh = numbers.fresh.max(number + 1);
        numbers.made = numbers.made.wrapping_add(1);
        Ok((number, numbers.made))
    }

    fn begin(
        &self,
        account: &Account,
        numbers: &mut Numbers,
        number: u32,
        page: u32,
    ) -> Result<(), NoRoom> {
        if number as usize * WORDS >= self.table.len() {
            return Err(NoRoom::Space);
        }
        if numbers.pages.len() <= page as usize {
            resize_close(&mut numbers.pages, page as usize + 1, None);
        }
        if numbers.pages[page as usize].is_none() {
            let bytes = self.page.bytes();
            if !account.charge(bytes.get()) {
                return Err(NoRoom::Limit);
            }
            if let Err(error) = self.table.populate(page as usize, bytes) {
                account.release(bytes.get());
                return Err(NoRoom::Os(error));
            }
        }
        *numbers.pages[page as usize].get_or_insert(0) += 1;
        if numbers.spare == Some(page) {
            numbers.spare = None;
        }
        Ok(())
    }

    /// Writes what there is to know of a new zspage, under its class's lock.
    pub(crate) fn set(&self, (number, made): (u32, u32), class: u32, page: u32, ordinal: u32) {
        let at = number as usize * WORDS;
        self.set_age(number, made, ordinal);
        let word = u64::from(class) << CLASS_AT | u64::from(page) | EXISTS;
        self.table[at].store(word, Ordering::Release);
    }

    /// Gives a number back, under its class's lock.
    pub(crate) fn put_back(&self, account: &Account, number: u32) {
        self.table[number as usize * WORDS].store(0, Ordering::Relaxed);
        self.drop_number(account, number);
    }

    /// Gives a number back that was never set, or was ended.
    pub(crate) fn drop_number(&self, account: &Account, number: u32) {
        let page = number / self.per_page();
        let mut numbers = lock(&self.numbers);
        numbers.free.put(number, 1);
        let Some(zspages) = &mut numbers.pages[page as usize] else { return };
        *zspages -= 1;
        if *zspages > 0 {
            return;
        }
        // The lower of two pages that nobody needs stays.
        if let Some(other) = numbers.spare.replace(page) {
            numbers.spare = Some(page.min(other));
            let leaves = page.max(other);
            let bytes = self.page.bytes();
            if self.table.discard(leaves as usize, bytes).is_ok() {
                numbers.pages[leaves as usize] = None;
                account.release(bytes.get());
            }
        }
    }

    /// What the table says of a zspage; nothing sensible where there is none.
    #[inline(always)]
    pub(crate) fn about(&self, number: u32) -> About {
        let word = self.table.get(number as usize * WORDS);
        let word = word.map_or(0, |word| word.load(Ordering::SeqCst));
        let class = (word >> CLASS_AT) as u32 & ((1 << CLASS_BITS) - 1);
        let (exists, is_referenced) = (word & EXISTS != 0, word & REFERENCED != 0);
        let is_sealed = word & SEALED != 0;
        About { class, page: word as u32, exists, is_referenced, is_sealed }
    }

    /// Says that the bytes are elsewhere, under its class's lock. The caller looks at the pins
    /// after it.
    pub(crate) fn set_sealed(&self, number: u32) {
        self.table[number as usize * WORDS].fetch_or(SEALED, Ordering::SeqCst);
    }

    /// Ends a sealed zspage, whose number is still taken, under its class's lock.
    pub(crate) fn end(&self, number: u32) {
        self.table[number as usize * WORDS].store(0, Ordering::Relaxed);
    }

    /// Remembers that an object was read; the caller has the zspage pinned.
    #[inline]
    pub(crate) fn refer(&self, number: u32) {
        self.table[number as usize * WORDS].fetch_or(REFERENCED, Ordering::Relaxed);
    }

    /// Forgets it, and counts the zspage as made just now, when `made` were; under its class's
    /// lock.
    pub(crate) fn forget(&self, number: u32, made: u32) {
        let at = number as usize * WORDS;
        self.table[at].fetch_and(!REFERENCED, Ordering::Relaxed);
        self.set_age(number, made, self.ordinal(number));
    }

    fn set_age(&self, number: u32, made: u32, ordinal: u32) {
        let word = u64::from(made) << AGE_AT | u64::from(ordinal);
        self.table[number as usize * WORDS + 1].store(word, Ordering::Relaxed);
    }

    /// Whether nothing of it was read since the last call, of which there was one; under its
    /// class's lock.
    pub(crate) fn look(&self, number: u32) -> bool {
        let word = &self.table[number as usize * WORDS];
        let before = word.fetch_and(!REFERENCED, Ordering::Relaxed);
        word.fetch_or(LOOKED_AT, Ordering::Relaxed);
        before & (LOOKED_AT | REFERENCED) == LOOKED_AT
    }

    #[inline]
    pub(crate) fn ordinal(&self, number: u32) -> u32 {
        self.table[number as usize * WORDS + 1].load(Ordering::Relaxed) as u32
    }

    fn set_ordinal(&self, number: u32, ordinal: u32) {
        let word = &self.table[number as usize * WORDS + 1];
        let age = word.load(Ordering::Relaxed) >> AGE_AT << AGE_AT;
        word.store(age | u64::from(ordinal), Ordering::Relaxed);
    }

    /// How many zspages were made since this one, or since it was found to be read.
    pub(crate) fn age(&self, number: u32, made: u32) -> u32 {
        let word = self.table[number as usize * WORDS + 1].load(Ordering::Relaxed);
        made.wrapping_sub((word >> AGE_AT) as u32)
    }

    /// How many zspages were ever made, and below which number all are.
    pub(crate) fn made(&self) -> (u32, u32) {
        let numbers = lock(&self.numbers);
        (numbers.made, numbers.fresh)
    }

    /// The highest number in use, if there are many free ones below.
    pub(crate) fn sparse(&self) -> Option<u32> {
        let mut numbers = lock(&self.numbers);
        while numbers.fresh > 0 && numbers.free.contains(numbers.fresh - 1) {
            numbers.fresh -= 1;
            let last = numbers.fresh;
            numbers.free.remove(last, 1);
        }
        let free = numbers.free.len() as u32;
        let used = numbers.fresh - free;
        (free > used / USED_PER_FREE + self.per_page() / PAGE_PER_FREE).then(|| numbers.fresh - 1)
    }

    /// Bytes of its tables: those that are charged, and those that are not.
    pub(crate) fn held(&self) -> (u64, u64) {
        let numbers = lock(&self.numbers);
        let present = numbers.pages.iter().flatten().count() as u64;
        let own = numbers.pages.capacity() * size_of::<Option<u16>>();
        (present * self.page.bytes().get(), own as u64 + numbers.free.held_bytes())
    }
}

/// No block or slot.
pub(crate) const NONE: u32 = u32::MAX;
const NO_SLOT: u32 = 0xffff;
/// Beside the first free slot: it is sealed, or about to be, and no slot of it is given out.
const IS_SEALED: u32 = 1 << 16;
/// Of a back pointer: the slot holds no object.
const FREE: u32 = 1 << 31;
/// Of a back pointer: the slot waits for readers to leave.
const LIMBO: u32 = FREE | 1 << 30;

const NUMBER: usize = 0;
const PAGE: usize = 1;
pub(super) const PREV: usize = 2;
pub(super) const NEXT: usize = 3;
const COUNTS: usize = 4;
const HEAD: usize = 5;
const BACK: usize = 6;

/// Of the counts: all objects were tried with the codec of idle ones; none came since.
const TRIED: u32 = 1 << 31;

/// Bytes of blocks that are allocated together, or a block where that is longer.
const CHUNK_BYTES: usize = 512;
/// A list of chunks with room for so many times those there are is made anew.
const SPARE_PARTS: usize = 2;
/// For so many chunks one is kept that no block needs.
const CHUNKS_PER_SPARE: usize = 16;
/// What the allocator adds to a chunk, about.
const CHUNK_EXTRA: u64 = 16;

/// The blocks of a class's zspages.
#[derive(Debug)]
pub(crate) struct Blocks {
    chunks: Vec<Box<[u32]>>,
    len: u32,
    /// Words of a block.
    stride: u16,
    /// Blocks of a chunk, as a power of two.
    shift: u8,
}

impl Blocks {
    /// For zspages of `objects` slots.
    pub(crate) fn new(objects: u32) -> Self {
        let stride = BACK + objects as usize;
        let fit = (CHUNK_BYTES / (stride * size_of::<u32>())).max(1);
        Self { chunks: Vec::new(), len: 0, stride: stride as u16, shift: fit.ilog2() as u8 }
    }

    #[inline]
    fn stride(&self) -> usize {
        self.stride.into()
    }

    /// How many there are.
    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// What a chunk takes.
    fn chunk_bytes(&self) -> u64 {
        ((self.stride() * size_of::<u32>()) << self.shift) as u64 + CHUNK_EXTRA
    }

    /// Adds the block of a new zspage; its ordinal.
    pub(crate) fn push(
        &mut self,
        account: &Account,
        number: u32,
        page: u32,
    ) -> Result<u32, NoRoom> {
        let ordinal = self.len;
        if (ordinal >> self.shift) as usize == self.chunks.len() {
            if !account.charge(self.chunk_bytes()) {
                return Err(NoRoom::Limit);
            }
            self.chunks.push(vec![0; self.stride() << self.shift].into_boxed_slice());
        }
        self.len += 1;
        let block = self.at_mut(ordinal);
        block[NUMBER] = number;
        block[PAGE] = page;
        (block[PREV], block[NEXT]) = (NONE, NONE);
        block[COUNTS] = 0;
        block[HEAD] = NO_SLOT;
        Ok(ordinal)
    }

    /// Takes an unlinked block away. The ordinal of the block that took its place, if any.
    pub(crate) fn remove(&mut self, account: &Account, ordinal: u32) -> Option<u32> {
        let last = self.len - 1;
        if ordinal != last {
            for word in 0..self.stride() {
                let moved = self.at(last)[word];
                self.at_mut(ordinal)[word] = moved;
            }
        }
        self.len = last;
        let needed = last.div_ceil(1 << self.shift) as usize;
        // Of many chunks some stay, so that a zspage which comes and goes allocates nothing.
        while self.chunks.len() > needed + needed / CHUNKS_PER_SPARE {
            self.chunks.pop();
            account.release(self.chunk_bytes());
            if self.chunks.capacity() > SPARE_PARTS * needed {
                self.chunks.shrink_to(needed);
            }
        }
        (ordinal != last).then_some(ordinal)
    }

    #[inline]
    fn at(&self, ordinal: u32) -> &[u32] {
        let first = (ordinal & ((1 << self.shift) - 1)) as usize * self.stride();
        &self.chunks[(ordinal >> self.shift) as usize][first..first + self.stride()]
    }

    #[inline]
    fn at_mut(&mut self, ordinal: u32) -> &mut [u32] {
        let first = (ordinal & ((1 << self.shift) - 1)) as usize * self.stride();
        let end = first + self.stride();
        &mut self.chunks[(ordinal >> self.shift) as usize][first..end]
    }

    #[inline]
    pub(crate) fn number(&self, ordinal: u32) -> u32 {
        self.at(ordinal)[NUMBER]
    }

    #[inline]
    pub(crate) fn page(&self, ordinal: u32) -> u32 {
        self.at(ordinal)[PAGE]
    }

    /// Slots in use, those in limbo among them.
    #[inline]
    pub(crate) fn used(&self, ordinal: u32) -> u32 {
        (self.at(ordinal)[COUNTS] & !TRIED) >> 16
    }

    /// Whether there is nothing to try with the codec of idle objects.
    pub(crate) fn is_tried(&self, ordinal: u32) -> bool {
        self.at(ordinal)[COUNTS] & TRIED != 0
    }

    /// Says whether everything was tried, until an object comes.
    pub(crate) fn set_tried(&mut self, ordinal: u32, tried: bool) {
        let counts = &mut self.at_mut(ordinal)[COUNTS];
        *counts = *counts & !TRIED | if tried { TRIED } else { 0 };
    }

    #[inline]
    pub(super) fn link(&self, ordinal: u32, which: usize) -> u32 {
        self.at(ordinal)[which]
    }

    #[inline]
    pub(super) fn set_link(&mut self, ordinal: u32, which: usize, to: u32) {
        self.at_mut(ordinal)[which] = to;
    }

    /// Whether it is sealed, or about to be.
    #[inline]
    pub(crate) fn is_sealed(&self, ordinal: u32) -> bool {
        self.at(ordinal)[HEAD] & IS_SEALED != 0
    }

    pub(crate) fn set_sealed(&mut self, ordinal: u32, sealed: bool) {
        let head = &mut self.at_mut(ordinal)[HEAD];
        *head = *head & !IS_SEALED | if sealed { IS_SEALED } else { 0 };
    }

    /// Takes a free slot, of which there is one, for the entry of `index`.
    #[inline]
    pub(crate) fn take_slot(&mut self, ordinal: u32, index: u32) -> u32 {
        let block = self.at_mut(ordinal);
        let head = block[HEAD] & 0xffff;
        let slot = if head == NO_SLOT {
            let fresh = block[COUNTS] & 0xffff;
            block[COUNTS] += 1;
            fresh
        } else {
            let next = block[BACK + head as usize] & 0xffff;
            block[HEAD] = block[HEAD] & !0xffff | next;
            head
        };
        block[COUNTS] = (block[COUNTS] & !TRIED) + (1 << 16);
        block[BACK + slot as usize] = index;
        slot
    }

    /// Gives a slot back.
    #[inline]
    pub(crate) fn free_slot(&mut self, ordinal: u32, slot: u32) {
        let block = self.at_mut(ordinal);
        debug_assert!(block[BACK + slot as usize] & LIMBO != FREE, "slot {slot} was free");
        block[BACK + slot as usize] = FREE | block[HEAD] & 0xffff;
        block[HEAD] = block[HEAD] & !0xffff | slot;
        block[COUNTS] -= 1 << 16;
    }

    /// Marks a slot that waits for readers.
    pub(crate) fn set_limbo(&mut self, ordinal: u32, slot: u32) {
        self.at_mut(ordinal)[BACK + slot as usize] = LIMBO;
    }

    /// The index of the entry whose object lies in a slot, or is being written to it.
    #[inline]
    pub(crate) fn back(&self, ordinal: u32, slot: u32) -> Option<u32> {
        let back = self.at(ordinal)[BACK + slot as usize];
        (back & FREE == 0).then_some(back)
    }

    /// Slots from the first one that were ever used.
    pub(crate) fn fresh(&self, ordinal: u32) -> u32 {
        self.at(ordinal)[COUNTS] & 0xffff
    }

    /// Tells the table where the block is now.
    pub(crate) fn tell(&self, zspages: &Zspages, ordinal: u32) {
        zspages.set_ordinal(self.number(ordinal), ordinal);
    }

    /// Bytes that are not charged.
    pub(crate) fn held_bytes(&self) -> u64 {
        (self.chunks.capacity() * size_of::<Box<[u32]>>()) as u64
    }
}
