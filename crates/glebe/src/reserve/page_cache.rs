//! The page cache tenant: pages by pool, object and index, in what first class does not use.
//!
//! The calls and words are those of Linux's cleancache: put copies a page in, get copies it out,
//! invalidate drops it. Nothing is promised but that a hit is the last page put under its key. A
//! put that is refused drops what the key held, so that no old page is found after it.
//!
//! Keys: a pool has an internal number that invalidating the pool replaces, and an object has a
//! generation in a hashed cell that invalidating the object bumps; both are part of what is kept
//! beside a page, so either costs O(1) and the dead pages go when their turn comes. Two objects
//! that share a cell are invalidated together: a miss more, never an old page.
//!
//! Eviction: CLOCK, one byte a page ([`super::clock`]). No lock anywhere.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use super::clock::{Clock, CHUNK};
use super::error::Error;
use super::index::{Held, Index};
use super::lent::{Claim, Lent, Meta, NoClaim, NotFilled};
use super::page_word::PageUse;
use super::shared::Shared;
use super::stats::{Counter, Counts};
use super::table::{Table, Tables};
use super::Inner;
use crate::error::OsError;
use crate::sync::{lock, prefetch, MappedByte, MappedWord, Mutex, Ordering};

/// Pages in use that a put looks at before it evicts one regardless.
const HOT_MAX: u32 = 64;
/// Pages that a put tries to fill before it gives up.
const TRIES: u32 = 4;

/// How a put ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// The page can be had by get until it is evicted, recalled or invalidated.
    Stored,
    /// The page was not kept, and nothing is kept under its key.
    Rejected(Rejected),
}

/// Why a page was not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rejected {
    /// First class holds, or others are at, every page that was looked at.
    Full,
    /// First class took the pages under way.
    Recalled,
    /// Interrupted, or crowded out, too often.
    Busy,
}

/// How many pages ahead of the hand the words of a page, and then its entry, are fetched.
const AHEAD_OF_META: usize = 8;
const AHEAD_OF_ENTRY: usize = 2;

/// The state of the tenant, beside the pages themselves.
#[derive(Debug)]
pub(crate) struct Tenant {
    index: Index,
    /// Zeroed granules to leave alone.
    zero_target: u64,
    hot: Table<MappedByte>,
    /// Generations of objects, by hash.
    generations: Table<MappedWord>,
    clock: Clock,
    seed: u64,
    pools: Mutex<HashMap<String, Arc<PoolState>>>,
    next_pool: MappedWord,
}

#[derive(Debug)]
struct PoolState {
    /// Replaced when the pool is invalidated.
    number: MappedWord,
}

impl Tenant {
    pub(crate) fn new(
        tables: &mut Tables,
        pages: usize,
        zero_target: u64,
    ) -> Result<Self, OsError> {
        Ok(Self {
            zero_target,
            index: Index::new(tables, pages)?,
            hot: tables.table(pages, |_| MappedByte::new(0))?,
            generations: tables.table(pages.next_power_of_two(), |_| MappedWord::new(0))?,
            clock: Clock::new(pages),
            seed: RandomState::new().hash_one(0),
            pools: Mutex::new(HashMap::new()),
            next_pool: MappedWord::new(1),
        })
    }

    #[inline]
    fn mix(&self, a: u64, b: u64) -> u64 {
        let product = u128::from(a ^ self.seed) * u128::from(b ^ 0x9e37_79b9_7f4a_7c15);
        let folded = (product as u64) ^ ((product >> 64) as u64);
        folded ^ (a.rotate_left(32)).wrapping_mul(0xd6e8_feb8_6659_fd93)
    }

    #[inline]
    fn hash(&self, meta: &Meta) -> u64 {
        let h = self.mix(self.mix(meta[0], meta[1]), meta[2]);
        self.mix(h, self.seed.rotate_left(17))
    }

    #[inline]
    fn generation(&self, pool: u64, object: u64) -> &MappedWord {
        let cell = self.mix(object, pool) as usize & (self.generations.len() - 1);
        &self.generations[cell]
    }

    fn is_dead(&self, meta: &Meta) -> bool {
        self.generation(meta[0], meta[1]).load(Ordering::Acquire) != meta[3]
    }

    /// First class has given `run` back: its pages are the next to be used.
    pub(crate) fn give_back(&self, run: &std::ops::Range<usize>) {
        self.clock.give_back(run);
    }

