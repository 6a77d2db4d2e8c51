//! [`Log`] holds the small items of a shard in segments, in the order stored.
//!
//! The *head* is the segment that is being written. It is in ordinary memory, which no recall
//! takes. A full head moves to the page cache in one run, under an object number that is used once.
//! Items start at multiples of 8 and never change, except their heads; freed items leave gaps. An
//! empty segment is dropped at once. To make room, an old segment is *recycled*: the caller moves
//! some of its items to the head and drops the others.
//!
//! ```text
//! spot  seq 32 | offset / 8  16 | length 16
//! ```
//!
//! Cost: adding copies the item; reading looks up each page that the item touches, at most three.
//! Changing an item's head rewrites the head's page, or both if it crosses a border. No item goes.
//! Lock: the shard's.

use std::collections::VecDeque;

use super::item::{Head, HEAD};
use super::memory::{Full, Memory};

const SEGMENT_PAGES: usize = 8;
/// A log may always have gaps of this many segments.
const GAPS: u64 = 2;
const ALIGN: usize = 8;

/// The place of an item. Its word is never 0, because `seq` starts at 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    seq: u32,
    at: usize,
    pub(super) len: usize,
}

impl Spot {
    pub(super) fn to_word(self) -> u64 {
        u64::from(self.seq) << 32 | ((self.at / ALIGN) as u64) << 16 | self.len as u64
    }

    pub(super) fn from_word(word: u64) -> Self {
        let low = |at: u32| (word >> at) as u16 as usize;
        Self { seq: (word >> 32) as u32, at: low(16) * ALIGN, len: low(0) }
    }
}

pub(super) fn taken(len: usize) -> usize {
    len.next_multiple_of(ALIGN)
}

/// Returns the maximum bytes of a small item. Longer items waste less memory in pages of their own
/// than at the ends of segments.
pub(super) fn item_max(page: usize) -> usize {
    (2 * page).min(u16::MAX.into())
}

pub(super) fn segment_bytes(page: usize) -> usize {
    SEGMENT_PAGES * page
}

#[derive(Debug)]
pub(super) struct Log {
    /// High bits of the segments' object numbers.
    name: u64,
    head: Box<[u8]>,
    end: usize,
    /// Bytes of items per segment from `first` to the head. 0: a segment without items.
    live: VecDeque<u32>,
    first: u32,
    live_all: u64,
    sealed: u64,
}

#[derive(Debug)]
pub(super) struct Recycled {
    seq: u32,
    pub(super) live: usize,
    /// No page was missing, so the buffer holds the whole segment.
    is_whole: bool,
    /// Pages that were present.
    pub(super) pages: u64,
}

impl Log {
    pub(super) fn new(shard: usize, page: usize) -> Self {
        let head = vec![0; segment_bytes(page)].into();
        // Large items' numbers have these bits clear.
        let name = (shard as u64 + 1) << 48;
        let live = VecDeque::from([0]);
        Self { name, head, end: 0, live, first: 1, live_all: 0, sealed: 0 }
    }

    pub(super) fn live_bytes(&self) -> u64 {
        self.live_all
    }

    pub(super) fn sealed(&self) -> u64 {
        self.sealed
    }

    /// Returns true if items fill less than half of the sealed segments, [`GAPS`] segments not
    /// counted.
    #[inline]
    pub(super) fn is_mostly_gaps(&self) -> bool {
        let segment = self.head.len() as u64;
        self.sealed * segment > 2 * self.live_all + GAPS * segment
    }

    fn head_seq(&self) -> u32 {
        self.first + self.live.len() as u32 - 1
    }

    fn object(&self, seq: u32) -> u64 {
        self.name | u64::from(seq)
    }

    /// Adds an item. An error changes nothing.
    pub(super) fn add(
        &mut self,
        memory: &Memory,
        head: &Head,
        key: &[u8],
        value: &[u8],
    ) -> Result<Spot, Full> {
        let len = head.total();
        if self.end + len > self.head.len() {
            self.seal(memory)?;
        }
        let spot = Spot { seq: self.head_seq(), at: self.end, len };
        head.write(&mut self.head[spot.at..][..len], key, value);
        self.take_in(len);
        Ok(spot)
    }

    pub(super) fn add_again(&mut self, memory: &Memory, item: &[u8]) -> Result<Spot, Full> {
        if self.end + item.len() > self.head.len() {
            self.seal(memory)?;
        }
        let spot = Spot { seq: self.head_seq(), at: self.end, len: item.len() };
        self.head[spot.at..][..item.len()].copy_from_slice(item);
        self.take_in(item.len());
        Ok(spot)
    }

    fn take_in(&mut self, len: usize) {
        let taken = taken(len);
        self.end = (self.end + taken).min(self.head.len());
        *self.live.back_mut().expect("the head") += taken as u32;
        self.live_all += taken as u64;
    }

