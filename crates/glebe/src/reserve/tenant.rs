//! [`Tenant`]: the pages of the page cache, by pool, object and index.
//!
//! Keys: a pool has an internal number that invalidating the pool replaces, and an object has a
//! generation in a hashed cell that invalidating the object bumps; both are part of what is kept
//! beside a page, so either costs O(1) and the dead pages go when their turn comes. Two objects
//! that share a cell are invalidated together: a miss more, never an old page.
//!
//! Eviction: CLOCK, one byte a page ([`super::clock`]). No lock anywhere.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::sync::{Arc, OnceLock, Weak};

use super::clock::{Clock, CHUNK};
use super::error::Error;
use super::index::{Held, Index};
use super::lent::{Claim, Lent, Meta, NoClaim, NotFilled};
use super::packed::{self, Ground, Packed};
use super::packed_cache::PackedCache;
use super::page_cache::{Put, Rejected};
use super::page_word::PageUse;
use super::stats::{Counter, Counts};
use super::table::{Table, Tables};
use crate::error::OsError;
use crate::sync::{prefetch, write, MappedByte, MappedWord, Mutex, Ordering, RwLock};
use crate::units::{PageSize, Pages};
use crate::zpool::Codec;

/// Pages in use that a put looks at before it evicts one regardless.
const HOT_MAX: u32 = 64;
/// Pages that a put tries to fill before it gives up.
const TRIES: u32 = 4;

/// How many pages ahead of the hand the words of a page, and then its entry, are fetched.
const AHEAD_OF_META: usize = 8;
const AHEAD_OF_ENTRY: usize = 2;

/// The state of the tenant, beside the pages themselves.
#[derive(Debug)]
pub(crate) struct Tenant {
    index: Index,
    /// Pages that are stored compressed.
    cache: OnceLock<PackedCache>,
    page: PageSize,
    /// Zeroed granules to leave alone.
    zero_target: u64,
    hot: Table<MappedByte>,
    /// Generations of objects, by hash.
    generations: Table<MappedWord>,
    clock: Clock,
    seed: u64,
    pub(super) pools: Mutex<HashMap<String, Arc<PoolState>>>,
    next_pool: MappedWord,
    /// Pools whose pages are moved before first class takes them.
    movers: RwLock<Vec<Weak<Packed>>>,
}

#[derive(Debug)]
pub(super) struct PoolState {
    /// Replaced when the pool is invalidated.
    pub(super) number: MappedWord,
}

