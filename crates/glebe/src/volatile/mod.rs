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
//! not, by any thread. Marking what is marked changes nothing of it, its age included. While
//! memory is marked it must not be written: a write may cancel the kernel's right to the page
//! without a word or, where the page is gone, raise SIGBUS (*scan*) or be reported as lost (*tag*).
//!
//! One lock a region: whoever marks, unmarks or drops holds it alone, whoever reads or writes
//! by the calls here shares it. Beside it, held for a few instructions, the log of unmarks under
//! way. No callback. Source: "Volatile Ranges v10" (Minchan Kim and John Stultz, linux-mm, January
//! 2014); madvise(2).

mod adopted;
mod budget;
mod cloned;
mod error;
mod fork;
mod huge;
mod marks;
mod optimistic;
mod options;
mod overlap;
mod purged;
mod resident;
mod scan;
mod self_test;
mod stats;
mod tag;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use error::Error;
pub use optimistic::{Optimistic, Refill};
pub use options::Options;
pub use purged::Purged;
pub use resident::Resident;
pub use stats::Stats;

use crate::error::OsError;
use crate::extent::Extent;
use crate::mapping::{Mapping, Visibility};
use crate::sync::{read, write, RwLock, RwLockReadGuard, RwLockWriteGuard};
use crate::sys::{atfork, madvise, page_size, peek, swap, vma};
use crate::units::{Bytes, PageSize, Pages};
use adopted::Adopted;
use marks::{Bitmap, Marks};
use optimistic::Touches;
use overlap::Calls;
use resident::Pins;
use scan::Scan;
use stats::{Counter, Counts};
use tag::Tag;

/// How lost pages are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Engine {
    /// By the page tables, with a userfaultfd: contents are never altered while marked, and a
    /// touch of a lost page is SIGBUS with its address.
    #[default]
    Scan,
    /// By a word of each page, exchanged while it is marked: works without userfaultfd, unmarks
    /// without a system call; a touch of a lost page finds zeros.
    Tag,
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Scan => "scan",
            Self::Tag => "tag",
        })
    }
}

/// Which marked ranges glebe drops first, 0 to 7, the lowest first. The kernel knows of none and
/// purges in the order of marking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Priority(u8);

impl Priority {
    /// Dropped before all others.
    pub const LOWEST: Self = Self(0);
    /// Where there is no reason for another.
    pub const NORMAL: Self = Self(4);
    /// Dropped after all others.
    pub const HIGHEST: Self = Self(7);

    /// A priority; `None` above [`Priority::HIGHEST`].
    #[must_use]
    pub const fn new(priority: u8) -> Option<Self> {
        if priority <= Self::HIGHEST.0 {
            Some(Self(priority))
        } else {
            None
        }
    }

    /// The bare number.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }

    /// From the lowest to the highest.
    fn all() -> impl Iterator<Item = Self> {
        (Self::LOWEST.0..=Self::HIGHEST.0).map(Self)
    }
}

impl Default for Priority {
    fn default() -> Self {
        Self::NORMAL
    }
}

#[derive(Debug)]
enum Backend {
    Scan(Scan),
    Tag(Tag),
}

/// What the lock guards.
#[derive(Debug)]
struct State {
    marks: Marks,
    pins: Pins,
    backend: Backend,
    /// Where the memory is the caller's.
    adopted: Option<Adopted>,
    /// Pages of the region.
    pages: u64,
    /// Whether this is a child in which the backend could not be made to work: a write to a lost
    /// page may have gone unseen there, so all that is marked is lost.
    is_unarmed: bool,
    /// Whether the machine had swap when it was last asked.
    swap: bool,
    /// Small marks until it is asked again.
    swap_known_for: u32,
}

impl State {
    /// Learns whether there is swap. A small mark may miss that it was turned on just before:
    /// then what is in it is lost early, and told.
    fn look_for_swap(&mut self, pages: u64) {
        if pages <= SMALL_PAGES && self.swap_known_for > 0 {
            self.swap_known_for -= 1;
            return;
        }
        self.swap = swap::exists();
        self.swap_known_for = SWAP_KNOWN_FOR;
    }
}

/// Up to so many pages the question for swap would cost more than the mark.
const SMALL_PAGES: u64 = 16;
const SWAP_KNOWN_FOR: u32 = 256;

