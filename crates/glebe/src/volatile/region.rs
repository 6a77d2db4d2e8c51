//! [`Region`]: memory that is marked, unmarked and dropped.
//!
//! Owns the mapping, the lock of its state and what is counted. Positions are base pages from the
//! region's start. Cost: that of the engine, and O(log n) for n marked ranges.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use super::caps::Caps;
use super::engine::Backend;
use super::marks::Bitmap;
use super::state::{Locked, State};
use super::stats::{Counter, Counts};
use super::touches::Touches;
use super::{fork, Engine, Error, Options, Priority, Purged, Refusal, Stats};
use crate::error::OsError;
use crate::extent::Extent;
use crate::mapping::Mapping;
use crate::sync::{prefetch_at, read, try_write, write, RwLockWriteGuard};
use crate::sys::{atfork, vma};
use crate::units::{Bytes, PageSize, Pages};

/// Memory whose contents may be given up and taken back.
///
/// ```
/// use glebe::units::Bytes;
/// use glebe::volatile::{Priority, Region};
///
/// let region = Region::new(Bytes::mib(1))?;
/// region.write(Bytes::ZERO, b"a result that can be computed again")?;
/// region.mark(Bytes::ZERO..region.len(), Priority::NORMAL)?;
/// // Meanwhile the kernel may take the pages.
/// if region.unmark(Bytes::ZERO..region.len())?.is_empty() {
///     let mut text = [0; 8];
///     region.read(Bytes::ZERO, &mut text)?;
///     assert_eq!(&text, b"a result");
/// }
/// # Ok::<(), glebe::volatile::Error>(())
/// ```
#[derive(Debug)]
pub struct Region {
    /// Dropped first: a handler may be using what follows.
    pub(super) _touches: Option<Touches>,
    /// Forks know of the locks by it; gone before the mapping, or a child would arm what lies
    /// there then.
    pub(super) _entry: fork::Entry,
    pub(super) mapping: Mapping,
    pub(super) page: PageSize,
    pub(super) granule: Bytes,
    pub(super) engine: Engine,
    /// Where the marks are; changed under the lock, read by signal handlers too.
    pub(super) marked: Arc<Bitmap>,
    pub(super) locked: Arc<Locked>,
    pub(super) counts: Counts,
    pub(super) made: Instant,
    pub(super) caps: Caps,
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
    /// As [`Options::build`].
    pub fn new(len: Bytes) -> Result<Self, Error> {
        Self::options().build(len)
    }

    /// Bytes of the region: whole granules.
    #[must_use]
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
    /// [`Error::Cloned`]: nothing has changed. [`Error::Unsuitable`] or [`Error::Os`]: the range
    /// may count as marked, and is to be unmarked.
    pub fn mark(&self, range: Range<Bytes>, priority: Priority) -> Result<(), Error> {
        let pages = self.checked(&range)?;
        self.fetch(&range);
        let mut state = self.alone()?;
        let refilled = self.settle_refilled(&mut state)?;
        // Before anything changes: arming may be refused.
        state.arm(pages)?;
        let new = state.marks.insert(pages, priority, self.now());
        if !new.is_empty() {
            state.look_for_swap(pages.len());
            self.counts.add_alone(Counter::Marks, 1);
            self.counts.add_alone(Counter::MarkedEver, new.iter().map(|part| part.len()).sum());
        } else if !refilled {
            return Ok(());
        }
        // First of all of them: what fails below leaves a range that counts as marked.
        new.iter().for_each(|part| self.marked.set(*part));
        let given = new.iter().map(|part| {
            let marked = match &state.backend {
                Backend::Scan(scan) => scan.mark(*part, state.swap),
                Backend::Tag(tag) => tag.mark(*part, state.swap),
            };
            marked.map_err(|error| self.refused(*part, error, &state))
        });
        given.fold(Ok(()), Result::and)?;
        self.keep_caps(&mut state)
    }

