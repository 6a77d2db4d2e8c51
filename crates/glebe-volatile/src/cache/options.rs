//! [`CacheOptions`]: the options of a cache.

use std::hash::Hash;
use std::marker::PhantomData;
use std::sync::Arc;

use bytemuck::Pod;

use super::fork;
use super::stats::Counts;
use super::table::Table;
use super::Cache;
use crate::{Engine, Error, Refills, Region};
use glebe_os::error::OsError;
use glebe_os::extent::Extent;
use glebe_os::internal::stats::Histogram;
use glebe_os::internal::sync::Mutex;
use glebe_os::internal::sys::page_size;
use glebe_os::units::{Bytes, Pages};
use glebe_vmap::free_tree::{Classes, FreeTree};

const HOT_SHARE: u64 = 8;
const HOT_MOST: Bytes = Bytes::mib(32);

/// Options of a [`Cache`]; from [`Cache::options`].
#[derive(Clone, Debug)]
#[must_use = "options do nothing until the cache is made"]
pub struct CacheOptions<K, V> {
    engine: Option<Engine>,
    cap: Option<Bytes>,
    hot: Option<Bytes>,
    refills: Refills,
    types: PhantomData<fn() -> (K, V)>,
}

impl<K, V> Default for CacheOptions<K, V> {
    fn default() -> Self {
        let refills = Refills::default();
        Self { engine: None, cap: None, hot: None, refills, types: PhantomData }
    }
}

impl<K, V> CacheOptions<K, V> {
    /// Sets the engine. Default: *scan* if available, else *tag*.
    pub fn engine(self, engine: Engine) -> Self {
        Self { engine: Some(engine), ..self }
    }

    /// Limits the bytes of all kept entries. New entries evict marked ones beyond the cap, oldest
    /// of the lowest priority first. Default: no cap.
    pub fn cap(self, cap: Bytes) -> Self {
        Self { cap: Some(cap), ..self }
    }

    /// Sets how many bytes of the last used, unpinned entries stay unmarked. Default: an eighth of
    /// the smaller of cap and `addresses`, at most 32 MiB.
    pub fn hot(self, hot: Bytes) -> Self {
        Self { hot: Some(hot), ..self }
    }

    /// Lets `refills` forbid the cache to keep built values. Default: never.
    pub fn refills(self, refills: Refills) -> Self {
        Self { refills, ..self }
    }

    /// Makes a cache with `addresses` bytes, rounded up to pages, for all kept values.
    ///
    /// # Errors
    /// [`Error::ZeroCap`], and the errors of [`Options::build`](crate::Options::build).
    pub fn build(self, addresses: Bytes) -> Result<Cache<K, V>, Error>
    where
        K: Hash + Eq + Clone + Send + 'static,
        V: Pod + Send + Sync,
    {
        if self.cap == Some(Bytes::ZERO) {
            return Err(Error::ZeroCap);
        }
        let page = page_size();
        fork::follow()?;
        let options = Region::options();
        let options = self.engine.map_or(options.clone(), |engine| options.engine(engine));
        let region = options.build(addresses)?;
        let pages = region.len().pages_down(page).get();
        let all = Extent::new(0, pages).ok_or(Error::Empty)?;
        let free = free_places(all)?;
        let cap = self.cap.map_or(pages, |cap| cap.pages_up(page).get().min(pages));
        let usual = Pages::new(cap / HOT_SHARE).bytes(page).min(HOT_MOST);
        let table = Arc::new(Mutex::new(Table::new(free, cap)));
        Ok(Cache {
            _entry: fork::enter(&table),
            region: Arc::new(region),
            table,
            counts: Counts::new(),
            builds: Histogram::new(),
            hot: self.hot.unwrap_or(usual).pages_down(page),
            refills: self.refills,
        })
    }
}

fn free_places(all: Extent) -> Result<FreeTree, OsError> {
    let most = usize::try_from(all.len() / 2 + 1).unwrap_or(usize::MAX);
    let mut free = FreeTree::with_classes(all, most, Classes::None)?;
    free.free(all).expect("a whole span that is not free");
    Ok(free)
}