/// Memory whose contents may be given up and taken back.
#[derive(Debug)]
pub struct Region {
    /// Dropped first: a handler may be using what follows.
    _touches: Option<Touches>,
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
    /// Forks know of the locks by it.
    _entry: fork::Entry,
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
        let mut state = self.alone()?;
        for part in state.pins.keep_back(pages, priority) {
            self.mark_now(&mut state, part, priority)?;
        }
        Ok(())
    }

    /// Marks pages that no guard covers.
    fn mark_now(&self, state: &mut State, pages: Extent, priority: Priority) -> Result<(), Error> {
        state.arm_adopted(pages)?;
        let new = state.marks.insert(pages, priority, self.now());
        if new.is_empty() {
            return Ok(());
        }
        state.look_for_swap(pages.len());
        self.counts.add(Counter::Marks, 1);
        self.counts.add(Counter::MarkedEver, new.iter().map(|part| part.len()).sum());
        for part in new {
            self.marked.set(part);
            let marked = match &state.backend {
                Backend::Scan(scan) => scan.mark(part, state.swap),
                Backend::Tag(tag) => tag.mark(part),
            };
            marked.map_err(|error| self.refused(part, error, state))?;
        }
        self.keep_caps(state)
    }

    /// Takes the right to a range of whole granules back; what of it was not marked is left as
    /// it is. Returns the pages that were lost, which are zeros now. Of unmarks that overlap
    /// each is told what another found lost that had not returned when it began.
    ///
    /// # Errors
    /// [`Error::Unaligned`], [`Error::Empty`], [`Error::Beyond`]; [`Error::Os`] and
    /// [`Error::Stuck`] where the kernel cannot make a page safe: the range is still marked then,
    /// and what was lost is told by the next unmark.
    pub fn unmark(&self, range: Range<Bytes>) -> Result<Purged, Error> {
        let pages = self.checked(&range)?;
        if atfork::is_without_steps() {
            return self.unmark_cloned(pages);
        }
        fork::give_way();
        let call = self.calls.begin();
        let mut state = write(&self.state);
        let mut lost = self.unmark_now(&mut state, pages)?;
        state.pins.forget(pages);
        call.share(pages, &mut lost);
        Ok(Purged::from_runs(lost))
    }

    /// Unmarks pages; returns those that were lost.
    fn unmark_now(&self, state: &mut State, pages: Extent) -> Result<Vec<Extent>, Error> {
        let parts = state.marks.within(pages);
        let mut lost = Vec::new();
        if !parts.is_empty() {
            lost = match &state.backend {
                backend if state.is_unarmed => backend.lose(&parts)?,
                Backend::Scan(scan) => scan.unmark(&parts)?,
                Backend::Tag(tag) => {
                    let found = tag.unmark(&parts);
                    self.counts.add(Counter::Overwritten, found.overwritten);
                    found.lost
                }
            };
            let purged: u64 = lost.iter().map(|run| run.len()).sum();
            let all: u64 = parts.iter().map(|part| part.len()).sum();
            self.counts.add(Counter::Unmarks, 1);
            self.counts.add(Counter::Purged, purged);
            self.counts.add(Counter::Rescued, all - purged);
            state.marks.remove(pages);
            state.disarm_adopted(&parts);
            parts.iter().for_each(|part| self.marked.clear(*part));
        }
        Ok(lost)
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
        let lost = match state.as_deref().map(|state| &state.backend) {
            None => marked,
            Some(Backend::Scan(_)) => {
                let copied = peek::peek(self.addr() + offset.as_usize(), buf)?;
                let stopped = offset + Bytes::new(copied as u64);
                (copied < buf.len()).then(|| stopped.pages_down(self.page).get())
            }
            Some(Backend::Tag(tag)) => tag.try_read(offset, buf).err(),
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
        let dropped = drop_held(&mut state, pages)?;
        self.counts.add(Counter::DroppedNow, dropped.get());
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
        Stats {
            engine: self.engine,
            total: self.len().pages_down(self.page),
            marked: Pages::new(state.marks.pages()),
            resident: Pages::new(state.marks.all().iter().map(held).sum()),
            lazy_free: self.lazy_free(),
            ..self.counts.sum()
        }
    }

    /// What the kernel itself counts as reclaimable; none where it does not say. Beyond what is
    /// marked by no more than what lies beside a region of the caller's memory.
    fn lazy_free(&self) -> Pages {
        let range = self.addr()..self.addr() + self.len().as_usize();
        vma::usage(&range).map_or(Pages::ZERO, |usage| usage.lazy_free.pages_down(self.page))
    }

    /// A region of its own memory.
    fn with(options: &Options, len: Bytes) -> Result<Self, Error> {
        if options.cap == Some(Bytes::ZERO) {
            return Err(Error::ZeroCap);
        }
        if len == Bytes::ZERO {
            return Err(Error::Empty);
        }
        fork::follow()?;
        self_test::passed()?;
        let page = page_size();
        let huge = options.huge.then(madvise::transparent_huge_page).transpose()?;
        let grain = huge.unwrap_or(page);
        let whole = len.pages_up(grain).checked_bytes(grain);
        let too_long = Error::Beyond { end: len, limit: Bytes::new(usize::MAX as u64) };
        let mapping = Mapping::aligned(whole.ok_or(too_long)?, grain, Visibility::ORDINARY)?;
        let backend = Self::prepared(&mapping, huge, options)?;
        Self::of(options, mapping, grain, backend, None)
    }

    fn of(
        options: &Options,
        mapping: Mapping,
        grain: PageSize,
        backend: Backend,
        adopted: Option<Adopted>,
    ) -> Result<Self, Error> {
        let page = page_size();
        let pages = mapping.len().pages_down(page).get();
        let engine = match backend {
            Backend::Scan(_) => Engine::Scan,
            Backend::Tag(_) => Engine::Tag,
        };
        let marked = Arc::new(Bitmap::new(pages));
        let touches = Touches::of(&mapping, &marked, &backend, options)?;
        let marks = Marks::default();
        let state = State {
            marks,
            pins: Pins::default(),
            backend,
            adopted,
            pages,
            is_unarmed: false,
            swap: true,
            swap_known_for: 0,
        };
        let state = Arc::new(RwLock::new(state));
        let calls = Arc::new(Calls::new());
        let entry = fork::enter(&fork::Locks { state: state.clone(), calls: calls.clone() });
        Ok(Self {
            page,
            granule: grain.bytes(),
            engine,
            _touches: touches,
            marked,
            state,
            calls,
            counts: Counts::new(),
            made: Instant::now(),
            options: options.clone(),
            mapping,
            _entry: entry,
        })
    }

    /// Brings fresh memory into the state that the engine starts from.
    fn prepared(
        mapping: &Mapping,
        huge: Option<PageSize>,
        options: &Options,
    ) -> Result<Backend, Error> {
        let base = mapping.addr();
        let pages = mapping.len().pages_down(page_size()).get();
        let backend = Backend::new(base, pages, huge, options)?;
        // Refused where the process locks its memory; there is nothing to lose yet.
        mapping.offer().map_err(|error| match error.kind() {
            std::io::ErrorKind::InvalidInput => Error::Locked { addr: base },
            _ => error.into(),
        })?;
        if huge.is_some() {
            mapping.prefer_huge_pages()?;
            mapping.populate(Bytes::ZERO, mapping.len())?;
        }
        // A huge page made of marked pages would not be marked. Kernels without them refuse.
        let refused = mapping.refuse_huge_pages();
        if huge.is_some() {
            refused?;
        }
        if let (Backend::Scan(scan), Some(all)) = (&backend, Extent::new(0, pages)) {
            scan.arm(all)?;
            scan.fill_holes(all)?;
        }
        Ok(backend)
    }

    /// The time since the region was made, where ages matter.
    fn now(&self) -> Duration {
        self.options.max_age.map_or(Duration::ZERO, |_| self.made.elapsed())
    }

    /// Drops what is beyond the cap or too old.
    fn keep_caps(&self, state: &mut State) -> Result<(), Error> {
        let mut dropped = Pages::ZERO;
        if let Some(age) = self.options.max_age {
            while let Some(old) = state.marks.aged(age, self.now()) {
                dropped = dropped + drop_held(state, old)?;
            }
        }
        if let Some(cap) = self.options.cap {
            let granule = self.granule.pages_down(self.page).get();
            let cap = cap.pages_down(self.page).get();
            while state.marks.held_pages() > cap {
                let excess = (state.marks.held_pages() - cap).next_multiple_of(granule);
                let Some(first) = state.marks.first_to_drop() else { break };
                let part = Extent::new(first.start(), excess.min(first.len()));
                dropped = dropped + drop_held(state, part.unwrap_or(first))?;
            }
        }
        self.counts.add(Counter::DroppedByCap, dropped.get());
        Ok(())
    }

    /// The lock, held alone, of a region that can mark.
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
    fn checked(&self, range: &Range<Bytes>) -> Result<Extent, Error> {
        let granule = self.granule;
        let unaligned =
            [range.start, range.end].into_iter().find(|end| end.get() % granule.get() != 0);
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

impl Backend {
    /// The engine that the options ask for, or the one that can be had.
    fn new(
        base: usize,
        pages: u64,
        huge: Option<PageSize>,
        options: &Options,
    ) -> Result<Self, OsError> {
        let page = page_size();
        let tag = || Self::Tag(Tag::new(base, pages, page, huge, options.without_scan));
        let scan = || Scan::new(base, page, huge, options.without_scan).map(Self::Scan);
        Ok(match options.engine {
            Some(Engine::Tag) => tag(),
            Some(Engine::Scan) => scan()?,
            None => scan().unwrap_or_else(|_| tag()),
        })
    }

    /// Drops the contents of marked pages.
    fn drop_pages(&self, pages: Extent) -> Result<(), OsError> {
        match self {
            Self::Scan(scan) => scan.drop_pages(pages),
            Self::Tag(tag) => tag.drop_pages(pages),
        }
    }

    /// Drops the contents of parts and calls them lost.
    fn lose(&self, parts: &[Extent]) -> Result<Vec<Extent>, OsError> {
        parts.iter().try_for_each(|part| self.drop_pages(*part))?;
        Ok(parts.to_vec())
    }
}

/// Drops what of `pages` is marked and was not dropped before.
fn drop_held(state: &mut State, pages: Extent) -> Result<Pages, OsError> {
    let parts = state.marks.drop_within(pages);
    let mut dropped = Pages::ZERO;
    for part in parts {
        state.backend.drop_pages(part)?;
        dropped = dropped + Pages::new(part.len());
    }
    Ok(dropped)
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