    /// Claims a page: a free one, or one that was not used since the hand last came by.
    fn claim(&self, lent: &Lent, counts: &Counts) -> Option<Claim> {
        let pages = lent.pages() as u64;
        let full = lent.granule_pages() as u64;
        let (mut warm, mut looked) = (0, 0);
        while looked < pages {
            let (page, only_free) = self.clock.next();
            let granule = lent.granule(lent.granule_of(page));
            let kept = granule.is_zero() && lent.keeps_zero(self.zero_target);
            if !granule.is_open() || granule.held() == full || kept {
                self.clock.skip_chunk();
                looked += CHUNK;
                continue;
            }
            looked += 1;
            let held = lent.holds(page, |_| true);
            if only_free && held.is_some() {
                continue;
            }
            let hot = &self.hot[page];
            if hot.load(Ordering::Relaxed) != 0 {
                hot.store(0, Ordering::Relaxed);
                warm += 1;
                if warm < HOT_MAX {
                    continue;
                }
            }
            match lent.claim(page) {
                Ok(claim) => {
                    let held = held.map(|(word, _, meta)| (word.use_of(page), meta));
                    self.count_claim(&claim, held, counts);
                    return Some(claim);
                }
                Err(NoClaim::Recalled) => counts.add(Counter::RejectedRecalled, 1),
                Err(NoClaim::Taken) => {}
            }
        }
        None
    }

    /// A claim ended what the page held: its entry goes, and it is counted.
    fn count_claim(&self, claim: &Claim, held: Option<(PageUse, Meta)>, counts: &Counts) {
        if !claim.evicted {
            return;
        }
        let mut dead = false;
        if let Some((at, meta)) = held {
            dead = self.is_dead(&meta);
            self.index.remove(self.hash(&meta), |other| other == at);
        }
        counts.add(if dead { Counter::InvalidatedPages } else { Counter::Evicted }, 1);
    }

    /// What an entry is to `key`.
    fn held(lent: &Lent, key: &Meta, at: PageUse) -> Held {
        match lent.holds_use(at, |_| true) {
            Some((_, _, meta)) if meta[..3] == key[..3] => Held::Same,
            Some(_) => Held::Other,
            None => Held::Stale,
        }
    }

    /// Fetches ahead what the next puts of this thread will need to evict.
    #[inline]
    fn prefetch(&self, lent: &Lent, page: usize) {
        if let Some(later) = page.checked_sub(AHEAD_OF_META) {
            lent.prefetch(later);
        }
        if let Some(next) = page.checked_sub(AHEAD_OF_ENTRY) {
            let meta = lent.peek(next);
            self.index.prefetch(self.hash(&meta));
            prefetch(self.generation(meta[0], meta[1]));
        }
    }

    fn put(&self, lent: &Lent, counts: &Counts, key: &Meta, bytes: &[u8]) -> Put {
        let mut why = Rejected::Full;
        for _ in 0..TRIES {
            let Some(claim) = self.claim(lent, counts) else { break };
            let page = claim.page;
            self.prefetch(lent, page);
            match lent.fill(claim, *key, bytes) {
                Ok(at) => {
                    counts.add(Counter::Stored, 1);
                    if self.publish(lent, counts, key, at) {
                        return Put::Stored;
                    }
                    Self::discard(lent, counts, at, Counter::Evicted);
                    why = Rejected::Busy;
                    break;
                }
                Err(NotFilled::Recalled) => {
                    counts.add(Counter::RejectedRecalled, 1);
                    why = Rejected::Recalled;
                }
                Err(NotFilled::Interrupted) => {
                    why = Rejected::Busy;
                    break;
                }
            }
        }
        self.invalidate_page(lent, counts, key);
        counts.add(Counter::Rejected, 1);
        Put::Rejected(why)
    }

    fn publish(&self, lent: &Lent, counts: &Counts, key: &Meta, at: PageUse) -> bool {
        let held = |other| Self::held(lent, key, other);
        let Some(published) = self.index.publish(self.hash(key), at, held) else {
            return false;
        };
        if let Some(old) = published.replaced {
            Self::discard(lent, counts, old, Counter::Replaced);
        }
        if let Some(other) = published.displaced {
            Self::discard(lent, counts, other, Counter::Evicted);
        }
        true
    }

    /// Drops what a use of a page held; it has no entry any more. If it cannot be dropped now,
    /// the hand finds it.
    fn discard(lent: &Lent, counts: &Counts, at: PageUse, why: Counter) {
        if lent.discard_use(at) {
            counts.add(why, 1);
        }
    }

    fn get(&self, lent: &Lent, key: &Meta, buf: &mut [u8]) -> bool {
        let take = |at: PageUse| {
            lent.prefetch_page(at.page);
            lent.read(at, key, buf)
        };
        match self.index.find(self.hash(key), take) {
            Some(at) => {
                let hot = &self.hot[at.page];
                if hot.load(Ordering::Relaxed) == 0 {
                    hot.store(1, Ordering::Relaxed);
                }
                true
            }
            None => false,
        }
    }