    #[cold]
    fn seal(&mut self, memory: &Memory) -> Result<(), Full> {
        let is_empty = self.live.back() == Some(&0);
        if !is_empty {
            self.head[self.end..].fill(0);
            memory.put(self.object(self.head_seq()), 0, &self.head)?;
            self.sealed += 1;
        }
        self.end = 0;
        self.live.push_back(0);
        self.shorten();
        Ok(())
    }

    fn shorten(&mut self) {
        while self.live.len() > 1 && self.live[0] == 0 {
            self.live.pop_front();
            self.first += 1;
        }
    }

    /// Fills `buf` with the start of an item. Returns false if the item is lost.
    #[inline]
    pub(super) fn read(&self, memory: &Memory, spot: Spot, buf: &mut [u8]) -> bool {
        if spot.seq == self.head_seq() {
            buf.copy_from_slice(&self.head[spot.at..][..buf.len()]);
            return true;
        }
        let nth = spot.seq.wrapping_sub(self.first) as usize;
        let is_there = self.live.get(nth).is_some_and(|live| *live > 0);
        is_there && memory.get_part(self.object(spot.seq), spot.at, buf)
    }

    /// Replaces an item's head. Returns false if the item is lost.
    pub(super) fn rewrite(
        &mut self,
        memory: &Memory,
        spot: Spot,
        head: &Head,
        buf: &mut Vec<u8>,
    ) -> bool {
        if spot.seq == self.head_seq() {
            head.write_head(&mut self.head[spot.at..]);
            return true;
        }
        let page = memory.page();
        let (object, first, at) = (self.object(spot.seq), spot.at / page, spot.at % page);
        buf.resize((at + HEAD).next_multiple_of(page), 0);
        if !memory.get_run(object, first as u64, buf) {
            return false;
        }
        head.write_head(&mut buf[at..]);
        memory.replace(object, first as u64, buf)
    }

    #[inline]
    pub(super) fn free(&mut self, memory: &Memory, spot: Spot) {
        let nth = spot.seq.wrapping_sub(self.first) as usize;
        let taken = taken(spot.len) as u32;
        let Some(live) = self.live.get_mut(nth).filter(|live| **live >= taken) else { return };
        *live -= taken;
        let is_empty = *live == 0;
        self.live_all -= u64::from(taken);
        if is_empty && spot.seq != self.head_seq() {
            self.drop_segment(memory, spot.seq);
        }
    }

    /// Returns how many pages of the segment were present.
    fn drop_segment(&mut self, memory: &Memory, seq: u32) -> u64 {
        self.sealed -= 1;
        self.shorten();
        memory.drop_pages(self.object(seq), SEGMENT_PAGES as u64)
    }

    /// Moves the oldest segment with at most `live` bytes of items from the log to `buf`. Never
    /// moves the head.
    pub(super) fn recycle(
        &mut self,
        memory: &Memory,
        live: usize,
        buf: &mut Vec<u8>,
    ) -> Option<Recycled> {
        let sealed = self.live.len() - 1;
        let is_wanted = |of: &u32| (1..=live).contains(&(*of as usize));
        let nth = self.live.iter().take(sealed).position(is_wanted)?;
        let seq = self.first + nth as u32;
        buf.resize(self.head.len(), 0);
        let is_whole = memory.get_run(self.object(seq), 0, buf);
        let live = std::mem::take(&mut self.live[nth]);
        self.live_all -= u64::from(live);
        let pages = self.drop_segment(memory, seq);
        Some(Recycled { seq, live: live as usize, is_whole, pages })
    }
}

