//! [`Shared`]: the data of a shared file, mapped, and the calls on it.
//!
//! Ranges are bytes from the start of the data, whole granules; runs of lost pages are base pages.
//! Every call may come from any thread of any process that has joined; none takes a lock but the
//! purge lock. Each granule changes by one exchange of its word: two calls on overlapping ranges
//! may each be first at some of it.

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
use crate::extent::{merged, push, Extent};
use crate::mapping::Mapping;
use crate::sync::Ordering;
use crate::sys::{atfork, page_size, uptime};
use crate::units::{Bytes, Pages};
use crate::volatile::{Error, Priority, Purged};

/// Volatile memory that several processes share; see [`Shared::options`].
///
/// ```
/// use glebe::volatile::{Order, Priority, Shared};
/// use glebe::Bytes;
///
/// let shared = Shared::options().granule(Bytes::mib(1)).create(Bytes::mib(8))?;
/// let all = Bytes::ZERO..shared.len();
/// shared.pin(all.clone())?.write(Bytes::ZERO, b"can be computed again")?;
/// shared.mark(all.clone(), Priority::NORMAL, Order::Fifo)?;
///
/// // Any process that has the file may purge what nobody has pinned.
/// assert_eq!(shared.purge(Bytes::mib(1), Priority::HIGHEST)?, Bytes::mib(1));
///
/// let pin = shared.pin(Bytes::ZERO..Bytes::mib(1))?;
/// if !pin.lost().is_empty() {
///     pin.write(Bytes::ZERO, b"is computed again")?;
///     pin.restored()?;
/// }
/// # Ok::<(), glebe::volatile::Error>(())
/// ```
#[derive(Debug)]
pub struct Shared {
    // In this order: the lock goes before what it stands for.
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
    /// What a shared file is to be like, and where it comes from.
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

    /// Bytes of data.
    #[must_use]
    pub fn len(&self) -> Bytes {
        self.ledger.layout().len()
    }

    /// What is marked, pinned and lost as a whole.
    #[must_use]
    pub fn granule(&self) -> Bytes {
        self.ledger.layout().granule()
    }

    /// The file, for other processes to have.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.ledger.file().as_file().as_fd()
    }

    /// The first byte of the data. Others may change all of it at any time, and what is marked and
    /// not pinned may become zero: no reference to it may be made. A touch of what the file could
    /// not give memory for, on a full tmpfs, is SIGBUS; of pinned granules there is none.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.data.as_ptr()
    }

    /// Lets purges take granules. Those that are marked keep their priority and their place.
    ///
    /// # Errors
    /// [`Error::Unaligned`], [`Error::Empty`], [`Error::Beyond`] for the range;
    /// [`Error::PurgeUnderWay`]; as [`Shared::pin`] where the process was forked or cloned; what
    /// the kernel refuses. Some of the range may be marked then.
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

    /// Which of `granules` the file has data of, where words do not say so of all.
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

    /// Ends the right of purges to granules; which of their pages were lost, and were not told
    /// before. Of several unmarks at once, at least one is told of each.
    ///
    /// # Errors
    /// As [`Shared::mark`]. What was lost is then told by the next unmark.
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
            // Marked again meanwhile: told here, and once more.
            if told.map_or_else(|now| now.is_lost(), |(was, _)| was.is_lost()) {
                Extent::new(index, 1).into_iter().for_each(|one| push(&mut lost, one));
            }
        }
        let purged = Purged::from_runs(self.in_pages(&lost));
        self.counts.add(Counter::Unmarks, 1);
        self.counts.add(Counter::Purged, purged.pages().get());
        Ok(purged)
    }

    /// Keeps granules from being purged, marked or not, and gives them memory, until the pin is
    /// dropped. Where there is nothing to wait for and they have memory, this takes no system call.
    ///
    /// # Errors
    /// [`Error::Unaligned`], [`Error::Empty`], [`Error::Beyond`] for the range;
    /// [`Error::PinsExhausted`], [`Error::Quota`]; [`Error::PurgeUnderWay`] if a purger is stopped
    /// at one of them; [`Error::NoHolderLeft`], [`Error::Busy`] in a forked child that has to join;
    /// [`Error::Cloned`]; [`Error::Truncated`]; what the kernel refuses, above all memory. Nothing
    /// is pinned then.
    #[inline]
    pub fn pin(&self, range: Range<Bytes>) -> Result<Pin<'_>, Error> {
        let granules = self.begin(&range)?;
        let pin = Pin::new(self, self.joined()?, granules)?;
        self.counts.add(Counter::Pins, 1);
        self.whole()?;
        Ok(pin)
    }

    /// Takes marked granules that nobody has pinned, of `up_to` at most, lowest priority first,
    /// until `target` bytes are free, rounded up to whole granules; how many bytes.
    ///
    /// # Errors
    /// [`Error::Busy`] if another process or thread purges; as [`Shared::mark`].
    pub fn purge(&self, target: Bytes, up_to: Priority) -> Result<Bytes, Error> {
        self.joined()?;
        let freed = purge::purge(&self.ledger, target, up_to)?;
        let freed = freed.into_iter().fold(Bytes::ZERO, |sum, freed| sum + freed);
        self.counts.add(Counter::Freed, freed.pages_down(page_size()).get());
        self.whole()?;
        Ok(freed)
    }

    /// Takes what is marked in a range and nobody has pinned; how many pages.
    ///
    /// # Errors
    /// As [`Shared::purge`], but it waits a while for another.
    pub fn drop_now(&self, range: Range<Bytes>) -> Result<Pages, Error> {
        let granules = self.begin(&range)?;
        let lock = purge::lock(&self.ledger, PATIENCE)?;
        let gone = lock.purge(&self.ledger, u64::MAX, Priority::HIGHEST, granules)?;
        let pages = self.pages(gone.iter().sum());
        self.counts.add(Counter::DroppedNow, pages);
        self.whole()?;
        Ok(Pages::new(pages))
    }

    /// What was done by this process, and what the file is like now. What is counted now is 0 where
    /// the file cannot be looked at.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let holder = self.joined().ok().map(|joined| joined.holder);
        self.counts.gauged(&self.ledger, holder)
    }

    /// What every call on a range begins with: its granules, whose words have memory.
    #[inline]
    fn begin(&self, range: &Range<Bytes>) -> Result<Extent, Error> {
        let granules = self.checked(range)?;
        self.joined()?;
        self.ledger.touch_words(granules)?;
        Ok(granules)
    }

    /// The place of this process, which joins where it has none.
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

    /// That no page of the file was found missing.
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

    /// Base pages of so many granules.
    #[inline]
    pub(super) fn pages(&self, granules: u64) -> u64 {
        granules * (self.granule().get() >> page_size().shift())
    }

    /// Runs of granules as runs of pages.
    pub(super) fn in_pages(&self, granules: &[Extent]) -> Vec<Extent> {
        let run = |run: &Extent| Extent::new(self.pages(run.start()), self.pages(run.len()));
        merged(granules.iter().filter_map(run).collect())
    }

    /// The granules of a range, which is not empty, aligned, and inside.
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
