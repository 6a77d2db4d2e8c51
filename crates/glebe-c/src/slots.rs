//! [`Slots`] are numbered places that any number of threads take and give back.
//!
//! Places are in chunks, each twice as long as the one before. Chunks are never moved or freed, so
//! a number stays valid. Free places form a list with an atomic head (Treiber 1986):
//!
//! ```text
//! head   tag, 32 bits: grows with every change | first free place + 1, 32 bits: 0 = none
//! ```
//!
//! The tag makes a stale head differ from a later head with the same place. Without contention,
//! taking or giving a place costs one compare-and-exchange. A thread waits only while another adds
//! a chunk.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::OnceLock;

const FIRST: u32 = 4;
/// log2 of the maximum number of places.
pub(crate) const INDEX_BITS: u32 = 23;
const CHUNKS: usize = (INDEX_BITS - FIRST.ilog2() + 1) as usize;

#[derive(Debug, Default)]
struct Slot<S> {
    /// While this place is free: the next free place + 1, or 0 at the end of the list.
    next: AtomicU32,
    content: S,
}

#[derive(Debug)]
pub(crate) struct Slots<S> {
    chunks: [OnceLock<Box<[Slot<S>]>>; CHUNKS],
    head: AtomicU64,
    /// Number of places that were ever taken.
    used: AtomicU32,
}

fn chunk_of(index: u32) -> (usize, usize) {
    let chunk = (index / FIRST + 1).ilog2();
    (chunk as usize, (index - FIRST * ((1 << chunk) - 1)) as usize)
}

impl<S: Default> Slots<S> {
    pub(crate) const MAX: u32 = 1 << INDEX_BITS;

    pub(crate) const fn new() -> Self {
        Self {
            chunks: [const { OnceLock::new() }; CHUNKS],
            head: AtomicU64::new(0),
            used: AtomicU32::new(0),
        }
    }

    /// Returns `None` if no chunk has the place.
    pub(crate) fn get(&self, index: u32) -> Option<&S> {
        self.slot(index).map(|slot| &slot.content)
    }

    fn slot(&self, index: u32) -> Option<&Slot<S>> {
        let (chunk, offset) = chunk_of(index);
        self.chunks.get(chunk)?.get()?.get(offset)
    }

    pub(crate) fn take(&self) -> Option<(u32, &S)> {
        let mut head = self.head.load(Ordering::Acquire);
        while let Some(index) = (head as u32).checked_sub(1) {
            let slot = self.slot(index)?;
            let next = slot.next.load(Ordering::Relaxed);
            match self.exchange(head, next) {
                Ok(()) => return Some((index, &slot.content)),
                Err(now) => head = now,
            }
        }
        let more = |used| (used < Self::MAX).then_some(used + 1);
        let index = self.used.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more).ok()?;
        let (chunk, offset) = chunk_of(index);
        let add = || (0..FIRST << chunk).map(|_| Slot::default()).collect();
        Some((index, &self.chunks[chunk].get_or_init(add)[offset].content))
    }

    pub(crate) fn give(&self, index: u32) {
        let Some(slot) = self.slot(index) else { return };
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            slot.next.store(head as u32, Ordering::Relaxed);
            match self.exchange(head, index + 1) {
                Ok(()) => return,
                Err(now) => head = now,
            }
        }
    }

    fn exchange(&self, head: u64, first: u32) -> Result<(), u64> {
        let new = (((head >> 32) + 1) << 32) | u64::from(first);
        let (ok, failed) = (Ordering::AcqRel, Ordering::Acquire);
        self.head.compare_exchange_weak(head, new, ok, failed).map(drop)
    }

    /// Iterates over the places that were ever taken.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &S> {
        (0..self.used.load(Ordering::Acquire)).filter_map(|index| self.get(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_fill_chunks_without_a_gap() {
        let mut expected = (0, 0);
        for index in 0..1000 {
            assert_eq!(chunk_of(index), expected);
            let (chunk, offset) = (expected.0, expected.1 + 1);
            expected =
                if offset == (FIRST as usize) << chunk { (chunk + 1, 0) } else { (chunk, offset) };
        }
        assert!(chunk_of(Slots::<u8>::MAX - 1).0 < CHUNKS);
    }

    #[test]
    fn no_place_is_had_twice() {
        const THREADS: usize = 4;
        let slots = Slots::<AtomicU32>::new();
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for round in 0..20_000 {
                        let (index, content) = slots.take().unwrap();
                        assert_eq!(content.fetch_add(1, Ordering::Relaxed), 0, "place {index}");
                        if round % 3 == 0 {
                            std::thread::yield_now();
                        }
                        content.store(0, Ordering::Relaxed);
                        slots.give(index);
                    }
                });
            }
        });
        assert!(slots.used.load(Ordering::Relaxed) <= THREADS as u32);
        assert_eq!(slots.iter().count(), slots.used.load(Ordering::Relaxed) as usize);
    }
}
