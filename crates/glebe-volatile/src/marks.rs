//! [`Marks`] holds the marked ranges with priority and age; [`Bitmap`] holds one bit per page,
//! which signal handlers can read.
//!
//! Invariants: ranges are not empty and do not overlap; the queue, if any, holds exactly the ranges
//! that may be dropped, by priority, then age; a bit is set exactly where a range is (the holder
//! changes both). Unit: pages. Cost: O(log n) per call and per range touched; O(words) for the
//! bitmap.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::time::Duration;

use super::Priority;
use glebe_os::extent::{push, Extent};
use glebe_os::internal::sync::{MappedWord, Ordering};

/// Ascending extents that do not touch; usually one, which needs no allocation.
#[derive(Debug)]
pub(super) enum Parts {
    One(Extent),
    Many(Vec<Extent>),
}

impl Deref for Parts {
    type Target = [Extent];

    #[inline]
    fn deref(&self) -> &[Extent] {
        match self {
            Self::One(part) => std::slice::from_ref(part),
            Self::Many(parts) => parts,
        }
    }
}

/// A marked range, from its key in the map to `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark {
    end: u64,
    priority: Priority,
    /// Time since the region was made.
    since: Duration,
    /// Number of the mark, shared by its parts.
    order: u64,
    /// True if glebe dropped the contents.
    dropped: bool,
}

/// A position beyond all pages.
const LAST: u64 = u64::MAX;

#[derive(Debug)]
pub(super) struct Marks {
    /// Also an empty range at `LAST`: a map that is never empty keeps its node.
    ranges: BTreeMap<u64, Mark>,
    /// Priority, order and start of ranges that may be dropped; `None` if glebe drops nothing by
    /// itself.
    queue: Option<BTreeSet<(Priority, u64, u64)>>,
    last_order: u64,
    pages: u64,
    /// Pages not dropped, by priority.
    held_pages: [u64; Priority::COUNT],
}

impl Marks {
    /// `queued` lets [`Marks::first_to_drop`] and [`Marks::aged`] answer.
    pub(super) fn new(queued: bool) -> Self {
        let (priority, since) = (Priority::HIGHEST, Duration::ZERO);
        let last = Mark { end: LAST, priority, since, order: 0, dropped: true };
        Self {
            ranges: BTreeMap::from([(LAST, last)]),
            queue: queued.then(BTreeSet::new),
            last_order: 0,
            pages: 0,
            held_pages: [0; Priority::COUNT],
        }
    }

    /// Lets [`Marks::first_to_drop`] and its like answer from now on.
    pub(super) fn start_queue(&mut self) {
        if self.queue.is_none() {
            let held = self.ranges.iter().filter(|(_, mark)| !mark.dropped);
            let key = |(start, mark): (&u64, &Mark)| (mark.priority, mark.order, *start);
            self.queue = Some(held.map(key).collect());
        }
    }

    pub(super) fn pages(&self) -> u64 {
        self.pages
    }

    /// Returns the number of pages marked and not dropped.
    pub(super) fn held_pages(&self) -> u64 {
        self.held_pages.iter().sum()
    }

    pub(super) fn held_by_priority(&self) -> [u64; Priority::COUNT] {
        self.held_pages
    }

    /// Returns the unmarked parts of `extent`.
    pub(super) fn outside(&self, extent: Extent) -> Vec<Extent> {
        let mut gaps = Vec::new();
        let mut at = extent.start();
        for part in self.within(extent).iter() {
            gaps.extend(Extent::between(at, part.start()));
            at = part.end();
        }
        gaps.extend(Extent::between(at, extent.end()));
        gaps
    }

    /// Marks the unmarked parts of `extent` and returns them.
    #[inline]
    pub(super) fn insert(&mut self, extent: Extent, priority: Priority, now: Duration) -> Parts {
        self.last_order += 1;
        let last = self.ranges.range(..extent.end()).next_back();
        let new = match last {
            Some((_, mark)) if mark.end > extent.start() => Parts::Many(self.outside(extent)),
            _ => Parts::One(extent),
        };
        for part in new.iter() {
            let mark = Mark {
                end: part.end(),
                priority,
                since: now,
                order: self.last_order,
                dropped: false,
            };
            self.put(part.start(), mark);
        }
        new
    }

    #[inline]
    pub(super) fn remove(&mut self, extent: Extent) {
        // Usually a range is unmarked as it was marked.
        match self.ranges.entry(extent.start()) {
            Entry::Occupied(entry) if entry.get().end == extent.end() => {
                let mark = entry.remove();
                self.forget(extent.start(), mark);
            }
            _ => drop(self.cut(extent)),
        }
    }

