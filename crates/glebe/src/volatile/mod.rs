//! Volatile memory: its contents may vanish while it is *marked*, and an *unmark* tells exactly
//! which pages did.
//!
//! A [`Region`] is a mapping. [`Region::mark`] gives the kernel the right to take pages when it
//! needs memory; it frees them then instead of swapping or failing. [`Region::unmark`] takes the
//! right back and returns the pages that were lost, which are zeros now; the others have every
//! byte. Two engines do that ([`Engine`]).
//!
//! Offsets and lengths are bytes from the region's start; runs of lost pages are in base pages.
//! Any range of whole granules may be marked and unmarked any number of times, overlapping or
//! not, by any thread. Marking what is marked changes nothing of it, its age included, but for what
//! a callback refilled ([`Options::on_lost`]). While memory is marked it must not be written: a
//! write may cancel the kernel's right to the page without a word or, where the page is gone, raise
//! SIGBUS (*scan*) or be reported as lost (*tag*; with huge pages it may be taken for what was
//! there). What is mapped anew over a marked part is not volatile, but for *tag*, which cannot see
//! it ([`Options::over`]).
//!
//! One lock a region: whoever marks, unmarks or drops holds it alone, whoever reads or writes
//! by the calls here shares it. Beside it, held for a few instructions, the log of unmarks under
//! way. The one callback is [`Options::on_lost`]. Source: "Volatile Ranges v10" (Minchan Kim and
//! John Stultz, linux-mm, January 2014); madvise(2).

mod adopted;
mod build;
mod cloned;
mod engine;
mod error;
mod fork;
mod huge;
mod marks;
mod optimistic;
mod options;
mod overlap;
mod priority;
mod purged;
mod refilled;
mod resident;
mod scan;
mod self_test;
mod state;
mod stats;
mod tag;

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use engine::Engine;
pub use error::Error;
pub use optimistic::{Optimistic, Refill};
pub use options::Options;
pub use priority::Priority;
pub use purged::Purged;
pub use resident::Resident;
pub use stats::Stats;

use crate::error::OsError;
use crate::extent::Extent;
use crate::mapping::Mapping;
use crate::sync::{prefetch_at, read, try_write, write, RwLock, RwLockReadGuard, RwLockWriteGuard};
use crate::sys::{atfork, peek, vma};
use crate::units::{Bytes, PageSize, Pages};
use engine::Backend;
use marks::Bitmap;
use optimistic::Touches;
use overlap::Calls;
use state::State;
use stats::{Counter, Counts};

/// Adds the step around fork(2) that regions need, as the first region does. For those who have
/// steps of their own ([`atfork::add`]) and locks that they hold while they call regions: added
/// afterwards, their steps run first before a fork and last after it.
///
/// # Errors
/// As [`atfork::add`].
pub fn follow_forks() -> Result<(), Error> {
    Ok(fork::follow()?)
}

/// Memory whose contents may be given up and taken back.
#[derive(Debug)]
pub struct Region {
    /// Dropped first: a handler may be using what follows.
    _touches: Option<Touches>,
    /// Forks know of the locks by it; gone before the mapping, or a child would arm what lies
    /// there then.
    _entry: fork::Entry,
    mapping: Mapping,
    page: PageSize,
    granule: Bytes,
    engine: Engine,
    /// Where the marks are; changed under the lock, read by signal handlers too.
    marked: Arc<Bitmap>,
    state: Arc<RwLock<State>>,
    calls: Arc<Calls>,
    counts: Counts,
    made: Instant,
    options: Options,
}

const _: () = {
    const fn shareable<T: Send + Sync>() {}
    shareable::<Region>();
};

impl Region {
    /// What a region can be like.
    pub fn options() -> Options {
        Options::default()
    }

    /// A region of its own memory, with default options.
    ///
    /// # Errors
    /// As [`Options::map`].
    pub fn map(len: Bytes) -> Result<Self, Error> {
        Self::options().map(len)
    }

