//! [`Region`] owns the mapping, the lock of its state, and counters. Extents: base pages from the
//! region's start.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use super::caps::Caps;
use super::engine::Backend;
use super::marks::Bitmap;
use super::state::{Locked, RegionState};
use super::stats::{Counter, Counts};
use super::touches::Touches;
use super::{fork, Engine, Error, Options, Priority, Purged, Refusal, Stats};
use glebe_os::error::OsError;
use glebe_os::extent::Extent;
use glebe_os::internal::mapping::Mapping;
use glebe_os::internal::sync::{prefetch_at, read, try_write, write, RwLockWriteGuard};
use glebe_os::internal::sys::memory::vma;
use glebe_os::internal::sys::processes::atfork;
use glebe_os::units::{Bytes, PageSize, Pages};

/// Memory that can be marked: the kernel may free its pages until they are unmarked.
///
/// ```
/// use glebe_volatile::units::Bytes;
/// use glebe_volatile::{Priority, Region};
///
/// let region = Region::new(Bytes::mib(1))?;
/// region.write(Bytes::ZERO, b"a result that can be computed again")?;
/// region.mark(Bytes::ZERO..region.len(), Priority::NORMAL)?;
/// if region.unmark(Bytes::ZERO..region.len())?.is_empty() {
///     let mut text = [0; 8];
///     region.read(Bytes::ZERO, &mut text)?;
///     assert_eq!(&text, b"a result");
/// }
/// # Ok::<(), glebe_volatile::Error>(())
/// ```
#[derive(Debug)]
pub struct Region {
    /// Dropped first, because its signal handler may still write to the mapping.
    pub(super) _touches: Option<Touches>,
    /// Dropped before `mapping`, because a forked child registers each listed region's addresses
    /// with a userfaultfd.
    pub(super) _entry: fork::ListedRegion,
    pub(super) mapping: Mapping,
    pub(super) page: PageSize,
    pub(super) granule: Bytes,
    pub(super) engine: Engine,
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
    /// Returns the default options.
    pub fn options() -> Options {
        Options::default()
    }

    /// Creates a region with its own memory and default options.
    ///
    /// # Errors
    /// As [`Options::build`].
    pub fn new(len: Bytes) -> Result<Self, Error> {
        Self::options().build(len)
    }

    /// Returns the length in bytes: whole granules.
    #[must_use]
    pub fn len(&self) -> Bytes {
        self.mapping.len()
    }

    /// Returns the first address.
    #[must_use]
    pub fn addr(&self) -> usize {
        self.mapping.addr()
    }