    /// Returns the marked parts of `extent`.
    #[inline]
    pub(super) fn within(&self, extent: Extent) -> Parts {
        let first = self.ranges.range(..=extent.start()).next_back();
        if first.is_some_and(|(_, mark)| mark.end >= extent.end()) {
            return Parts::One(extent);
        }
        let mut parts = Vec::new();
        self.touching(extent).for_each(|(part, _)| push(&mut parts, part));
        Parts::Many(parts)
    }

    /// Returns the parts that are marked and not dropped.
    pub(super) fn held_within(&self, extent: Extent) -> Vec<Extent> {
        let mut parts = Vec::new();
        let held = self.touching(extent).filter(|(_, mark)| !mark.dropped);
        held.for_each(|(part, _)| push(&mut parts, part));
        parts
    }

    /// Counts marked parts as dropped; returns the newly dropped ones.
    pub(super) fn drop_within(&mut self, extent: Extent) -> Vec<Extent> {
        let mut parts = Vec::new();
        for (part, mark) in self.cut(extent) {
            if !mark.dropped {
                push(&mut parts, part);
            }
            self.put(part.start(), Mark { end: part.end(), dropped: true, ..mark });
        }
        parts
    }

    /// Counts marked parts as marked at `now` and not dropped: they were refilled.
    pub(super) fn renew(&mut self, extent: Extent, now: Duration) {
        self.last_order += 1;
        let (since, order) = (now, self.last_order);
        for (part, mark) in self.cut(extent) {
            let renewed = Mark { end: part.end(), since, order, dropped: false, ..mark };
            self.put(part.start(), renewed);
        }
    }

    /// Returns the oldest of the lowest-priority ranges that may be dropped.
    pub(super) fn first_to_drop(&self) -> Option<Extent> {
        let (_, _, start) = *self.queue.as_ref()?.first()?;
        Extent::between(start, self.ranges.get(&start)?.end)
    }

    pub(super) fn all(&self) -> Parts {
        Extent::new(0, u64::MAX).map_or(Parts::Many(Vec::new()), |all| self.within(all))
    }

    /// Returns a range that may be dropped and is at least `age` old.
    pub(super) fn aged(&self, age: Duration, now: Duration) -> Option<Extent> {
        Priority::all().find_map(|priority| {
            let (oldest, since) = self.oldest(priority)?;
            (now.saturating_sub(since) >= age).then_some(oldest)
        })
    }

    /// Returns the oldest range of a priority that may be dropped, and the time of its mark.
    pub(super) fn oldest(&self, priority: Priority) -> Option<(Extent, Duration)> {
        // Within a priority, the queue is sorted by age.
        let first = self.queue.as_ref()?.range((priority, 0, 0)..).next();
        let (_, _, start) = *first.filter(|(of, ..)| *of == priority)?;
        let mark = self.ranges.get(&start)?;
        Some((Extent::between(start, mark.end)?, mark.since))
    }

    /// Returns the parts of marked ranges in `extent`.
    fn touching(&self, extent: Extent) -> impl Iterator<Item = (Extent, Mark)> + '_ {
        let before = self.ranges.range(..=extent.start()).next_back();
        let first = before.map_or(extent.start(), |(start, _)| *start);
        self.ranges.range(first..extent.end()).filter_map(move |(start, mark)| {
            let part = Extent::between(*start, mark.end)?.intersection(extent)?;
            Some((part, *mark))
        })
    }

    /// Removes the parts in `extent`; keeps the rest of ranges at its ends.
    fn cut(&mut self, extent: Extent) -> Vec<(Extent, Mark)> {
        let parts: Vec<_> = self.touching(extent).collect();
        for (part, mark) in &parts {
            let whole = self.ranges.range(..=part.start()).next_back().map(|(start, _)| *start);
            let Some(start) = whole else { continue };
            self.take(start);
            if start < part.start() {
                self.put(start, Mark { end: part.start(), ..*mark });
            }
            if part.end() < mark.end {
                self.put(part.end(), *mark);
            }
        }
        parts
    }

    #[inline]
    fn put(&mut self, start: u64, mark: Mark) {
        self.pages += mark.end - start;
        if !mark.dropped {
            self.held_pages[mark.priority.place()] += mark.end - start;
            let key = (mark.priority, mark.order, start);
            self.queue.as_mut().map(|queue| queue.insert(key));
        }
        self.ranges.insert(start, mark);
    }

    fn take(&mut self, start: u64) {
        if let Some(mark) = self.ranges.remove(&start) {
            self.forget(start, mark);
        }
    }

    /// Updates counts and queue after a removal.
    #[inline]
    fn forget(&mut self, start: u64, mark: Mark) {
        self.pages -= mark.end - start;
        if !mark.dropped {
            self.held_pages[mark.priority.place()] -= mark.end - start;
            let key = (mark.priority, mark.order, start);
            self.queue.as_mut().map(|queue| queue.remove(&key));
        }
    }

    /// Tests the invariants of the file's head.
    #[cfg(test)]
    pub(super) fn check_invariants(&self) {
        let mut last_end = 0;
        let mut queued = 0;
        let ranges = || self.ranges.range(..LAST);
        for (start, mark) in ranges() {
            assert!(*start >= last_end && *start < mark.end, "{self:?}");
            last_end = mark.end;
            let key = (mark.priority, mark.order, *start);
            let contains =
                self.queue.as_ref().is_none_or(|queue| queue.contains(&key) != mark.dropped);
            assert!(contains, "{self:?}");
            queued += usize::from(!mark.dropped);
        }
        assert!(self.queue.as_ref().is_none_or(|queue| queue.len() == queued));
        let pages = |held: bool| -> u64 {
            let counted = ranges().filter(|(_, mark)| !(held && mark.dropped));
            counted.map(|(start, mark)| mark.end - start).sum()
        };
        assert_eq!((self.pages, self.held_pages()), (pages(false), pages(true)));
        for priority in Priority::all() {
            let held = ranges().filter(|(_, mark)| !mark.dropped && mark.priority == priority);
            let held: u64 = held.map(|(start, mark)| mark.end - start).sum();
            assert_eq!(self.held_pages[priority.place()], held, "{priority:?}");
        }
    }
}

