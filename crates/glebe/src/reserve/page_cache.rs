//! [`PageCache`] keeps pages by name space, object and index, with the calls of Linux's cleancache.
//!
//! A get may miss; a hit returns the last page put under its key. A refused put drops the key's
//! older page.
//!
//! A stored page's key has the number of its name space and the generation of its object.
//! Invalidation changes the number or the generation in O(1), so older pages no longer match.
//! Objects with equal hashes share a generation and are invalidated together, which only costs
//! misses.
//!
//! With a codec, pages that compress well go to [`PackedPages`]. One [`Index`] names all pages. A
//! look-up of a name space locks `names`.

mod run;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use super::error::ReserveError;
use super::index::{Held, Index, PageKey};
use super::lender::{is_packed, Claimed, First, Lender};
use super::lent::{Claim, Meta, NotFilled};
use super::packed_pages::{is_object, PackedPages};
use super::shared::Shared;
use super::stats::Counter;
use super::table::{Table, Tables};
use super::words::PageUse;
use super::ReserveCore;
use crate::zpool::internal::with_buffer;
use crate::zpool::Codec;
use glebe_os::internal::sync::{lock, prefetch, MappedWord, Mutex, Ordering};
use glebe_os::units::Pages;

const TRIES: u32 = 4;
/// Distances from the clock hand, in pages, at which page words and index entries are prefetched.
const AHEAD_OF_META: usize = 8;
const AHEAD_OF_ENTRY: usize = 2;

const PACKED_PER_PAGE: usize = 3;

/// [`Put`] is the outcome of a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// A get finds the page until it is evicted, recalled, replaced or invalidated.
    Stored,
    /// The key holds no page.
    Rejected(Rejected),
}

/// [`Rejected`] is the reason why a put kept nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rejected {
    /// No page could be taken, or the run does not fit.
    Full,
    /// First class took the page during the copy.
    Recalled,
    /// The kernel interrupted the copy too often, or the index had no slot.
    Busy,
}

/// [`PageCache`] is a cheap handle to the page cache of a reserve.
#[derive(Clone, Debug)]
pub struct PageCache {
    inner: Shared<ReserveCore>,
}

impl PageCache {
    pub(super) fn new(inner: Shared<ReserveCore>) -> Self {
        Self { inner }
    }

    /// Returns the name space `name`, created if it is new.
    ///
    /// # Errors
    /// [`ReserveError::Forked`].
    pub fn namespace(&self, name: &str) -> Result<Namespace, ReserveError> {
        let inner = self.inner.get()?;
        let mut names = lock(&inner.cache.names);
        let number = names
            .entry(name.to_owned())
            .or_insert_with(|| Arc::new(MappedWord::new(inner.lender().number())));
        Ok(Namespace { number: Arc::clone(number), inner: self.inner.clone(), takes: Takes::Any })
    }
}

/// [`Namespace`] is a cheap handle to a name space of the page cache.
///
/// ```
/// # use glebe::{page_size, reserve::{Put, Reserve}, units::Bytes};
/// let reserve = Reserve::new(Bytes::mib(2))?;
/// let tiles = reserve.page_cache().namespace("tiles")?;
/// let mut page = vec![7; page_size().bytes().as_usize()];
/// let kept = tiles.put(1, 0, &page)? == Put::Stored; // object 1, page 0
/// assert_eq!(tiles.get(1, 0, &mut page)?, kept);
/// # Ok::<(), glebe::reserve::ReserveError>(())
/// ```
///
/// Calls usually take O(1) a page, and without a codec no lock.
#[derive(Clone, Debug)]
pub struct Namespace {
    number: Arc<MappedWord>,
    inner: Shared<ReserveCore>,
    takes: Takes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Takes {
    Any,
    Free,
}

impl Namespace {
    /// Makes puts take free pages only. A put is rejected if it finds none. With a codec,
    /// compressed pages still evict others.
    ///
    /// A put looks at O(pages / free pages) pages on average.
    #[must_use]
    pub fn without_eviction(self) -> Self {
        Self { takes: Takes::Free, ..self }
    }

    #[inline]
    fn key(&self, inner: &ReserveCore, object: u64, index: u64) -> PageKey {
        inner.cache.key(self.number.load(Ordering::Acquire), object, index)
    }

    #[inline]
    fn inner(&self, len: usize) -> Result<&ReserveCore, ReserveError> {
        let inner = self.inner.get()?;
        let page = inner.lent().frames().page().bytes();
        if len as u64 != page.get() {
            return Err(ReserveError::BadPageLen { given: len, page });
        }
        Ok(inner)
    }

    /// Stores a copy of `page`, one base page, in place of the key's older page.
    ///
    /// # Errors
    /// [`ReserveError::BadPageLen`], [`ReserveError::Forked`].
    pub fn put(&self, object: u64, index: u64, page: &[u8]) -> Result<Put, ReserveError> {
        let inner = self.inner(page.len())?;
        Ok(inner.cache.put(inner.lender(), &self.key(inner, object, index), page, self.takes))
    }

