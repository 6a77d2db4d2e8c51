//! [`Zspages`] maps a zspage's number to the data that readers and removers need.
//!
//! ```text
//!  63      44 43   32 31                 0
//! +----------+-------+--------------------+
//! |  flags   | class |     first page     |
//! +----------+-------+--------------------+
//!  63              32 31                 0
//! +------------------+--------------------+
//! |       age        |      ordinal       |
//! +------------------+--------------------+
//! ```
//!
//! `ordinal` is the index of the zspage's [block](crate::class::blocks) in its class. `age` is the
//! count of zspages ever made, taken when this zspage was made or when eviction last found it read.
//!
//! Except for the mark of a read, both words change under the class's lock. Without the lock, a
//! thread trusts the words only if it pinned the zspage and then found an entry that names it.
//! Lock: `numbers`, taken under a class's lock.

use crate::memory::account::{Account, NoRoom};
use crate::memory::bits::{resize_close, Bits};
use crate::memory::words::Words;
use glebe_os::internal::sync::{lock, Mutex, Ordering};
use glebe_os::units::PageSize;

const WORDS: usize = 2;
const CLASS_AT: u32 = 32;
const CLASS_BITS: u32 = 12;
const REFERENCED: u64 = 1 << 44;
const EXISTS: u64 = 1 << 45;
const SEALED: u64 = 1 << 46;
const AGE_AT: u32 = 32;

/// Limits of free numbers, above which the table is sparse.
const USED_PER_FREE: u32 = 8;
const PAGE_PER_FREE: u32 = 4;

#[derive(Debug)]
pub(crate) struct Zspages {
    table: Words,
    page: PageSize,
    numbers: Mutex<Numbers>,
}

#[derive(Debug, Default)]
struct Numbers {
    free: Bits,
    fresh: u32,
    /// Number of zspages in each page of the table; `None` if the page is absent.
    pages: Vec<Option<u16>>,
    spare: Option<u32>,
    made: u32,
}

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

    pub(crate) const fn table_len(most: usize) -> usize {
        most * WORDS
    }

    pub(crate) fn most(&self) -> usize {
        self.table.len() / WORDS
    }

    fn per_page(&self) -> u32 {
        (self.page.bytes().get() / size_of::<[u64; WORDS]>() as u64) as u32
    }

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

    pub(crate) fn set(&self, (number, made): (u32, u32), class: u32, page: u32, ordinal: u32) {
        let at = number as usize * WORDS;
        self.set_age(number, made, ordinal);
        let word = u64::from(class) << CLASS_AT | u64::from(page) | EXISTS;
        self.table[at].store(word, Ordering::Release);
    }

    pub(crate) fn put_back(&self, account: &Account, number: u32) {
        self.table[number as usize * WORDS].store(0, Ordering::Relaxed);
        self.drop_number(account, number);
    }

    pub(crate) fn drop_number(&self, account: &Account, number: u32) {
        let page = number / self.per_page();
        let mut numbers = lock(&self.numbers);
        numbers.free.put(number, 1);
        let Some(zspages) = &mut numbers.pages[page as usize] else { return };
        *zspages -= 1;
        if *zspages > 0 {
            return;
        }
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

    #[inline(always)]
    pub(crate) fn about(&self, number: u32) -> About {
        let word = self.table.get(number as usize * WORDS);
        let word = word.map_or(0, |word| word.load(Ordering::SeqCst));
        let class = (word >> CLASS_AT) as u32 & ((1 << CLASS_BITS) - 1);
        let (exists, is_referenced) = (word & EXISTS != 0, word & REFERENCED != 0);
        let is_sealed = word & SEALED != 0;
        About { class, page: word as u32, exists, is_referenced, is_sealed }
    }

    /// The caller loads the pins afterwards.
    pub(crate) fn set_sealed(&self, number: u32) {
        self.table[number as usize * WORDS].fetch_or(SEALED, Ordering::SeqCst);
    }

    pub(crate) fn end(&self, number: u32) {
        self.table[number as usize * WORDS].store(0, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn refer(&self, number: u32) {
        self.table[number as usize * WORDS].fetch_or(REFERENCED, Ordering::Relaxed);
    }

    pub(crate) fn forget(&self, number: u32, made: u32) {
        let at = number as usize * WORDS;
        self.table[at].fetch_and(!REFERENCED, Ordering::Relaxed);
        self.set_age(number, made, self.ordinal(number));
    }

    fn set_age(&self, number: u32, made: u32, ordinal: u32) {
        let word = u64::from(made) << AGE_AT | u64::from(ordinal);
        self.table[number as usize * WORDS + 1].store(word, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn ordinal(&self, number: u32) -> u32 {
        self.table[number as usize * WORDS + 1].load(Ordering::Relaxed) as u32
    }

    pub(crate) fn set_ordinal(&self, number: u32, ordinal: u32) {
        let word = &self.table[number as usize * WORDS + 1];
        let age = word.load(Ordering::Relaxed) >> AGE_AT << AGE_AT;
        word.store(age | u64::from(ordinal), Ordering::Relaxed);
    }

    pub(crate) fn age(&self, number: u32, made: u32) -> u32 {
        let word = self.table[number as usize * WORDS + 1].load(Ordering::Relaxed);
        made.wrapping_sub((word >> AGE_AT) as u32)
    }

    /// Returns the count of zspages ever made, and a number above all in use.
    pub(crate) fn made(&self) -> (u32, u32) {
        let numbers = lock(&self.numbers);
        (numbers.made, numbers.fresh)
    }

    /// Returns the highest number in use if the table is sparse.
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

    /// Returns the bytes of the table, and of vectors.
    pub(crate) fn held(&self) -> (u64, u64) {
        let numbers = lock(&self.numbers);
        let present = numbers.pages.iter().flatten().count() as u64;
        let own = numbers.pages.capacity() * size_of::<Option<u16>>();
        (present * self.page.bytes().get(), own as u64 + numbers.free.held_bytes())
    }
}