impl Recycled {
    /// Iterates over all items, freed ones too. Yields nothing if a page was missing.
    pub(super) fn items<'a>(&self, bytes: &'a [u8]) -> impl Iterator<Item = (Spot, Head)> + 'a {
        let (seq, mut at) = (self.seq, 0);
        let end = if self.is_whole { bytes.len() } else { 0 };
        std::iter::from_fn(move || {
            let head = Head::read(bytes.get(at..end)?).filter(|head| head.key_len > 0)?;
            let spot = Spot { seq, at, len: head.total() };
            at += taken(spot.len);
            Some((spot, head))
        })
    }

    pub(super) fn item(spot: Spot, bytes: &[u8]) -> &[u8] {
        &bytes[spot.at..][..spot.len]
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::OnceLock;

    use proptest::prelude::*;

    use super::*;

    fn head(n: usize, len: usize) -> Head {
        Head { cas: n as u64, exptime: 0, stored: 1, flags: 0, len: len as u32, key_len: 8 }
    }

    fn bytes(n: usize, len: usize) -> Vec<u8> {
        let (head, value) = (head(n, len), vec![n as u8; len]);
        let mut bytes = vec![0; head.total()];
        head.write(&mut bytes, &n.to_le_bytes(), &value);
        bytes
    }

    fn read(log: &Log, memory: &Memory, spot: Spot) -> Option<Vec<u8>> {
        let mut buf = vec![0xee; spot.len];
        log.read(memory, spot, &mut buf).then_some(buf)
    }

    #[test]
    fn a_spot_is_a_word() {
        for spot in [
            Spot { seq: 1, at: 0, len: 1 },
            Spot { seq: u32::MAX, at: (1 << 16) * ALIGN - ALIGN, len: (1 << 16) - 1 },
        ] {
            assert_eq!(Spot::from_word(spot.to_word()), spot);
        }
    }

    fn taken_of(of: &[(Spot, Vec<u8>)]) -> usize {
        of.iter().map(|(spot, _)| taken(spot.len)).sum()
    }

    fn recycle(log: &mut Log, memory: &Memory, model: &mut Vec<(Spot, Vec<u8>)>) {
        let mut buf = Vec::new();
        let Some(recycled) = log.recycle(memory, usize::MAX, &mut buf) else { return };
        let gone: Vec<Spot> = recycled.items(&buf).map(|(spot, _)| spot).collect();
        let before = taken_of(model);
        model.retain(|(spot, item)| {
            let is_gone = gone.contains(spot);
            assert!(!is_gone || Recycled::item(*spot, &buf) == *item);
            !is_gone
        });
        assert_eq!(before - taken_of(model), recycled.live);
    }

    proptest! {
        #[test]
        fn items_are_found_until_they_go(
            steps in prop::collection::vec((0_u8..9, 1_usize..5000, 0_usize..1000), 1..300),
        ) {
            // Making a reserve for each case would take most of the time.
            static MEMORY: OnceLock<Memory> = OnceLock::new();
            static SHARD: AtomicUsize = AtomicUsize::new(0);
            let made = || Memory::new(4 << 20, None, &[]).expect("a reserve");
            let memory = MEMORY.get_or_init(made);
            let shard = SHARD.fetch_add(1, Ordering::Relaxed);
            let (mut log, mut model) = (Log::new(shard, memory.page()), Vec::new());
            for (n, (step, len, which)) in steps.into_iter().enumerate() {
                let (key, value) = (n.to_le_bytes(), vec![n as u8; len]);
                match step {
                    0 => {
                        let spot = log.add_again(memory, &bytes(n, len)).expect("room");
                        model.push((spot, bytes(n, len)));
                    }
                    1..5 => {
                        let spot = log.add(memory, &head(n, len), &key, &value).expect("room");
                        model.push((spot, bytes(n, len)));
                    }
                    5 | 6 if !model.is_empty() => {
                        let (spot, _) = model.swap_remove(which % model.len());
                        log.free(memory, spot);
                    }
                    7 => recycle(&mut log, memory, &mut model),
                    8 if !model.is_empty() => {
                        let which = which % model.len();
                        let (spot, item) = &mut model[which];
                        let old = Head::read(item).expect("a head");
                        let new = Head { cas: u64::MAX, exptime: n as u32, ..old };
                        new.write_head(item);
                        prop_assert!(log.rewrite(memory, *spot, &new, &mut Vec::new()));
                    }
                    _ => {}
                }
                prop_assert_eq!(log.live_bytes(), taken_of(&model) as u64);
            }
            for (spot, item) in &model {
                prop_assert_eq!(read(&log, memory, *spot), Some(item.clone()));
            }
            let pages = memory.used().items / memory.page() as u64;
            prop_assert_eq!(pages, log.sealed() * SEGMENT_PAGES as u64);
            for (spot, _) in model {
                log.free(memory, spot);
            }
            prop_assert_eq!((log.sealed(), log.live_bytes(), memory.used().items), (0, 0, 0));
        }
    }

    #[test]
    fn a_recall_loses_items_of_segments_and_none_of_the_head() {
        let memory = Memory::new(4 << 20, None, &[]).expect("a reserve");
        let mut log = Log::new(0, memory.page());
        let spots: Vec<Spot> =
            (0..2000).map(|n| log.add_again(&memory, &bytes(n, 300)).expect("room")).collect();
        let blocks = memory.recall(64 << 20).expect("first class");
        let found = |spot: &&Spot| read(&log, &memory, **spot).is_some();
        let left = spots.iter().filter(found).count();
        assert!(left > 0 && left < spots.len(), "{left} are left");
        for (n, spot) in spots.iter().enumerate() {
            let found = read(&log, &memory, *spot);
            assert!(spot.seq != log.head_seq() || found.is_some());
            assert!(found.is_none_or(|found| found == bytes(n, 300)), "{n}");
        }
        drop(blocks);
        // A missing page loses the whole segment.
        let mut buf = Vec::new();
        while let Some(recycled) = log.recycle(&memory, usize::MAX, &mut buf) {
            let items = recycled.items(&buf).count();
            assert!(items == 0 || recycled.pages == SEGMENT_PAGES as u64);
        }
        assert_eq!((log.sealed(), memory.used().items), (0, 0));
    }
}