    /// Copies a page to `buf`, one base page. Returns false on a miss, which may change `buf`.
    ///
    /// # Errors
    /// [`ReserveError::BadPageLen`], [`ReserveError::Forked`].
    pub fn get(&self, object: u64, index: u64, buf: &mut [u8]) -> Result<bool, ReserveError> {
        let inner = self.inner(buf.len())?;
        let hit = inner.cache.get(inner.lender(), &self.key(inner, object, index), 0, buf);
        inner.counts().add(if hit { Counter::Loaded } else { Counter::Missed }, 1);
        Ok(hit)
    }

    /// Drops one page. Returns false if the key had no page.
    ///
    /// # Errors
    /// [`ReserveError::Forked`].
    pub fn invalidate_page(&self, object: u64, index: u64) -> Result<bool, ReserveError> {
        let inner = self.inner.get()?;
        let key = self.key(inner, object, index);
        let found = inner.cache.remove(inner.lender(), &key);
        if !found {
            inner.counts().add(Counter::InvalidateFailed, 1);
        }
        Ok(found)
    }

    /// Drops all pages of an object, and of objects with the same hash. O(1).
    ///
    /// # Errors
    /// [`ReserveError::Forked`].
    pub fn invalidate_object(&self, object: u64) -> Result<(), ReserveError> {
        let inner = self.inner.get()?;
        let number = self.number.load(Ordering::Acquire);
        inner.cache.generation(number, object).fetch_add(1, Ordering::AcqRel);
        inner.counts().add(Counter::InvalidatedObjects, 1);
        Ok(())
    }

    /// Drops all pages of the name space. O(1).
    ///
    /// # Errors
    /// [`ReserveError::Forked`].
    pub fn invalidate_all(&self) -> Result<(), ReserveError> {
        let inner = self.inner.get()?;
        self.number.store(inner.lender().number(), Ordering::Release);
        inner.counts().add(Counter::InvalidatedPools, 1);
        Ok(())
    }
}

#[derive(Debug)]
pub(super) struct Cache {
    index: Index,
    packed: Option<PackedPages>,
    generations: Table<MappedWord>,
    seed: u64,
    names: Mutex<HashMap<String, Arc<MappedWord>>>,
}

impl Cache {
    pub(super) fn new(
        tables: &mut Tables,
        lender: &Lender,
        codec: &Codec,
    ) -> Result<Self, ReserveError> {
        let pages = lender.lent().pages();
        let is_packed = *codec != Codec::None;
        let packed = is_packed.then(|| PackedPages::new(lender, codec)).transpose()?;
        let entries = if is_packed { pages * PACKED_PER_PAGE } else { pages };
        Ok(Self {
            index: Index::new(tables, entries)?,
            packed,
            generations: tables.table(pages.next_power_of_two(), |_| MappedWord::new(0))?,
            seed: RandomState::new().hash_one(0),
            names: Mutex::new(HashMap::new()),
        })
    }

    #[inline]
    fn mix(&self, a: u64, b: u64) -> u64 {
        let product = u128::from(a ^ self.seed) * u128::from(b ^ 0x9e37_79b9_7f4a_7c15);
        let folded = (product as u64) ^ ((product >> 64) as u64);
        folded ^ (a.rotate_left(32)).wrapping_mul(0xd6e8_feb8_6659_fd93)
    }

    #[inline]
    fn hash(&self, pool: u64, object: u64, index: u64) -> u64 {
        let h = self.mix(self.mix(pool, object), index);
        self.mix(h, self.seed.rotate_left(17))
    }

    #[inline]
    fn generation(&self, pool: u64, object: u64) -> &MappedWord {
        let cell = self.mix(object, pool) as usize & (self.generations.len() - 1);
        &self.generations[cell]
    }

    #[inline]
    fn key(&self, pool: u64, object: u64, index: u64) -> PageKey {
        let hash = self.hash(pool, object, index);
        self.index.prefetch(hash);
        let generation = self.generation(pool, object).load(Ordering::Acquire);
        PageKey { meta: [pool, object, index, generation], hash }
    }

    fn is_dead(&self, meta: &Meta) -> bool {
        self.generation(meta[0], meta[1]).load(Ordering::Acquire) != meta[3]
    }

    fn put(&self, lender: &Lender, key: &PageKey, bytes: &[u8], takes: Takes) -> Put {
        let packed = self.packed.as_ref();
        let stored = match packed.and_then(|packed| packed.store(lender, &key.meta, bytes)) {
            Some(at) => Ok(at),
            None => self.store(lender, key, bytes, takes),
        };
        let put = match stored {
            Ok(at) if self.publish(lender, key, at) => Put::Stored,
            Ok(_) => Put::Rejected(Rejected::Busy),
            Err(why) => Put::Rejected(why),
        };
        if put != Put::Stored {
            self.remove(lender, key);
            lender.counts().add(Counter::Rejected, 1);
        }
        if let Some(packed) = packed {
            packed.settle(lender);
        }
        put
    }

