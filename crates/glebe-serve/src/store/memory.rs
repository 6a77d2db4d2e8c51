//! [`Memory`] stores items' pages in the part of a reserve that first class does not use.
//!
//! The pages of an object number are stored once and never change, except pages with items' heads.
//! If a page is missing, the item is lost. Calls need no lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use glebe::contig::{Contig, Node};
use glebe::internal::NodeBytes;
use glebe::page_size;
use glebe::reserve::{self, Namespace, Put, Reserve};
use glebe::units::{Bytes, PageSize, Pages};

/// Items leave 1 / `SPARE` of the reserve free, because a put takes only free pages and searches
/// longer if they are few.
const SPARE: u64 = 32;
/// Minimum bytes of the reserve, whose length is a multiple of `UNIT`.
const LEN_MIN: u64 = 4 << 20;
const UNIT: u64 = 2 << 20;
/// Longest search for memory in one run. Clients wait for the server's start.
const SEARCH: Duration = Duration::from_secs(2);
/// Maximum attempts to replace pages.
const REPLACES: u32 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Used {
    /// Bytes of the items' pages.
    pub(super) items: u64,
    /// Bytes that items may use beside first class.
    pub(super) room: u64,
}

#[derive(Debug)]
pub(super) struct Memory {
    reserve: Reserve,
    items: Namespace,
    nodes: NodeBytes,
    page: usize,
    next: AtomicU64,
}

impl Memory {
    /// Makes a reserve of `bytes`, rounded down to [`UNIT`] or bricks, but at least [`LEN_MIN`] and
    /// a brick. `bricks` has their size, and the bytes that may be added later. Bricks can be
    /// leased. `nodes`: takes only memory of these NUMA nodes; of any if empty.
    pub(super) fn new(
        bytes: u64,
        bricks: Option<(PageSize, u64)>,
        nodes: &[Node],
    ) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        let unit = bricks.map_or(UNIT, |(each, _)| each.bytes().get().max(UNIT));
        let len = Bytes::new((bytes - bytes % unit).max(LEN_MIN).max(unit));
        let memory = Contig::options().search_time(SEARCH);
        let memory = match nodes {
            [] => memory,
            nodes => memory.nodes(nodes.iter().copied()),
        };
        let options = match bricks {
            Some((each, more)) => Reserve::options()
                .memory(memory.bricks_of(each))
                .room(Bytes::new(len.get().saturating_add(more))),
            None => Reserve::options().memory(memory),
        };
        let reserve = options.build(len)?;
        let items = reserve.page_cache().namespace("items")?.without_eviction();
        let page = page_size().bytes().as_usize();
        let nodes = NodeBytes::new();
        // Asks now, because clients would wait for the first answer.
        nodes.of(&reserve);
        Ok(Self { reserve, items, nodes, page, next: AtomicU64::new(1) })
    }

    /// Returns the bytes of the reserve on each NUMA node, if the machine has several.
    pub(super) fn on_nodes(&self) -> Vec<(Node, Bytes)> {
        self.nodes.of(&self.reserve)
    }

    pub(super) fn page(&self) -> usize {
        self.page
    }

    pub(super) fn reserve(&self) -> &Reserve {
        &self.reserve
    }

    pub(super) fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Stores the pages of an object from `first` on. Stores all pages or fails.
    #[inline]
    pub(super) fn put(&self, number: u64, first: u64, bytes: &[u8]) -> Result<(), Full> {
        match self.items.put_run(number, first, bytes) {
            Ok(Put::Stored) => Ok(()),
            Ok(Put::Rejected(_)) | Err(_) => Err(Full),
        }
    }

    /// Stores pages in place of older ones. Returns false if the pages are lost.
    ///
    /// A put that finds no free page drops the older pages and fails. The next attempt can take
    /// these, unless another thread was quicker.
    pub(super) fn replace(&self, number: u64, first: u64, bytes: &[u8]) -> bool {
        (0..REPLACES).any(|_| self.put(number, first, bytes).is_ok())
    }

    /// Reads pages from `first` on. Returns false if one is missing.
    #[inline]
    pub(super) fn get_run(&self, number: u64, first: u64, buf: &mut [u8]) -> bool {
        self.items.get_run(number, first, buf).unwrap_or(false)
    }

    /// Reads bytes from `offset` on. Returns false if a page is missing.
    #[inline]
    pub(super) fn get_part(&self, number: u64, offset: usize, buf: &mut [u8]) -> bool {
        self.items.get_part(number, offset as u64, buf).unwrap_or(false)
    }

    /// Drops the first `pages` of an object. Returns how many of them were present.
    pub(super) fn drop_pages(&self, number: u64, pages: u64) -> u64 {
        let drop = |index: &u64| self.items.invalidate_page(number, *index).unwrap_or(false);
        (0..pages).filter(drop).count() as u64
    }

    pub(super) fn used(&self) -> Used {
        let reserve = self.reserve.stats();
        let page = self.page as u64;
        let total = reserve.total.get().saturating_sub(reserve.held.get()) * page;
        Used { items: reserve.live.get() * page, room: total.saturating_sub(total / SPARE) }
    }

    /// Returns the bytes that first class holds.
    pub(super) fn taken(&self) -> u64 {
        self.reserve.stats().held.get() * self.page as u64
    }

    /// Takes `bytes` for first class, or less if there is less, until the blocks are dropped.
    pub(super) fn recall(&self, bytes: u64) -> Result<Vec<reserve::Block>, reserve::ReserveError> {
        let mut left = bytes.div_ceil(self.page as u64);
        let mut blocks = Vec::new();
        while left > 0 {
            let longest = self.reserve.largest_run()?.get().min(left);
            if longest == 0 {
                break;
            }
            blocks.push(self.reserve.alloc(Pages::new(longest))?);
            left -= longest;
        }
        Ok(blocks)
    }
}