    /// Takes the right to a range of whole granules back; what of it was not marked is left as
    /// it is. Returns the pages that were lost, which are zeros now. Of unmarks that overlap
    /// each is told what another found lost that had not returned when it began; what one had
    /// found that had not returned when its process forked is told in the child by the next.
    ///
    /// With the *tag* engine a page of a short run in whose first word somebody wrote while it was
    /// marked is told lost as well. It is zeros too, but in a region of the
    /// [caller's memory](Options::build_over): there it may be something that was mapped since, and
    /// stays as it is. Of a longer run a lost page in which somebody wrote is taken for kept, and
    /// where pages went just then, or are shared with a child, one of zeros may be told lost.
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
        let (mut call, mut state) = match try_write(&self.locked.state) {
            Some(state) => (self.locked.calls.begin_held(), state),
            None => (self.locked.calls.begin(), write(&self.locked.state)),
        };
        let mut lost = self.unmark_now(&mut state, pages)?;
        call.share(pages, &mut lost);
        Ok(Purged::from_runs(lost))
    }

    /// Unmarks pages; returns those that were lost.
    #[inline]
    pub(super) fn unmark_now(
        &self,
        state: &mut State,
        pages: Extent,
    ) -> Result<Vec<Extent>, Error> {
        let parts = state.marks.within(pages);
        let mut lost = Vec::new();
        if !parts.is_empty() {
            lost = match &state.backend {
                backend if state.is_unarmed => backend.lose(&parts)?,
                Backend::Scan(scan) => scan.unmark(&parts)?,
                Backend::Tag(tag) => {
                    let found = tag.unmark(&parts);
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
            if let Some(refilled) = &state.refilled {
                refilled.forget(pages);
            }
            if state.adopted.is_some() {
                state.disarm(&parts);
            }
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
        // What cannot be told is taken to be there.
        let held = |part: &Extent| state.backend.resident(*part).map_or(part.len(), Pages::get);
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

    /// Gives the kernel the right again to marked pages that were refilled; whether there were any.
    /// On an error they stay noted.
    #[inline]
    pub(super) fn settle_refilled(&self, state: &mut State) -> Result<bool, Error> {
        let Some(refilled) = state.refilled.clone() else { return Ok(false) };
        let runs = refilled.take();
        let settled = runs.iter().try_for_each(|run| self.settle_run(state, *run));
        settled.inspect_err(|_| refilled.put_back(&runs))?;
        Ok(!runs.is_empty())
    }

    #[cold]
    fn settle_run(&self, state: &mut State, run: Extent) -> Result<(), Error> {
        for part in state.marks.within(run).iter() {
            for part in state.droppable(*part)? {
                state.marks.renew(part, self.now());
                state.look_for_swap(part.len());
                let Backend::Scan(scan) = &state.backend else { continue };
                let marked = scan.mark_again(part, state.swap);
                marked.map_err(|error| self.refused(part, error, state))?;
            }
        }
        Ok(())
    }

    /// The lock, held alone, of a region that can mark.
    #[inline]
    pub(super) fn alone(&self) -> Result<RwLockWriteGuard<'_, State>, Error> {
        if atfork::is_without_steps() {
            return Err(Error::Cloned);
        }
        fork::give_way();
        let mut state = write(&self.locked.state);
        state.arm_late()?;
        Ok(state)
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

    /// What a refused mark is called.
    fn refused(&self, pages: Extent, error: OsError, state: &State) -> Error {
        match &state.adopted {
            Some(adopted) => adopted.explain(pages, error),
            None if error.kind() == std::io::ErrorKind::InvalidInput => {
                Refusal::Locked { at: self.addr() }.into()
            }
            None => error.into(),
        }
    }
}

impl Drop for Region {
    /// The caller's memory is left as any memory is, with no mark that could take it later.
    fn drop(&mut self) {
        if atfork::is_without_steps() || read(&self.locked.state).adopted.is_none() {
            return;
        }
        let _ = self.unmark(Bytes::ZERO..self.len());
        let mut state = write(&self.locked.state);
        // Where that was refused: a hole is zeros to the caller, not SIGBUS.
        let left = state.marks.all();
        state.disarm(&left);
    }
}

#[cfg(test)]
impl Region {
    /// Whether the page that holds an offset is marked.
    pub(super) fn is_marked(&self, offset: Bytes) -> bool {
        offset < self.len() && self.marked.get(offset.pages_down(self.page).get())
    }
}
