//! The page cache: pages by pool, object and index, in what first class does not use.
//!
//! The calls and words are those of Linux's cleancache: put copies a page in, get copies it out,
//! invalidate drops it. Nothing is promised but that a hit is the last page put under its key. A
//! put that is refused drops what the key held, so that no old page is found after it. What is
//! done with the pages is in [`tenant`](super::tenant).

use std::sync::Arc;

use super::error::Error;
use super::lent::Meta;
use super::shared::Shared;
use super::stats::Counter;
use super::tenant::{PoolState, Tenant};
use super::Inner;
use crate::sync::{lock, MappedWord, Ordering};
use crate::zpool::Codec;

/// How the page cache stores pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CacheMode {
    /// As they are: a put and a get is one copy each.
    #[default]
    Plain,
    /// Coded and packed where that makes them smaller by a quarter or more: more pages, at the
    /// cost of coding and decoding. A 64th of the reserve is staged in ordinary memory, and the
    /// tables are larger.
    Compressed(Codec),
}

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
            let number = tenant.pool_number();
            Arc::new(PoolState { number: MappedWord::new(number) })
        });
        Ok(Pool { state: Arc::clone(state), inner: self.inner.clone() })
    }
}

/// A pool of the page cache: a cheap handle. Every call is O(1), takes no lock (but a put of a page
/// that is stored compressed, one that few others want), and fails in a forked child with
/// [`Error::Forked`].
#[derive(Clone, Debug)]
pub struct Pool {
    state: Arc<PoolState>,
    inner: Shared<Inner>,
}

impl Pool {
    #[inline]
    fn key(&self, tenant: &Tenant, object: u64, index: u64) -> Meta {
        let pool = self.state.number.load(Ordering::Acquire);
        tenant.prefetch_key(&[pool, object, index, 0]);
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
        Ok(inner.tenant().put(inner.ground(), &key, page))
    }

    /// Copies the page of `object` and `index` out into `buf`, exactly one base page. `false` is
    /// a miss: then `buf` may hold anything.
    ///
    /// # Errors
    /// [`Error::BadPageLen`], [`Error::Forked`].
    pub fn get(&self, object: u64, index: u64, buf: &mut [u8]) -> Result<bool, Error> {
        let inner = self.inner(buf.len())?;
        let key = self.key(inner.tenant(), object, index);
        let hit = inner.tenant().get(inner.ground(), &key, buf);
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
        let found = inner.tenant().invalidate_page(inner.ground(), &key);
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
        let number = inner.tenant().pool_number();
        self.state.number.store(number, Ordering::Release);
        inner.counts().add(Counter::InvalidatedPools, 1);
        Ok(())
    }
}
