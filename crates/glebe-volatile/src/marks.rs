//! [`Marks`] holds the marked ranges; [`Bitmap`] holds one bit per page for signal handlers.
//!
//! Invariants: ranges do not overlap; only the range at `LAST` is empty. The queue, if any, holds
//! exactly the ranges whose pages are not dropped, by priority, then order of marking. The region
//! sets the bits of marked pages. Unit: pages.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::time::Duration;

use super::Priority;
use glebe_os::extent::Extent;
use glebe_os::internal::extents::push;
use glebe_os::internal::sync::{MappedWord, Ordering};

/// Ascending extents that do not touch. One extent needs no allocation.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark {
    end: u64,
    priority: Priority,
    since: Duration,
    order: u64,
    dropped: bool,
}

const LAST: u64 = u64::MAX;

#[derive(Debug)]
pub(super) struct Marks {
    /// An empty range at `LAST` keeps the map's node allocated between marks.
    ranges: BTreeMap<u64, Mark>,
    /// Priority, order and start; `None` until a cap, an age limit or a reclaimer may need the
    /// queue.
    queue: Option<BTreeSet<(Priority, u64, u64)>>,
    last_order: u64,
    pages: u64,
    held_pages: [u64; Priority::COUNT],
}

impl Marks {
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

    pub(super) fn held_pages(&self) -> u64 {
        self.held_pages.iter().sum()
    }

    pub(super) fn held_by_priority(&self) -> [u64; Priority::COUNT] {
        self.held_pages
    }

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
        match self.ranges.entry(extent.start()) {
            Entry::Occupied(entry) if entry.get().end == extent.end() => {
                let mark = entry.remove();
                self.forget(extent.start(), mark);
            }
            _ => drop(self.cut(extent)),
        }
    }

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

    pub(super) fn held_within(&self, extent: Extent) -> Vec<Extent> {
        let mut parts = Vec::new();
        let held = self.touching(extent).filter(|(_, mark)| !mark.dropped);
        held.for_each(|(part, _)| push(&mut parts, part));
        parts
    }

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

    pub(super) fn renew(&mut self, extent: Extent, now: Duration) {
        self.last_order += 1;
        let (since, order) = (now, self.last_order);
        for (part, mark) in self.cut(extent) {
            let renewed = Mark { end: part.end(), since, order, dropped: false, ..mark };
            self.put(part.start(), renewed);
        }
    }

    pub(super) fn first_to_drop(&self) -> Option<Extent> {
        let (_, _, start) = *self.queue.as_ref()?.first()?;
        Extent::between(start, self.ranges.get(&start)?.end)
    }

    pub(super) fn all(&self) -> Parts {
        Extent::new(0, u64::MAX).map_or(Parts::Many(Vec::new()), |all| self.within(all))
    }

    pub(super) fn aged(&self, age: Duration, now: Duration) -> Option<Extent> {
        Priority::all().find_map(|priority| {
            let (oldest, since) = self.oldest(priority)?;
            (now.saturating_sub(since) >= age).then_some(oldest)
        })
    }

    pub(super) fn oldest(&self, priority: Priority) -> Option<(Extent, Duration)> {
        let first = self.queue.as_ref()?.range((priority, 0, 0)..).next();
        let (_, _, start) = *first.filter(|(of, ..)| *of == priority)?;
        let mark = self.ranges.get(&start)?;
        Some((Extent::between(start, mark.end)?, mark.since))
    }

    fn touching(&self, extent: Extent) -> impl Iterator<Item = (Extent, Mark)> + '_ {
        let before = self.ranges.range(..=extent.start()).next_back();
        let first = before.map_or(extent.start(), |(start, _)| *start);
        self.ranges.range(first..extent.end()).filter_map(move |(start, mark)| {
            let part = Extent::between(*start, mark.end)?.intersection(extent)?;
            Some((part, *mark))
        })
    }

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

    #[inline]
    fn forget(&mut self, start: u64, mark: Mark) {
        self.pages -= mark.end - start;
        if !mark.dropped {
            self.held_pages[mark.priority.place()] -= mark.end - start;
            let key = (mark.priority, mark.order, start);
            self.queue.as_mut().map(|queue| queue.remove(&key));
        }
    }

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

/// Readers need no lock.
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

    #[inline]
    pub(super) fn get(&self, page: u64) -> bool {
        let word = &self.words[(page / WORD) as usize];
        word.load(Ordering::Acquire) >> (page % WORD) & 1 == 1
    }

    pub(super) fn first_in(&self, extent: Extent) -> Option<u64> {
        words_of(extent).find_map(|(word, mask)| {
            let found = self.words[word].load(Ordering::Acquire) & mask;
            (found != 0).then(|| word as u64 * WORD + u64::from(found.trailing_zeros()))
        })
    }

    #[inline]
    pub(super) fn set(&self, extent: Extent) {
        for (word, mask) in words_of(extent) {
            self.words[word].fetch_or(mask, Ordering::AcqRel);
        }
    }

    #[inline]
    pub(super) fn clear(&self, extent: Extent) {
        for (word, mask) in words_of(extent) {
            self.words[word].fetch_and(!mask, Ordering::AcqRel);
        }
    }

    pub(super) fn runs_in(&self, extent: Extent) -> Vec<Extent> {
        let mut runs = Vec::new();
        self.runs(extent).for_each(|run| push(&mut runs, run));
        runs
    }

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