    fn invalidate_page(&self, lent: &Lent, counts: &Counts, key: &Meta) -> bool {
        let same = |at| Self::held(lent, key, at) == Held::Same;
        let Some(at) = self.index.remove(self.hash(key), same) else { return false };
        Self::discard(lent, counts, at, Counter::InvalidatedPages);
        true
    }
}

/// The page cache of a reserve: a cheap handle.
#[derive(Clone, Debug)]
pub struct PageCache {
    inner: Shared<Inner>,
}

impl PageCache {
    pub(crate) fn new(inner: Shared<Inner>) -> Self {
        Self { inner }
    }

    /// The pool of this name, made if there is none: a name space for objects, which can be
    /// invalidated as a whole.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn pool(&self, name: &str) -> Result<Pool, Error> {
        let tenant = self.inner.get()?.tenant();
        let mut pools = lock(&tenant.pools);
        let state = pools.entry(name.to_owned()).or_insert_with(|| {
            let number = tenant.next_pool.fetch_add(1, Ordering::Relaxed);
            Arc::new(PoolState { number: MappedWord::new(number) })
        });
        Ok(Pool { state: Arc::clone(state), inner: self.inner.clone() })
    }
}

/// A pool of the page cache: a cheap handle. Every call is O(1), takes no lock, and fails in a
/// forked child with [`Error::Forked`].
#[derive(Clone, Debug)]
pub struct Pool {
    state: Arc<PoolState>,
    inner: Shared<Inner>,
}

impl Pool {
    #[inline]
    fn key(&self, tenant: &Tenant, object: u64, index: u64) -> Meta {
        let pool = self.state.number.load(Ordering::Acquire);
        tenant.index.prefetch(tenant.hash(&[pool, object, index, 0]));
        let generation = tenant.generation(pool, object).load(Ordering::Acquire);
        [pool, object, index, generation]
    }

    /// The reserve, if `len` bytes are one page of it.
    #[inline]
    fn inner(&self, len: usize) -> Result<&Inner, Error> {
        let inner = self.inner.get()?;
        let page = inner.lent().frames().page().bytes();
        if len as u64 != page.get() {
            return Err(Error::BadPageLen { given: len, page });
        }
        Ok(inner)
    }

    /// Copies `page`, exactly one base page, in under `object` and `index`, in place of what the
    /// key held.
    ///
    /// # Errors
    /// [`Error::BadPageLen`], [`Error::Forked`].
    pub fn put(&self, object: u64, index: u64, page: &[u8]) -> Result<Put, Error> {
        let inner = self.inner(page.len())?;
        let key = self.key(inner.tenant(), object, index);
        Ok(inner.tenant().put(inner.lent(), inner.counts(), &key, page))
    }

    /// Copies the page of `object` and `index` out into `buf`, exactly one base page. `false` is
    /// a miss: then `buf` may hold anything.
    ///
    /// # Errors
    /// [`Error::BadPageLen`], [`Error::Forked`].
    pub fn get(&self, object: u64, index: u64, buf: &mut [u8]) -> Result<bool, Error> {
        let inner = self.inner(buf.len())?;
        let key = self.key(inner.tenant(), object, index);
        let hit = inner.tenant().get(inner.lent(), &key, buf);
        inner.counts().add(if hit { Counter::Loaded } else { Counter::Missed }, 1);
        Ok(hit)
    }

    /// Drops one page; whether there was one.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn invalidate_page(&self, object: u64, index: u64) -> Result<bool, Error> {
        let inner = self.inner.get()?;
        let key = self.key(inner.tenant(), object, index);
        let counts = inner.counts();
        let found = inner.tenant().invalidate_page(inner.lent(), counts, &key);
        if !found {
            counts.add(Counter::InvalidateFailed, 1);
        }
        Ok(found)
    }

    /// Drops all pages of an object at once: O(1), their room is reused when its turn comes.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn invalidate_object(&self, object: u64) -> Result<(), Error> {
        let inner = self.inner.get()?;
        let pool = self.state.number.load(Ordering::Acquire);
        inner.tenant().generation(pool, object).fetch_add(1, Ordering::AcqRel);
        inner.counts().add(Counter::InvalidatedObjects, 1);
        Ok(())
    }

    /// Drops all pages of the pool at once: O(1).
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn invalidate_all(&self) -> Result<(), Error> {
        let inner = self.inner.get()?;
        let number = inner.tenant().next_pool.fetch_add(1, Ordering::Relaxed);
        self.state.number.store(number, Ordering::Release);
        inner.counts().add(Counter::InvalidatedPools, 1);
        Ok(())
    }
}