    /// Bytes of the region: whole granules.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> Bytes {
        self.mapping.len()
    }

    /// The first address.
    #[must_use]
    pub fn addr(&self) -> usize {
        self.mapping.addr()
    }

    /// The first byte. What is done through the pointer is the caller's to order and to bound.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.mapping.as_ptr()
    }

    /// The engine at work.
    #[must_use]
    pub fn engine(&self) -> Engine {
        self.engine
    }

    /// What is marked and, as a rule, lost together: a base page or a huge page. Of a huge page
    /// that the kernel split, single base pages may be lost.
    #[must_use]
    pub fn granule(&self) -> Bytes {
        self.granule
    }

    /// Gives the kernel the right to a range of whole granules. Memory beyond a cap, or marked
    /// longer than the options say, is dropped afterwards.
    ///
    /// # Errors
    /// [`Error::Unaligned`], [`Error::Empty`], [`Error::Beyond`], [`Error::MapBudget`],
    /// [`Error::Cloned`]: nothing has changed. [`Error::Locked`], another kind of memory that
    /// cannot be volatile, or [`Error::Os`]: the range may count as marked, and is to be unmarked.
    pub fn mark(&self, range: Range<Bytes>, priority: Priority) -> Result<(), Error> {
        let pages = self.checked(&range)?;
        self.fetch(&range);
        let mut state = self.alone()?;
        let refilled = self.settle_refilled(&mut state)?;
        let parts = state.pins.uncovered(pages);
        // All of them before anything changes: arming may be refused.
        state.arm_adopted(&parts)?;
        state.pins.keep_back(pages, &parts, priority);
        parts.iter().try_for_each(|part| self.mark_armed(&mut state, *part, priority))?;
        match refilled {
            true => self.keep_caps(&mut state),
            false => Ok(()),
        }
    }

    /// Marks pages that no guard covers, and that are armed.
    #[inline]
    fn mark_armed(
        &self,
        state: &mut State,
        pages: Extent,
        priority: Priority,
    ) -> Result<(), Error> {
        let new = state.marks.insert(pages, priority, self.now());
        if new.is_empty() {
            return Ok(());
        }
        state.look_for_swap(pages.len());
        self.counts.add_alone(Counter::Marks, 1);
        self.counts.add_alone(Counter::MarkedEver, new.iter().map(|part| part.len()).sum());
        // First of all of them: what fails below leaves a range that counts as marked.
        new.iter().for_each(|part| self.marked.set(*part));
        for part in new.iter() {
            let marked = match &state.backend {
                Backend::Scan(scan) => scan.mark(*part, state.swap),
                Backend::Tag(tag) => tag.mark(*part),
            };
            marked.map_err(|error| self.refused(*part, error, state))?;
        }
        self.keep_caps(state)
    }

    /// Takes the right to a range of whole granules back; what of it was not marked is left as
    /// it is. Returns the pages that were lost, which are zeros now. Of unmarks that overlap
    /// each is told what another found lost that had not returned when it began; what one had
    /// found that had not returned when its process forked is told in the child by the next.
    ///
    /// With the *tag* engine a page in whose first word somebody wrote while it was marked is told
    /// lost as well. It is zeros too, but in a region of the [caller's memory](Options::over):
    /// there it may be something that was mapped since, and stays as it is.
    ///
    /// # Errors
    /// [`Error::Unaligned`], [`Error::Empty`], [`Error::Beyond`]; [`Error::Os`] and
    /// [`Error::Stuck`] where the kernel cannot make a page safe: the range is still marked then,
    /// and what was lost is told by the next unmark.
    pub fn unmark(&self, range: Range<Bytes>) -> Result<Purged, Error> {
        let pages = self.checked(&range)?;
        self.fetch(&range);
        if atfork::is_without_steps() {
            return self.unmark_cloned(pages);
        }
        fork::give_way();
        let (mut call, mut state) = match try_write(&self.state) {
            Some(state) => (self.calls.begin_held(), state),
            None => (self.calls.begin(), write(&self.state)),
        };
        let mut lost = self.unmark_now(&mut state, pages)?;
        state.pins.forget(pages);
        call.share(pages, &mut lost);
        Ok(Purged::from_runs(lost))
    }

    /// Unmarks pages; returns those that were lost.
    #[inline]
    fn unmark_now(&self, state: &mut State, pages: Extent) -> Result<Vec<Extent>, Error> {
        let parts = state.marks.within(pages);
        let mut lost = Vec::new();
        if !parts.is_empty() {
            lost = match &state.backend {
                backend if state.is_unarmed => backend.lose(&parts)?,
                Backend::Scan(scan) => scan.unmark(&parts)?,
                Backend::Tag(tag) => {
                    let found = tag.unmark(&parts)?;
                    self.settle_overwritten(state, &found.overwritten);
                    found.lost
                }
            };
            let purged: u64 = lost.iter().map(|run| run.len()).sum();
            let all: u64 = parts.iter().map(|part| part.len()).sum();
            self.counts.add_alone(Counter::Unmarks, 1);
            self.counts.add_alone(Counter::Purged, purged);
            self.counts.add_alone(Counter::Rescued, all - purged);
            state.marks.remove(pages);
            state.refilled.forget(pages);
            state.disarm_adopted(&parts);
            parts.iter().for_each(|part| self.marked.clear(*part));
        }
        Ok(lost)
    }

    /// Pages that are told lost, but in which somebody wrote: zeros from now on. Of the caller's
    /// memory they may be a new mapping, which holds what no call of the region is to touch.
    fn settle_overwritten(&self, state: &State, found: &[Extent]) {
        if found.is_empty() {
            return;
        }
        self.counts.add(Counter::Overwritten, found.iter().map(|run| run.len()).sum());
        if state.adopted.is_none() {
            let zeros = vec![0; self.page.bytes().as_usize()];
            for page in found.iter().flat_map(|run| run.start()..run.end()) {
                self.mapping.write(Pages::new(page).bytes(self.page), &zeros);
            }
        }
    }

    /// Copies bytes out, marked or not, if all of them are there; leaves the marks as they are.
    ///
    /// # Errors
    /// [`Error::Beyond`]; [`Error::Purged`] if a page is lost: `buf` then holds anything;
    /// [`Error::Os`] if the kernel refuses the copy.
    pub fn try_read(&self, offset: Bytes, buf: &mut [u8]) -> Result<(), Error> {
        let Some(pages) = self.touched(offset, buf.len())? else { return Ok(()) };
        let state = self.shared();
        let marked = self.marked.first_in(pages);
        if marked.is_none() {
            self.mapping.read(offset, buf);
            return Ok(());
        }
        // In a child that could not be armed a lost page would read as zeros.
        let told = state.as_deref().filter(|state| !state.is_unarmed).map(|state| &state.backend);
        let lost = match told {
            None => marked,
            Some(Backend::Scan(_)) => {
                let copied = peek::peek(self.addr() + offset.as_usize(), buf)?;
                let stopped = offset + Bytes::new(copied as u64);
                (copied < buf.len()).then(|| stopped.pages_down(self.page).get())
            }
            Some(Backend::Tag(tag)) => tag.try_read(offset, buf)?,
        };
        let Some(page) = lost else { return Ok(()) };
        self.counts.add(Counter::ReadsLost, 1);
        Err(Error::Purged { offset: Pages::new(page).bytes(self.page) })
    }

    /// Copies bytes out of memory that is not marked.
    ///
    /// # Errors
    /// [`Error::Beyond`], [`Error::Marked`].
    pub fn read(&self, offset: Bytes, buf: &mut [u8]) -> Result<(), Error> {
        let Some(pages) = self.touched(offset, buf.len())? else { return Ok(()) };
        let _state = self.shared();
        self.refuse_marked(pages)?;
        self.mapping.read(offset, buf);
        Ok(())
    }

    /// Copies bytes into memory that is not marked.
    ///
    /// # Errors
    /// [`Error::Beyond`], [`Error::Marked`]: nothing is written then.
    pub fn write(&self, offset: Bytes, bytes: &[u8]) -> Result<(), Error> {
        let Some(pages) = self.touched(offset, bytes.len())? else { return Ok(()) };
        let _state = self.shared();
        self.refuse_marked(pages)?;
        self.mapping.write(offset, bytes);
        Ok(())
    }

    /// Drops the contents of what is marked in a range of whole granules: it is lost from now
    /// on, and marked still. Returns how much of it had not been dropped by glebe before.
    ///
    /// # Errors
    /// [`Error::Unaligned`], [`Error::Empty`], [`Error::Beyond`], [`Error::Cloned`]; [`Error::Os`],
    /// and then some of it may have been dropped.
    pub fn drop_now(&self, range: Range<Bytes>) -> Result<Bytes, Error> {
        let pages = self.checked(&range)?;
        let mut state = self.alone()?;
        self.settle_refilled(&mut state)?;
        let dropped = state.drop_held(pages)?;
        self.counts.add_alone(Counter::DroppedNow, dropped.get());
        Ok(dropped.bytes(self.page))
    }

    /// The counters, and what there is now. Reads `/proc/self/smaps`: as long as a process has
    /// much mapped, this takes milliseconds.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let Some(state) = self.shared() else { return self.stats_cloned() };
        let held = |part: &Extent| {
            let resident = match &state.backend {
                Backend::Scan(scan) => scan.resident(*part),
                Backend::Tag(tag) => tag.resident(*part),
            };
            // What cannot be told is taken to be there.
            resident.map_or(part.len(), Pages::get)
        };
        let (lazy_free, unreclaimable) = self.in_rss();
        Stats {
            engine: self.engine,
            total: self.len().pages_down(self.page),
            marked: Pages::new(state.marks.pages()),
            resident: Pages::new(state.marks.all().iter().map(held).sum()),
            lazy_free,
            unreclaimable,
            ..self.counts.sum()
        }
    }

    /// What the kernel itself counts as reclaimable, and what is in memory besides; none where it
    /// does not say. Beside a region of the caller's memory may lie more that it counts with it.
    fn in_rss(&self) -> (Pages, Pages) {
        let range = self.addr()..self.addr() + self.len().as_usize();
        let usage = vma::usage(&range).unwrap_or_default();
        let in_pages = |bytes: Bytes| bytes.pages_down(self.page).get();
        let (rss, lazy_free) = (in_pages(usage.rss), in_pages(usage.lazy_free));
        (Pages::new(lazy_free), Pages::new(rss.saturating_sub(lazy_free)))
    }

    /// Has the processor look for the first word while the lock is taken. Not with the engine that
    /// touches no page: the kernel would have to flush what the processor has learnt.
    #[inline]
    fn fetch(&self, range: &Range<Bytes>) {
        if self.engine == Engine::Tag {
            prefetch_at(self.as_ptr().wrapping_add(range.start.as_usize()));
        }
    }

    /// The time since the region was made, where ages matter.
    fn now(&self) -> Duration {
        self.options.max_age.map_or(Duration::ZERO, |_| self.made.elapsed())
    }

    /// Drops what is beyond the cap or too old.
    #[inline]
    fn keep_caps(&self, state: &mut State) -> Result<(), Error> {
        if self.options.cap.is_none() && self.options.max_age.is_none() {
            return Ok(());
        }
        let mut dropped = Pages::ZERO;
        if let Some(age) = self.options.max_age {
            while let Some(old) = state.marks.aged(age, self.now()) {
                dropped = dropped + state.drop_held(old)?;
            }
        }
        if let Some(cap) = self.options.cap {
            let granule = self.granule.pages_down(self.page).get();
            let cap = cap.pages_down(self.page).get();
            while state.marks.held_pages() > cap {
                let excess = (state.marks.held_pages() - cap).next_multiple_of(granule);
                let Some(first) = state.marks.first_to_drop() else { break };
                let part = Extent::new(first.start(), excess.min(first.len()));
                dropped = dropped + state.drop_held(part.unwrap_or(first))?;
            }
        }
        self.counts.add_alone(Counter::DroppedByCap, dropped.get());
        Ok(())
    }

    /// The lock, held alone, of a region that can mark.
    #[inline]
    fn alone(&self) -> Result<RwLockWriteGuard<'_, State>, Error> {
        if atfork::is_without_steps() {
            return Err(Error::Cloned);
        }
        fork::give_way();
        let mut state = write(&self.state);
        state.arm_late()?;
        Ok(state)
    }

    /// The lock, shared; none in a process in which it may never be released.
    fn shared(&self) -> Option<RwLockReadGuard<'_, State>> {
        (!atfork::is_without_steps()).then(|| read(&self.state))
    }

    /// The pages of a range, which is not empty, aligned, and inside.
    #[inline]
    fn checked(&self, range: &Range<Bytes>) -> Result<Extent, Error> {
        let granule = self.granule;
        let mask = granule.get() - 1;
        let unaligned = [range.start, range.end].into_iter().find(|end| end.get() & mask != 0);
        if let Some(offset) = unaligned {
            return Err(Error::Unaligned { offset, granule });
        }
        let pages = |bytes: Bytes| bytes.pages_down(self.page).get();
        let len = pages(range.end).checked_sub(pages(range.start));
        let extent = len.and_then(|len| Extent::new(pages(range.start), len));
        let extent = extent.ok_or(Error::Empty)?;
        if range.end > self.len() {
            return Err(Error::Beyond { end: range.end, limit: self.len() });
        }
        Ok(extent)
    }

    /// The pages that hold `count` bytes from `offset`; none for no bytes.
    fn touched(&self, offset: Bytes, count: usize) -> Result<Option<Extent>, Error> {
        let end = offset.checked_add(Bytes::new(count as u64)).unwrap_or(Bytes::new(u64::MAX));
        if end > self.len() {
            return Err(Error::Beyond { end, limit: self.len() });
        }
        if count == 0 {
            return Ok(None);
        }
        let first = offset.pages_down(self.page).get();
        Ok(Extent::new(first, end.pages_up(self.page).get() - first))
    }

    fn refuse_marked(&self, pages: Extent) -> Result<(), Error> {
        match self.marked.first_in(pages) {
            None => Ok(()),
            Some(page) => Err(Error::Marked { offset: Pages::new(page).bytes(self.page) }),
        }
    }

    /// What a refused mark is called.
    fn refused(&self, pages: Extent, error: OsError, state: &State) -> Error {
        match &state.adopted {
            Some(adopted) => adopted.explain(pages, error),
            None if error.kind() == std::io::ErrorKind::InvalidInput => {
                Error::Locked { addr: self.addr() }
            }
            None => error.into(),
        }
    }
}

#[cfg(test)]
impl Region {
    /// Whether the page that holds an offset is marked.
    fn is_marked(&self, offset: Bytes) -> bool {
        offset < self.len() && self.marked.get(offset.pages_down(self.page).get())
    }
}

#[cfg(test)]
mod tests;
