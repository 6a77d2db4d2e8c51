//! [`Store`]: the pool as this benchmark sets it up.

use glebe::sys::page_size;
use glebe::units::{PageSize, Pages};
use glebe::zpool::{Codec, Compaction, Handle, Pool, Rules, TableChoice};

use super::Error;

/// How size classes are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Classes {
    /// As the patch and the kernel do, and nothing is compacted: the longest zspage in pages, and
    /// whether classes are merged.
    Rules(u64, bool),
    /// As the pool does if it is not told: chosen again and again for what is stored.
    Default,
}

/// The kernel's rules, with zspages of up to `chain` pages.
pub(super) fn rules(page: PageSize, chain: u64, merge: bool) -> Rules {
    Rules { chain: Pages::new(chain), merge, ..Rules::of_page(page) }
}

impl Classes {
    pub(super) fn name(self) -> String {
        match self {
            Self::Rules(chain, true) => format!("glebe, chain {chain}, merge"),
            Self::Rules(chain, false) => format!("glebe, chain {chain}, no merge"),
            Self::Default => "glebe".into(),
        }
    }
}

/// What a pool holds, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    /// Of objects, as they are stored.
    pub(super) stored: u64,
    /// Of pages of zspages.
    pub(super) used: u64,
    /// Of pages that are kept for the next zspage.
    pub(super) kept: u64,
    /// Everything else.
    pub(super) metadata: u64,
}

/// A pool.
#[derive(Debug)]
pub(super) struct Store {
    pool: Pool,
}

impl Store {
    /// An empty one, with LZ4 or without a codec.
    pub(super) fn new(classes: Classes, coded: bool) -> Result<Self, Error> {
        let options = match classes {
            Classes::Default => Pool::options(),
            Classes::Rules(chain, merge) => Pool::options()
                .table(TableChoice::Rules(rules(page_size(), chain, merge)))
                .compaction(Compaction::Manual),
        };
        let codec = if coded { Codec::Lz4 } else { Codec::None };
        Ok(Self { pool: options.codec(codec).build()? })
    }

    /// The pool.
    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Stores an object.
    #[inline]
    pub(super) fn insert(&self, object: &[u8]) -> Result<Handle, Error> {
        Ok(self.pool.insert(object)?)
    }

    /// Copies an object out; its length.
    #[inline]
    pub(super) fn read(&self, handle: Handle, out: &mut [u8]) -> Result<usize, Error> {
        Ok(self.pool.read(handle, out)?)
    }

    /// Drops an object.
    #[inline]
    pub(super) fn remove(&self, handle: Handle) -> Result<(), Error> {
        Ok(self.pool.remove(handle)?)
    }

    /// What it holds now.
    pub(super) fn held(&self) -> Held {
        let stats = self.pool.stats();
        let bytes = |pages: u64| Pages::new(pages).bytes(page_size()).get();
        Held {
            stored: stats.stored_bytes,
            used: bytes(stats.used_pages),
            kept: bytes(stats.kept_pages),
            metadata: stats.metadata_bytes,
        }
    }
}
