//! Maintains a store: clock, bytes used, expired and lost items.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use glebe::contig::Node;
use glebe::page_size;
use glebe::reserve::{Block, Reserve, ReserveError};
use glebe::units::Bytes;

use super::item::HEAD;
use super::log::segment_bytes;
use super::shard::FLUSHED;
use super::{Room, Store};
use crate::protocol::KEY_MAX;

/// Maximum entries of a shard examined per tick.
const CRAWLED: usize = 16;
/// Contents of a store.
#[derive(Clone, Copy, Debug, Default)]
pub struct Held {
    /// Items.
    pub items: u64,
    /// Large items.
    pub large_items: u64,
    /// Bytes of items (head, key and value), each rounded up to 8 bytes, or to pages if large.
    pub bytes: u64,
    /// Bytes of large items' pages.
    pub large_bytes: u64,
    /// Bytes of small items' segments, including gaps and segments being written.
    pub segment_bytes: u64,
    /// Bytes that count against the limit.
    pub used: u64,
    /// Bytes of the index.
    pub index: u64,
    /// Limit in bytes, as set.
    pub most: u64,
    /// Limit in bytes, lower than `most` if first class leaves less.
    pub limit: u64,
    /// Bytes of the reserve that first class holds: recalls, leases, memory kept for leases.
    pub taken: u64,
}

impl Store {
    /// Updates the clock and the bytes used, drops some expired and lost items, and evicts items
    /// beyond the limit. The server ticks about ten times a second.
    pub fn tick(&self, room: &mut Room) {
        self.clock.tick();
        self.flush_due();
        self.measure();
        self.crawl(room);
        self.free_bytes(0, u64::MAX, room);
    }

    /// Flushes all items if a flush is due.
    pub fn flush_due(&self) {
        let at = self.flush_at.load(Ordering::Relaxed);
        if at != 0 && at <= self.clock.now() {
            self.flush(None);
        }
    }

    pub(super) fn measure(&self) {
        let (used, own) = (self.memory.used(), self.own_bytes());
        self.own.store(own, Ordering::Relaxed);
        let most = self.most.load(Ordering::Relaxed);
        self.limit.store(most.min(used.room + own), Ordering::Relaxed);
        self.used.store((used.items + own) as i64, Ordering::Relaxed);
    }

    fn own_bytes(&self) -> u64 {
        let heads = self.shards.len() * segment_bytes(self.memory.page());
        self.index_bytes() + heads as u64
    }

    /// Returns the bytes outside the reserve when last measured.
    #[must_use]
    pub fn own(&self) -> u64 {
        self.own.load(Ordering::Relaxed)
    }

    fn index_bytes(&self) -> u64 {
        (0..self.shards.len()).map(|nth| self.shard(nth).bytes() as u64).sum()
    }

    fn crawl(&self, room: &mut Room) {
        for nth in 0..self.shards.len() {
            for _ in 0..CRAWLED {
                let mut shard = self.shard(nth);
                let Some(at) = shard.crawl() else { break };
                let entry = shard.at(at);
                let is_flushed = entry.access & FLUSHED != 0;
                match self.look(&shard, entry, HEAD + KEY_MAX, room) {
                    None => {
                        let lost = shard.remove(at);
                        self.forget_lost(&mut shard, lost, None);
                    }
                    Some(head) if is_flushed || self.is_over(&head) => {
                        self.events.reclaimed.count(entry.is_large());
                        let over = shard.remove(at);
                        self.expire(&mut shard, over);
                    }
                    Some(_) => {}
                }
            }
        }
    }

    /// Returns the contents.
    #[must_use]
    pub fn held(&self) -> Held {
        let (mut items, mut small_bytes, mut segments) = (0, 0, 0);
        for nth in 0..self.shards.len() {
            let shard = self.shard(nth);
            items += shard.len() as u64;
            small_bytes += shard.log.live_bytes();
            // The head is one more segment.
            segments += shard.log.sealed() + 1;
        }
        let large_bytes = self.large_bytes.load(Ordering::Relaxed).max(0) as u64;
        Held {
            items,
            large_items: self.large_items.load(Ordering::Relaxed).max(0) as u64,
            bytes: small_bytes + large_bytes,
            large_bytes,
            segment_bytes: segments * segment_bytes(self.memory.page()) as u64,
            used: self.used.load(Ordering::Relaxed).max(0) as u64,
            index: self.index_bytes(),
            most: self.most.load(Ordering::Relaxed),
            limit: self.limit.load(Ordering::Relaxed),
            taken: self.memory.taken(),
        }
    }

    /// Returns the bytes of the reserve on each NUMA node, if the machine has several.
    pub fn on_nodes(&self) -> Vec<(Node, Bytes)> {
        self.memory.on_nodes()
    }

    /// Sets the limit in bytes. The room in the reserve may lower the limit further.
    pub fn set_most(&self, bytes: u64) {
        self.most.store(bytes, Ordering::Relaxed);
        self.measure();
    }

    /// Returns the items' reserve.
    #[must_use]
    pub fn reserve(&self) -> &Reserve {
        self.memory.reserve()
    }

    /// Takes `bytes` of the reserve for first class, or less if there is less, in the longest runs.
    /// Returns the blocks, and how long the call took.
    ///
    /// # Errors
    /// See [`Reserve::alloc`].
    pub fn recall(&self, bytes: u64) -> Result<(Vec<Block>, Duration), ReserveError> {
        let begin = Instant::now();
        let blocks = self.memory.recall(bytes)?;
        let took = begin.elapsed();
        let taken = blocks.iter().map(|block| block.pages().bytes(page_size()).get()).sum();
        self.note_recall(taken, blocks.len(), took);
        self.measure();
        Ok((blocks, took))
    }

    /// Resets the counts of events.
    pub fn reset(&self) {
        self.events.reset();
    }
}
