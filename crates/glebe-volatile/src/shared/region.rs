//! [`Shared`] and the calls on it.
//!
//! Ranges are bytes in whole granules; runs of lost pages are base pages. Each change of a granule
//! is one exchange of its state, a [`Word`].

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use super::guard::Guard;
use super::holder::{join, Joined, Membership, PATIENCE};
use super::layout::Field;
use super::ledger::Ledger;
use super::options::SharedOptions;
use super::stats::{Counter, Counts, Stats};
use super::wait::change_idle;
use super::word::{change, tick, Key, Word};
use super::{purge, Order, Pin};
use crate::{Error, Priority, Purged};
use glebe_os::extent::Extent;
use glebe_os::internal::extents::{merged, push};
use glebe_os::internal::mapping::Mapping;
use glebe_os::internal::sync::Ordering;
use glebe_os::internal::sys::machine::uptime;
use glebe_os::internal::sys::page_size;
use glebe_os::internal::sys::processes::atfork;
use glebe_os::units::{Bytes, Pages};

/// Volatile memory that several processes share; see [`Shared::options`].
///
/// ```
/// use glebe_volatile::{Order, Priority, Shared};
/// use glebe_volatile::units::Bytes;
///
/// let shared = Shared::options().granule(Bytes::mib(1)).create(Bytes::mib(8))?;
/// let all = Bytes::ZERO..shared.len();
/// shared.pin(all.clone())?.write(Bytes::ZERO, b"can be computed again")?;
/// shared.mark(all.clone(), Priority::NORMAL, Order::Fifo)?;
///
/// // Any process with the file may purge unpinned granules.
/// assert_eq!(shared.purge(Bytes::mib(1), Priority::HIGHEST)?, Bytes::mib(1));
///
/// let pin = shared.pin(Bytes::ZERO..Bytes::mib(1))?;
/// if !pin.lost().is_empty() {
///     pin.write(Bytes::ZERO, b"is computed again")?;
///     pin.restored()?;
/// }
/// # Ok::<(), glebe_volatile::Error>(())
/// ```
#[derive(Debug)]
pub struct Shared {
    // Drop order: the membership's lock first, then the mappings.
    membership: Membership,
    guard: Guard,
    data: Mapping,
    ledger: Arc<Ledger>,
    counts: Counts,
}

const _: () = {
    const fn shareable<T: Send + Sync>() {}
    shareable::<Shared>();
    shareable::<Pin<'_>>();
};

impl Shared {
    /// Returns default options.
    pub fn options() -> SharedOptions {
        SharedOptions::new()
    }

    pub(super) fn new(
        membership: Membership,
        guard: Guard,
        data: Mapping,
        ledger: Arc<Ledger>,
    ) -> Self {
        Self { membership, guard, data, ledger, counts: Counts::new() }
    }

    /// Returns the length of the data in bytes.
    #[must_use]
    pub fn len(&self) -> Bytes {
        self.ledger.layout().len()
    }

    /// Returns the bytes of a granule.
    #[must_use]
    pub fn granule(&self) -> Bytes {
        self.ledger.layout().granule()
    }

