//! [`Claim`] is a slot that a thread alone may write.
//!
//! Two lookups that miss one key may claim two slots of its set. Each lookup stores the key's hash,
//! then looks at the set. All steps are sequentially consistent, so at least one lookup sees the
//! other claim. A claim yields to a slot with its hash that is being built, and to a lower claim.
//! The lower claim waits, up to its patience, for the upper claim to end, because the upper lookup
//! may not have seen it.

use std::time::Instant;

use super::super::holder::Joined;
use super::super::order::Order;
use super::places::HEAD;
use super::state::{SlotPhase, SlotState, Writer};
use super::SharedCache;
use crate::Error;
use glebe_os::internal::sync::{fence, Backoff, Ordering};
use glebe_os::units::Bytes;

#[derive(Debug)]
pub(super) struct Claim<'a> {
    cache: &'a SharedCache,
    joined: &'a Joined,
    slot: u64,
    state: SlotState,
}

impl SharedCache {
    pub(super) fn claim(&self, hash: u64) -> Result<Option<Claim<'_>>, Error> {
        let joined = self.shared.joined()?;
        let writer = Writer::new(joined.holder, joined.since);
        let Some((slot, was)) = self.victim(hash)? else { return Ok(None) };
        let state = was.claimed(writer);
        if !self.exchange(slot, was, state) {
            return Ok(None);
        }
        let mut claim = Claim { cache: self, joined, slot, state };
        self.step();
        self.hash_of(slot).store(hash, Ordering::SeqCst);
        let builds = self.is_first(slot, hash)? && claim.turn_to(SlotPhase::Building(writer));
        Ok(builds.then_some(claim))
    }

    /// Returns the slot to write next: a lost entry of this hash, else a slot that is empty, lost
    /// or a dead writer's, else the entry marked first. Skips slots that live processes write.
    fn victim(&self, hash: u64) -> Result<Option<(u64, SlotState)>, Error> {
        let mut best: Option<((u32, u64), u64, SlotState)> = None;
        for slot in self.places.set_of(hash) {
            let state = self.state(slot);
            let is_same = self.hash_of(slot).load(Ordering::SeqCst) == hash;
            let rank = match state.phase() {
                SlotPhase::Claimed(by) | SlotPhase::Building(by) if self.lives(by)? => continue,
                SlotPhase::Kept(len) if self.is_lost(slot, len.into()) => (u32::from(!is_same), 0),
                SlotPhase::Kept(_) => (2, self.mark_of(slot).key().get()),
                _ => (1, 0),
            };
            if best.is_none_or(|(least, ..)| rank < least) {
                best = Some((rank, slot, state));
            }
        }
        Ok(best.map(|(_, slot, state)| (slot, state)))
    }

    fn is_first(&self, slot: u64, hash: u64) -> Result<bool, Error> {
        let (begin, mut backoff) = (Instant::now(), Backoff::default());
        for other in self.places.set_of(hash).filter(|other| *other != slot) {
            while self.hash_of(other).load(Ordering::SeqCst) == hash {
                match self.state(other).phase() {
                    SlotPhase::Empty | SlotPhase::Kept(_) => break,
                    SlotPhase::Claimed(by) | SlotPhase::Building(by) if !self.lives(by)? => break,
                    SlotPhase::Claimed(_) if slot < other && begin.elapsed() < self.patience => {
                        backoff.wait();
                    }
                    SlotPhase::Claimed(_) | SlotPhase::Building(_) => return Ok(false),
                }
            }
        }
        Ok(true)
    }

    fn exchange(&self, slot: u64, was: SlotState, next: SlotState) -> bool {
        let (order, word) = (Ordering::SeqCst, self.word(self.places.state_at(slot)));
        word.compare_exchange(was.0, next.0, order, order).is_ok()
    }

    fn step(&self) {
        self.shared.ledger().step();
    }
}

impl Claim<'_> {
    fn turn_to(&mut self, phase: SlotPhase) -> bool {
        let next = self.state.with(phase);
        let is_done = self.cache.exchange(self.slot, self.state, next);
        self.state = if is_done { next } else { self.state };
        is_done
    }

    /// Publishes `body`: value, then key. Returns true if it is kept.
    pub(super) fn keep(mut self, key_len: usize, body: &[u8]) -> Result<bool, Error> {
        // If the builder forked, the slot belongs to the parent.
        if self.joined.is_inherited() {
            return Ok(false);
        }
        let len = HEAD + body.len() as u64;
        let (cache, range) = (self.cache, self.cache.places.range(self.slot, len));
        let pin = cache.shared.pin(range.clone())?;
        // Clears the earlier entry's loss and mark. The mark precedes the write, so a purge can
        // take the entry if this process is killed. After a failed mark, a hit marks again.
        drop(cache.shared.unmark(range.clone())?);
        let _ = cache.shared.mark(range, cache.priority, Order::Fifo);
        fence(Ordering::SeqCst);
        cache.step();
        let checksum = cache.checksum(self.state, key_len, body);
        pin.write(Bytes::ZERO, &checksum.to_ne_bytes())?;
        cache.step();
        pin.write(Bytes::new(HEAD), body)?;
        cache.step();
        Ok(u32::try_from(len).is_ok_and(|len| self.turn_to(SlotPhase::Kept(len))))
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let is_written = !matches!(self.state.phase(), SlotPhase::Kept(_));
        if is_written && !self.joined.is_inherited() {
            self.turn_to(SlotPhase::Empty);
        }
    }
}