    /// Returns a pointer to the first byte. The caller orders and bounds all accesses.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.mapping.as_ptr()
    }

    /// Returns the engine at work.
    #[must_use]
    pub fn engine(&self) -> Engine {
        self.engine
    }

    /// Returns the unit of marks: a base page or a huge page. The kernel may free parts of a huge
    /// page.
    #[must_use]
    pub fn granule(&self) -> Bytes {
        self.granule
    }

    /// Marks a range of whole granules: the kernel may free its pages. Then drops marked memory
    /// beyond [`Options::cap`] or [`Options::max_age`], if the call marked a new page or found a
    /// [refilled](Options::on_lost) page.
    ///
    /// # Errors
    /// [`Error::Unaligned`], [`Error::Empty`], [`Error::Beyond`], [`Error::MapBudget`],
    /// [`Error::Cloned`]: no page was marked. [`Error::Unsuitable`] or [`Error::Os`]: the range may
    /// count as marked; unmark it.
    pub fn mark(&self, range: Range<Bytes>, priority: Priority) -> Result<(), Error> {
        let pages = self.checked(&range)?;
        self.fetch(&range);
        let mut state = self.alone()?;
        let refilled = self.settle_refilled(&mut state)?;
        // Arms first, because the kernel may refuse.
        state.arm(pages)?;
        let new = state.marks.insert(pages, priority, self.now());
        if !new.is_empty() {
            state.look_for_swap(pages.len());
            self.counts.add_alone(Counter::Marks, 1);
            self.counts.add_alone(Counter::MarkedEver, new.iter().map(|part| part.len()).sum());
        } else if !refilled {
            return Ok(());
        }
        // Sets all bits first: if a step below fails, the range counts as marked.
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

    /// Unmarks a range of whole granules and returns the lost pages, which now read as zeros. If
    /// another unmark runs at the start, also returns the other's losses in the range. If a fork
    /// cuts an unmark short, the child's next unmark of the same pages returns the losses.
    ///
    /// With [`Engine::Tag`], a page whose first word is a tag also counts as lost if that word was
    /// written while marked. The unmark zeroes such a page, except in the
    /// [caller's memory](Options::build_over). In a run without tags, a lost page that was written
    /// while marked counts as kept, and a page of zeros may count as lost.
    ///
    /// # Errors
    /// [`Error::Unaligned`], [`Error::Empty`], [`Error::Beyond`]; [`Error::Os`] and
    /// [`Error::Stuck`] if the kernel cannot make a page safe: the range stays marked, and the next
    /// unmark reports the losses.
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

    #[inline]
    pub(super) fn unmark_now(
        &self,
        state: &mut RegionState,
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

    /// Zeroes lost pages written while marked. Skips adopted memory, because zeros could overwrite
    /// a new mapping.
    fn settle_overwritten(&self, state: &RegionState, found: &[Extent]) {
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

    /// Drops the marked pages in a range of whole granules: they are lost, and stay marked. Returns
    /// the bytes newly dropped.
    ///
    /// # Errors
    /// [`Error::Unaligned`], [`Error::Empty`], [`Error::Beyond`], [`Error::Cloned`];
    /// [`Error::Unsuitable`] or [`Error::Os`]: some pages may have been dropped.
    pub fn drop_now(&self, range: Range<Bytes>) -> Result<Bytes, Error> {
        let pages = self.checked(&range)?;
        let mut state = self.alone()?;
        self.settle_refilled(&mut state)?;
        let dropped = state.drop_held(pages)?;
        self.counts.add_alone(Counter::DroppedNow, dropped.get());
        Ok(dropped.bytes(self.page))
    }

    /// Returns the statistics. Reads `/proc/self/smaps`, which may take milliseconds.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let Some(state) = self.shared() else { return self.stats_cloned() };
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

    fn in_rss(&self) -> (Pages, Pages) {
        let range = self.addr()..self.addr() + self.len().as_usize();
        let usage = vma::usage(&range).unwrap_or_default();
        let in_pages = |bytes: Bytes| bytes.pages_down(self.page).get();
        let (rss, lazy_free) = (in_pages(usage.rss), in_pages(usage.lazy_free));
        (Pages::new(lazy_free), Pages::new(rss.saturating_sub(lazy_free)))
    }

    /// *tag* reads the range's first word under the lock.
    #[inline]
    fn fetch(&self, range: &Range<Bytes>) {
        if self.engine == Engine::Tag {
            prefetch_at(self.as_ptr().wrapping_add(range.start.as_usize()));
        }
    }

    /// Lets the kernel free refilled pages. Returns true if there were any.
    #[inline]
    pub(super) fn settle_refilled(&self, state: &mut RegionState) -> Result<bool, Error> {
        let Some(refilled) = state.refilled.clone() else { return Ok(false) };
        let runs = refilled.take();
        let settled = runs.iter().try_for_each(|run| self.settle_run(state, *run));
        settled.inspect_err(|_| refilled.put_back(&runs))?;
        Ok(!runs.is_empty())
    }

    #[cold]
    fn settle_run(&self, state: &mut RegionState, run: Extent) -> Result<(), Error> {
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

    #[inline]
    pub(super) fn alone(&self) -> Result<RwLockWriteGuard<'_, RegionState>, Error> {
        if atfork::is_without_steps() {
            return Err(Error::Cloned);
        }
        fork::give_way();
        let mut state = write(&self.locked.state);
        state.arm_late()?;
        Ok(state)
    }

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

    fn refused(&self, pages: Extent, error: OsError, state: &RegionState) -> Error {
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
    /// Unmarks the caller's memory.
    fn drop(&mut self) {
        if atfork::is_without_steps() || read(&self.locked.state).adopted.is_none() {
            return;
        }
        let _ = self.unmark(Bytes::ZERO..self.len());
        let mut state = write(&self.locked.state);
        // After a failed unmark, lost pages would raise SIGBUS.
        let left = state.marks.all();
        state.disarm(&left);
    }
}

#[cfg(test)]
impl Region {
    pub(super) fn is_marked(&self, offset: Bytes) -> bool {
        offset < self.len() && self.marked.get(offset.pages_down(self.page).get())
    }
}