impl Tenant {
    pub(crate) fn new(
        tables: &mut Tables,
        pages: usize,
        page: PageSize,
        zero_target: u64,
    ) -> Result<Self, OsError> {
        Ok(Self {
            zero_target,
            cache: OnceLock::new(),
            page,
            index: Index::new(tables, pages)?,
            hot: tables.table(pages, |_| MappedByte::new(0))?,
            generations: tables.table(pages.next_power_of_two(), |_| MappedWord::new(0))?,
            clock: Clock::new(pages),
            seed: RandomState::new().hash_one(0),
            pools: Mutex::new(HashMap::new()),
            next_pool: MappedWord::new(1),
            movers: RwLock::new(Vec::new()),
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
    pub(super) fn generation(&self, pool: u64, object: u64) -> &MappedWord {
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

    /// Memory has come or gone: the highest page that there is is the one before `end`.
    pub(super) fn set_end(&self, end: u64) {
        self.clock.set_end(end);
    }

    /// Claims a page: a free one, or one that was not used since the hand last came by.
    pub(super) fn claim(&self, lent: &Lent, counts: &Counts) -> Option<Claim> {
        self.claim_where(lent, counts, u64::MAX, |_, _| true)
    }

    /// As [`Tenant::claim`], a page for which `may` says yes, which is told what the page holds; of
    /// `most` pages that are looked at.
    pub(super) fn claim_where(
        &self,
        lent: &Lent,
        counts: &Counts,
        most: u64,
        may: impl Fn(usize, Option<&Meta>) -> bool,
    ) -> Option<Claim> {
        let pages = most.min(lent.pages() as u64);
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
            if !may(page, held.as_ref().map(|(_, _, meta)| meta)) {
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

    /// Remembers that a page was used.
    #[inline]
    pub(super) fn touch(&self, page: usize) {
        let hot = &self.hot[page];
        if hot.load(Ordering::Relaxed) == 0 {
            hot.store(1, Ordering::Relaxed);
        }
    }

    /// A number that no other pool of this reserve has.
    pub(super) fn pool_number(&self) -> u64 {
        self.next_pool.fetch_add(1, Ordering::Relaxed)
    }

    /// A claim ended what the page held: its entry goes, and it is counted.
    fn count_claim(&self, claim: &Claim, held: Option<(PageUse, Meta)>, counts: &Counts) {
        if !claim.evicted {
            return;
        }
        let mut dead = false;
        if let Some((at, meta)) = held.filter(|(_, meta)| !packed::is_packed(meta)) {
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

    /// Stores a page under `key`, in place of what the key held.
    pub(super) fn put(&self, ground: Ground<'_>, key: &Meta, bytes: &[u8]) -> Put {
        let hash = self.hash(key);
        let Some(cache) = self.cache.get() else { return self.put_plain(ground, key, bytes) };
        // Before, so that it is not found again when what is stored now is gone; and after, for
        // who has stored it plain meanwhile.
        self.remove_plain(ground, key);
        if cache.put(ground, hash, key, bytes).is_ok() {
            self.remove_plain(ground, key);
            return Put::Stored;
        }
        let put = self.put_plain(ground, key, bytes);
        cache.remove(ground, hash, key);
        put
    }

    fn put_plain(&self, ground: Ground<'_>, key: &Meta, bytes: &[u8]) -> Put {
        let Ground { lent, counts, .. } = ground;
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
        self.remove_plain(ground, key);
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

    /// Copies the page of `key` out; false, and `buf` may hold anything, if there is none.
    pub(super) fn get(&self, ground: Ground<'_>, key: &Meta, buf: &mut [u8]) -> bool {
        let (hash, lent) = (self.hash(key), ground.lent);
        if self.cache.get().is_some_and(|cache| cache.get(ground, hash, key, buf)) {
            return true;
        }
        let take = |at: PageUse| {
            lent.prefetch_page(at.page);
            lent.read(at, key, buf)
        };
        match self.index.find(hash, take) {
            Some(at) => {
                self.touch(at.page);
                true
            }
            None => false,
        }
    }

    /// Drops the page of `key`; whether there was one.
    pub(super) fn invalidate_page(&self, ground: Ground<'_>, key: &Meta) -> bool {
        let hash = self.hash(key);
        // In this order: a plain page is older than a packed one of its key.
        let plain = self.remove_plain(ground, key);
        self.cache.get().is_some_and(|cache| cache.remove(ground, hash, key)) || plain
    }

    fn remove_plain(&self, ground: Ground<'_>, key: &Meta) -> bool {
        let Ground { lent, counts, .. } = ground;
        let same = |at| Self::held(lent, key, at) == Held::Same;
        let Some(at) = self.index.remove(self.hash(key), same) else { return false };
        Self::discard(lent, counts, at, Counter::InvalidatedPages);
        true
    }

    /// Stores pages compressed from now on where that makes them smaller.
    pub(super) fn compress(&self, codec: &Codec) -> Result<(), Error> {
        let cache = PackedCache::new(self.pool_number(), self.hot.len(), self.page, codec)?;
        // The reserve is just being made.
        let _ = self.cache.set(cache);
        Ok(())
    }

    /// Has pages of a pool moved before first class takes them, as long as it lives.
    pub(super) fn add_mover(&self, packed: &Arc<Packed>) {
        let mut movers = write(&self.movers);
        movers.retain(|other| other.strong_count() > 0);
        movers.push(Arc::downgrade(packed));
    }

    /// Moves the pages of those pools out of a run that first class is about to take, as long as
    /// others can be had. Waits for nobody.
    #[cold]
    pub(super) fn move_out(&self, ground: Ground<'_>, run: &Range<usize>) {
        let alive = match self.movers.try_read() {
            Ok(movers) => movers.iter().filter_map(Weak::upgrade).collect::<Vec<_>>(),
            Err(_) => return,
        };
        for page in run.clone() {
            let Some((_, _, meta)) = ground.lent.holds(page, packed::is_packed) else { continue };
            let Some(mover) = alive.iter().find(|packed| packed.is_of(&meta)) else { continue };
            if !mover.move_out(ground, &meta, run) {
                return;
            }
        }
    }

    /// Pages that are stored compressed.
    pub(super) fn packed_pages(&self) -> Pages {
        self.cache.get().map_or(Pages::ZERO, PackedCache::pages)
    }

    /// Pages that were stored compressed and found lost.
    pub(super) fn packed_lost(&self) -> u64 {
        self.cache.get().map_or(0, |cache| cache.packed().lost())
    }

    /// Starts to fetch what is asked for `key` first.
    #[inline]
    pub(super) fn prefetch_key(&self, key: &Meta) {
        let hash = self.hash(key);
        self.index.prefetch(hash);
        if let Some(cache) = self.cache.get() {
            cache.prefetch(hash);
        }
    }
}