    /// Returns the file's descriptor.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.ledger.file().as_file().as_fd()
    }

    /// Returns the address of the data. Make no reference to the data: other processes may change
    /// it, and purges may zero it. On a full tmpfs a touch of an unpinned page may raise SIGBUS.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.data.as_ptr()
    }

    /// Marks granules, so that any process may purge them. Granules already marked keep their
    /// priority and order.
    ///
    /// # Errors
    /// [`Error::Unaligned`], [`Error::Empty`], [`Error::Beyond`]; [`Error::PurgeUnderWay`],
    /// [`Error::Truncated`], [`Error::Os`]; after a fork or clone the errors of [`Shared::pin`].
    /// Part of the range may then be marked.
    pub fn mark(&self, range: Range<Bytes>, priority: Priority, order: Order) -> Result<(), Error> {
        let granules = self.begin(&range)?;
        let time = tick(self.ledger.field(Field::Clock), uptime::micros());
        let key = Key::new(order, time);
        let held = self.unknown(granules)?;
        for index in granules.start()..granules.end() {
            let next = held.partition_point(|run| run.end() <= index);
            let holds = held.get(next).is_some_and(|run| run.start() <= index);
            let marked =
                |word: Word| (!word.is_marked()).then(|| word.marked(priority, key, holds));
            let was = change_idle(&self.ledger, index, granules, marked)?;
            if !was.is_marked() {
                self.counts.add(Counter::MarkedEver, self.pages(1));
            }
        }
        self.counts.add(Counter::Marks, 1);
        self.whole()
    }

    fn unknown(&self, granules: Extent) -> Result<Vec<Extent>, Error> {
        let mut all = granules.start()..granules.end();
        if all.all(|index| self.word(index).is_present()) {
            return Ok(Vec::new());
        }
        Ok(self.ledger.data_in(granules)?)
    }

    fn word(&self, index: u64) -> Word {
        Word(self.ledger.word(index).load(Ordering::SeqCst))
    }

    /// Unmarks granules. Returns the lost pages that no unmark returned and no pin restored. At
    /// least one of several concurrent unmarks returns each loss.
    ///
    /// # Errors
    /// As [`Shared::mark`]. The next unmark then returns the losses.
    pub fn unmark(&self, range: Range<Bytes>) -> Result<Purged, Error> {
        let granules = self.begin(&range)?;
        for index in granules.start()..granules.end() {
            let ended = |word: Word| word.is_marked().then(|| word.ended());
            change_idle(&self.ledger, index, granules, ended)?;
        }
        self.whole()?;
        let mut lost = Vec::new();
        for index in granules.start()..granules.end() {
            let told = |word: Word| (word.is_lost() && !word.is_marked()).then(|| word.unmarked());
            let told = change(self.ledger.word(index), told);
            // If another call marked the granule again, this unmark and the next return the loss.
            if told.map_or_else(|now| now.is_lost(), |(was, _)| was.is_lost()) {
                Extent::new(index, 1).into_iter().for_each(|one| push(&mut lost, one));
            }
        }
        let purged = Purged::from_runs(self.in_pages(&lost));
        self.counts.add(Counter::Unmarks, 1);
        self.counts.add(Counter::Purged, purged.pages().get());
        Ok(purged)
    }

    /// Gives granules memory, and protects them from purges until the pin is dropped. Usually makes
    /// no system call if they have memory and no purge is under way.
    ///
    /// # Errors
    /// [`Error::Unaligned`], [`Error::Empty`], [`Error::Beyond`]; [`Error::PinsExhausted`],
    /// [`Error::Quota`]; [`Error::PurgeUnderWay`]; [`Error::NoHolderLeft`], [`Error::Busy`] in a
    /// forked child; [`Error::Cloned`]; [`Error::Truncated`]; [`Error::Os`]. Nothing is pinned
    /// then.
    #[inline]
    pub fn pin(&self, range: Range<Bytes>) -> Result<Pin<'_>, Error> {
        let granules = self.begin(&range)?;
        let pin = Pin::new(self, self.joined()?, granules)?;
        self.counts.add(Counter::Pins, 1);
        self.whole()?;
        Ok(pin)
    }

    /// Frees up to `target` bytes, rounded up to granules: marked granules without pins, of at most
    /// priority `up_to`, lowest first. Returns the bytes freed.
    ///
    /// # Errors
    /// [`Error::Busy`] during another purge; the errors of [`Shared::mark`].
    pub fn purge(&self, target: Bytes, up_to: Priority) -> Result<Bytes, Error> {
        self.joined()?;
        let freed = purge::purge(&self.ledger, target, up_to)?;
        let freed = freed.into_iter().fold(Bytes::ZERO, |sum, freed| sum + freed);
        self.counts.add(Counter::Freed, freed.pages_down(page_size()).get());
        self.whole()?;
        Ok(freed)
    }

    /// Frees marked granules without pins. Returns the base pages freed.
    ///
    /// # Errors
    /// As [`Shared::purge`], but waits up to a second for another purger.
    pub fn drop_now(&self, range: Range<Bytes>) -> Result<Pages, Error> {
        let granules = self.begin(&range)?;
        let lock = purge::lock(&self.ledger, PATIENCE)?;
        let gone = lock.purge(&self.ledger, u64::MAX, Priority::HIGHEST, granules)?;
        let pages = self.pages(gone.iter().sum());
        self.counts.add(Counter::DroppedNow, pages);
        self.whole()?;
        Ok(Pages::new(pages))
    }

    /// Returns the counters of this `Shared` and the file's gauges; 0 for unreadable gauges.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let holder = self.joined().ok().map(|joined| joined.holder);
        self.counts.gauged(&self.ledger, holder)
    }

    #[inline]
    fn begin(&self, range: &Range<Bytes>) -> Result<Extent, Error> {
        let granules = self.checked(range)?;
        self.joined()?;
        self.ledger.touch_words(granules)?;
        Ok(granules)
    }

    #[inline]
    pub(super) fn joined(&self) -> Result<&Joined, Error> {
        if atfork::is_without_steps() {
            return Err(Error::Cloned);
        }
        self.whole()?;
        match self.membership.get() {
            Some(joined) => Ok(joined),
            None => self.membership.join_anew(|| self.guard.armed(join(&self.ledger)?)),
        }
    }

    #[inline]
    pub(super) fn whole(&self) -> Result<(), Error> {
        self.ledger.whole()
    }

    #[inline]
    pub(super) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    #[inline]
    pub(super) fn guard(&self) -> &Guard {
        &self.guard
    }

    #[inline]
    pub(super) fn data(&self) -> &Mapping {
        &self.data
    }

    #[inline]
    pub(super) fn pages(&self, granules: u64) -> u64 {
        granules * (self.granule().get() >> page_size().shift())
    }

    pub(super) fn in_pages(&self, granules: &[Extent]) -> Vec<Extent> {
        let run = |run: &Extent| Extent::new(self.pages(run.start()), self.pages(run.len()));
        merged(granules.iter().filter_map(run).collect())
    }

    #[inline]
    fn checked(&self, range: &Range<Bytes>) -> Result<Extent, Error> {
        let granule = self.granule();
        let mask = granule.get() - 1;
        let unaligned = [range.start, range.end].into_iter().find(|end| end.get() & mask != 0);
        if let Some(offset) = unaligned {
            return Err(Error::Unaligned { offset, granule });
        }
        let shift = granule.get().trailing_zeros();
        let extent = Extent::between(range.start.get() >> shift, range.end.get() >> shift);
        let extent = extent.ok_or(Error::Empty)?;
        if range.end > self.len() {
            return Err(Error::Beyond { end: range.end, limit: self.len() });
        }
        Ok(extent)
    }
}

/// Returns true if the granule at `offset` has contents that no purge has taken.
#[must_use]
pub fn has_contents(shared: &Shared, offset: Bytes) -> bool {
    let word = |offset: Bytes| shared.word(offset.get() / shared.granule().get());
    offset < shared.len() && word(offset).is_present() && !word(offset).is_lost()
}

/// Returns true if the granule at `offset` is marked.
#[must_use]
pub fn is_marked(shared: &Shared, offset: Bytes) -> bool {
    offset < shared.len() && shared.word(offset.get() / shared.granule().get()).is_marked()
}

/// Marks the granules with memory that have no mark. Reads no holes of the file.
///
/// # Errors
/// As [`Shared::mark`].
pub fn mark_present(shared: &Shared, priority: Priority, order: Order) -> Result<(), Error> {
    shared.joined()?;
    let granule = shared.granule().get();
    for index in shared.ledger.noted()?.iter().flat_map(|run| run.start()..run.end()) {
        let word = shared.word(index);
        if word.is_present() && !word.is_marked() {
            let range = Bytes::new(index * granule)..Bytes::new((index + 1) * granule);
            shared.mark(range, priority, order)?;
        }
    }
    Ok(())
}
