//! Tests stores, regions and areas under bad conditions.
//!
//! Invariants: a call succeeds or reports the refusal; no byte is wrong; after a refused write the
//! page has its old contents (in an area: none); no file or disk block is left behind.
#![allow(unsafe_code)] // Safety: the tests change only their own descriptors, limits and children.

pub mod descriptor;
mod device;
mod limits;
mod load;
mod process;

use std::path::Path;

use glebe::page_size;
use glebe::swap::cache::{Area, SwapCache};
use glebe::swap::{Key, Region, Store, SwapError};
use glebe::units::{Bytes, Pages};

use glebe_testing::stressed;

/// Pages of each store, region or area; only some fit into budget and pool.
const PAGES: u64 = 120;
const BUDGET: u64 = 32;
const POOL_LIMIT: Bytes = Bytes::new(128 << 10);
const FILE_LIMIT: Bytes = Bytes::mib(8);

fn pages(count: u64) -> Bytes {
    Pages::new(count).bytes(page_size())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Store,
    Region,
    Area,
}

const KINDS: [Kind; 3] = [Kind::Store, Kind::Region, Kind::Area];

enum Paged {
    Store(Box<Store>, Vec<Key>),
    Region(Box<Region>),
    Area(Box<Area>),
}

impl Paged {
    fn build(kind: Kind, dir: &Path, count: u64, is_sealed: bool) -> Result<Self, SwapError> {
        #[cfg(not(feature = "encrypt"))]
        let _ = is_sealed;
        let options = Store::options().pool_limit(POOL_LIMIT).file_in(dir, FILE_LIMIT);
        let options = options.capacity(pages(count));
        #[cfg(feature = "encrypt")]
        let options = if is_sealed { options.encrypted() } else { options };
        Ok(match kind {
            Kind::Store => {
                let store = options.build(pages(BUDGET))?;
                let made = |_| store.create(pages(1).as_usize()).map(|object| object.key());
                let keys = (0..count).map(made).collect::<Result<_, _>>()?;
                Self::Store(Box::new(store), keys)
            }
            Kind::Region => {
                Self::Region(Box::new(options.build_region(pages(count), pages(BUDGET))?))
            }
            Kind::Area => {
                let cache = SwapCache::with_limit(POOL_LIMIT)?;
                #[cfg(feature = "encrypt")]
                let cache = if is_sealed { cache.encrypted() } else { cache };
                Self::Area(Box::new(cache.area(Pages::new(count), dir, FILE_LIMIT)?))
            }
        })
    }

    fn new(kind: Kind, dir: &Path, count: u64, is_sealed: bool) -> Option<Self> {
        match Self::build(kind, dir, count, is_sealed) {
            Err(SwapError::Os(error)) if error.call() == "userfaultfd" => {
                println!("skipped: {error}");
                None
            }
            made => Some(made.unwrap_or_else(|error| panic!("{kind:?}: {error}"))),
        }
    }

    fn write(&self, n: u64, version: u64) -> Result<(), SwapError> {
        let mut page = stressed::page_buffer();
        stressed::fill(&mut page, n, version);
        match self {
            Self::Store(store, keys) => {
                store.pin_mut(keys[n as usize]).map(|mut object| object.copy_from_slice(&page))
            }
            Self::Region(region) => region.write_at(pages(n), &page),
            Self::Area(area) => area.store(n, &page),
        }
    }

    fn read(&self, n: u64) -> Result<u64, SwapError> {
        let mut page = stressed::page_buffer();
        match self {
            Self::Store(store, keys) => page.copy_from_slice(&store.pin(keys[n as usize])?),
            Self::Region(region) => region.read_at(pages(n), &mut page)?,
            Self::Area(area) => {
                if !area.load(n, &mut page)? {
                    return Ok(0);
                }
            }
        }
        if page.iter().all(|byte| *byte == 0) {
            return Ok(0);
        }
        Ok(stressed::version(&page, n).unwrap_or_else(|| panic!("page {n}: not one whole page")))
    }

    /// Returns the version that the page must have after a write, and the error if it was refused.
    fn after(
        &self,
        written: Result<(), SwapError>,
        was: u64,
        version: u64,
    ) -> (u64, Option<SwapError>) {
        match (written, self) {
            (Ok(()), _) => (version, None),
            (Err(error), Self::Area(_)) => (0, Some(error)),
            (Err(error), _) => (was, Some(error)),
        }
    }

    fn write_all(&self, version: u64) {
        (0..PAGES).for_each(|n| self.write(n, version).unwrap());
    }

    fn check_all(&self, versions: &[u64]) {
        for (n, version) in (0..).zip(versions) {
            assert_eq!(self.read(n).unwrap(), *version, "page {n}");
        }
        self.check();
    }

    fn check(&self) {
        match self {
            Self::Store(store, _) => store.stats().check().unwrap(),
            Self::Region(region) => region.stats().check().unwrap(),
            Self::Area(area) => area.stats().check().unwrap(),
        }
    }
}