    fn store(
        &self,
        lender: &Lender,
        key: &PageKey,
        bytes: &[u8],
        takes: Takes,
    ) -> Result<PageUse, Rejected> {
        let mut why = Rejected::Full;
        for _ in 0..TRIES {
            let Some(claim) = self.claim(lender, takes) else { break };
            match lender.fill(claim, key.meta, bytes) {
                Ok(at) => return Ok(at),
                Err(NotFilled::Recalled) => why = Rejected::Recalled,
                Err(NotFilled::Interrupted) => return Err(Rejected::Busy),
            }
        }
        Err(why)
    }

    #[inline]
    fn claim(&self, lender: &Lender, takes: Takes) -> Option<Claim> {
        let claimed = match takes {
            Takes::Any => lender.claim(First::Dropped),
            Takes::Free => lender.claim_free(),
        }?;
        self.evicted(lender, &claimed);
        if takes == Takes::Any {
            self.prefetch(lender, claimed.claim.page);
        }
        Some(claimed.claim)
    }

    #[inline]
    fn evicted(&self, lender: &Lender, claimed: &Claimed) {
        if !claimed.claim.evicted {
            return;
        }
        let mut dead = false;
        if let Some((at, meta)) = claimed.held.filter(|(_, meta)| !is_packed(meta)) {
            dead = self.is_dead(&meta);
            self.index.remove(self.hash(meta[0], meta[1], meta[2]), |other| other == at);
        }
        let why = if dead { Counter::InvalidatedPages } else { Counter::Evicted };
        lender.counts().add(why, 1);
    }

    #[inline]
    fn prefetch(&self, lender: &Lender, page: usize) {
        if let Some(later) = page.checked_sub(AHEAD_OF_META) {
            lender.lent().prefetch(later);
        }
        if let Some(next) = page.checked_sub(AHEAD_OF_ENTRY) {
            let meta = lender.lent().peek(next);
            self.index.prefetch(self.hash(meta[0], meta[1], meta[2]));
            prefetch(self.generation(meta[0], meta[1]));
        }
    }

    fn meta_of(&self, lender: &Lender, at: PageUse) -> Option<Meta> {
        match &self.packed {
            Some(packed) if is_object(at) => packed.key_of(lender, at),
            _ => lender.lent().holds_use(at).map(|(_, _, meta)| meta),
        }
    }

    fn held(&self, lender: &Lender, key: &PageKey, at: PageUse) -> Held {
        match self.meta_of(lender, at) {
            Some(meta) if meta[..3] == key.meta[..3] => Held::Same,
            Some(_) => Held::Other,
            None => Held::Stale,
        }
    }

    fn publish(&self, lender: &Lender, key: &PageKey, at: PageUse) -> bool {
        let held = |other| self.held(lender, key, other);
        let Some(published) = self.index.publish(key.hash, at, held) else {
            self.drop_entry(lender, at, Counter::Evicted);
            return false;
        };
        if let Some(old) = published.replaced {
            self.drop_entry(lender, old, Counter::Replaced);
        }
        if let Some(other) = published.displaced {
            self.drop_entry(lender, other, Counter::Evicted);
        }
        true
    }

    fn drop_entry(&self, lender: &Lender, at: PageUse, why: Counter) {
        match &self.packed {
            Some(packed) if is_object(at) => packed.drop_object(lender, at),
            _ => {
                lender.drop_use(at, why);
            }
        }
    }

    #[inline]
    fn get(&self, lender: &Lender, key: &PageKey, offset: usize, buf: &mut [u8]) -> bool {
        let lent = lender.lent();
        let page = lent.frames().page().bytes().as_usize();
        let take = |at: PageUse| match &self.packed {
            Some(packed) if is_object(at) && buf.len() == page => {
                packed.read(lender, &key.meta, at, buf)
            }
            Some(packed) if is_object(at) => with_buffer(page, |whole| {
                let is_read = packed.read(lender, &key.meta, at, whole);
                buf.copy_from_slice(&whole[offset..offset + buf.len()]);
                is_read
            }),
            _ => {
                if buf.len() == page {
                    lent.prefetch_page(at.page);
                }
                lent.read_part(at, &key.meta, offset, buf)
            }
        };
        let found = self.index.find(key.hash, take);
        match found {
            Some(at) if is_object(at) => lender.counts().add(Counter::PackedLoaded, 1),
            Some(at) => lender.touch(at.page),
            None => {}
        }
        found.is_some()
    }

    fn place_of(&self, lender: &Lender, key: &PageKey) -> Option<PageUse> {
        self.index.find(key.hash, |at| self.meta_of(lender, at) == Some(key.meta))
    }

    fn remove(&self, lender: &Lender, key: &PageKey) -> bool {
        let same = |at| self.held(lender, key, at) == Held::Same;
        let Some(at) = self.index.remove(key.hash, same) else { return false };
        self.drop_entry(lender, at, Counter::InvalidatedPages);
        if let Some(packed) = &self.packed {
            packed.settle(lender);
        }
        true
    }

    pub(super) fn packed(&self) -> (Pages, u64) {
        self.packed.as_ref().map_or((Pages::ZERO, 0), PackedPages::pages)
    }
}
