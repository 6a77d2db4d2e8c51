//! What is done beside requests: the clock, the bytes used, items that are over or lost.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use glebe::reserve::{Block, Error, Reserve};

use super::item::HEAD;
use super::log::segment_bytes;
use super::shard::FLUSHED;
use super::{Room, Store};
use crate::protocol::KEY_MAX;

/// Entries that a tick looks at, of each shard.
const CRAWLED: usize = 16;
/// What a store holds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Held {
    /// Items.
    pub items: u64,
    /// Of them, those that lie in pages of their own.
    pub large_items: u64,
    /// Bytes of keys, values and heads.
    pub bytes: u64,
    /// Of them, those of large items, whole pages.
    pub large_bytes: u64,
    /// Bytes of the segments that small items share, with their gaps.
    pub segment_bytes: u64,
    /// Bytes that count against the limit.
    pub used: u64,
    /// Bytes of the index.
    pub index: u64,
    /// The limit as it was set.
    pub most: u64,
    /// The limit as first class leaves it.
    pub limit: u64,
}

impl Store {
    /// Brings the clock and the bytes used up to date, and drops some of the items that are over.
    /// To be called a few times a second.
    pub fn tick(&self, room: &mut Room) {
        self.clock.tick();
        self.flush_due();
        self.measure();
        self.crawl(room);
        self.free_bytes(0, u64::MAX, room);
    }

    /// Drops all items if the time for that has come.
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

    /// Bytes beside the reserve's: of the index, and the heads of the logs.
    fn own_bytes(&self) -> u64 {
        let heads = self.shards.len() * segment_bytes(self.memory.page());
        self.index_bytes() + heads as u64
    }

    /// Bytes beside the reserve at the last tick: of the index, and the heads of the logs.
    #[must_use]
    pub fn own(&self) -> u64 {
        self.own.load(Ordering::Relaxed)
    }

    fn index_bytes(&self) -> u64 {
        (0..self.shards.len()).map(|nth| self.shard(nth).bytes() as u64).sum()
    }

    /// Looks at some items of each shard.
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
                        self.forget_lost(&mut shard, lost);
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

    /// What is held now.
    #[must_use]
    pub fn held(&self) -> Held {
        let (mut items, mut small_bytes, mut segments) = (0, 0, 0);
        for nth in 0..self.shards.len() {
            let shard = self.shard(nth);
            items += shard.len() as u64;
            small_bytes += shard.log.live_bytes();
            // One more is written to.
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
        }
    }

    /// Sets the limit; at most what the store was made with has an effect.
    pub fn set_most(&self, bytes: u64) {
        self.most.store(bytes, Ordering::Relaxed);
        self.measure();
    }

    /// The reserve that items live in.
    #[must_use]
    pub fn reserve(&self) -> &Reserve {
        self.memory.reserve()
    }

    /// Takes `bytes` of the reserve for first class, as long runs as there are, until what is
    /// returned is dropped; and how long that took.
    ///
    /// # Errors
    /// As [`Reserve::alloc`].
    pub fn recall(&self, bytes: u64) -> Result<(Vec<Block>, Duration), Error> {
        let begin = Instant::now();
        let blocks = self.memory.recall(bytes)?;
        let took = begin.elapsed();
        self.measure();
        Ok((blocks, took))
    }

    /// Forgets what has been counted.
    pub fn reset(&self) {
        self.events.reset();
    }
}