const WORD: u64 = u64::BITS as u64;

/// One bit per page. Bits of marked pages change under the region's lock and are read without it.
///
/// ```text
/// word i   bit b = page 64 i + b
/// ```
#[derive(Debug)]
pub(super) struct Bitmap {
    words: Box<[MappedWord]>,
}

impl Bitmap {
    pub(super) fn new(pages: u64) -> Self {
        Self { words: (0..pages.div_ceil(WORD)).map(|_| MappedWord::new(0)).collect() }
    }

    /// Returns true if the bit is set. Signal handlers may call it: no lock.
    #[inline]
    pub(super) fn get(&self, page: u64) -> bool {
        let word = &self.words[(page / WORD) as usize];
        word.load(Ordering::Acquire) >> (page % WORD) & 1 == 1
    }

    /// Returns the first page of `extent` whose bit is set.
    pub(super) fn first_in(&self, extent: Extent) -> Option<u64> {
        words_of(extent).find_map(|(word, mask)| {
            let found = self.words[word].load(Ordering::Acquire) & mask;
            (found != 0).then(|| word as u64 * WORD + u64::from(found.trailing_zeros()))
        })
    }

    /// Takes no lock: signal handlers may call it.
    #[inline]
    pub(super) fn set(&self, extent: Extent) {
        for (word, mask) in words_of(extent) {
            self.words[word].fetch_or(mask, Ordering::AcqRel);
        }
    }

    /// Takes no lock.
    #[inline]
    pub(super) fn clear(&self, extent: Extent) {
        for (word, mask) in words_of(extent) {
            self.words[word].fetch_and(!mask, Ordering::AcqRel);
        }
    }

    /// Returns the runs of set bits in `extent`.
    pub(super) fn runs_in(&self, extent: Extent) -> Vec<Extent> {
        let mut runs = Vec::new();
        self.runs(extent).for_each(|run| push(&mut runs, run));
        runs
    }

    /// Iterates like [`Bitmap::runs_in`], but runs may touch.
    #[inline]
    pub(super) fn runs(&self, extent: Extent) -> impl Iterator<Item = Extent> + '_ {
        words_of(extent).flat_map(|(word, mask)| {
            let mut bits = self.words[word].load(Ordering::Acquire) & mask;
            std::iter::from_fn(move || {
                let low = bits.trailing_zeros();
                let len = bits.checked_shr(low)?.trailing_ones();
                bits &= u64::MAX.checked_shl(low + len).unwrap_or(0);
                Extent::new(word as u64 * WORD + u64::from(low), len.into())
            })
        })
    }
}

/// Returns the words of an extent's bits, each with its mask.
fn words_of(extent: Extent) -> impl Iterator<Item = (usize, u64)> {
    let (first, last) = (extent.start() / WORD, (extent.end() - 1) / WORD);
    (first..=last).map(move |word| {
        let low = extent.start().max(word * WORD) % WORD;
        let high = (extent.end() - 1).min(word * WORD + WORD - 1) % WORD;
        (word as usize, (u64::MAX << low) & (u64::MAX >> (WORD - 1 - high)))
    })
}

#[cfg(test)]
mod tests;
