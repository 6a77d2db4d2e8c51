//! [`Pin`]: granules that no purge takes.
//!
//! Offsets are in bytes from the first pinned byte. A forked child can only drop its parent's pins.

use super::holder::Joined;
use super::layout::Field;
use super::protocol::{try_pin, unpin, Tried, PINS_MAX};
use super::region::Shared;
use super::wait::{change_idle, for_purge};
use super::word::{change, tick, Word};
use crate::{Error, Purged};
use glebe_os::extent::Extent;
use glebe_os::internal::extents::push;
use glebe_os::internal::mapping::Part;
use glebe_os::internal::sys::machine::uptime;
use glebe_os::units::Bytes;

/// Pinned granules; from [`Shared::pin`].
#[derive(Debug)]
#[must_use = "what is pinned is so until this is dropped"]
pub struct Pin<'a> {
    shared: &'a Shared,
    joined: &'a Joined,
    start: u64,
    end: u64,
    lost: Purged,
}

impl<'a> Pin<'a> {
    #[inline]
    pub(super) fn new(
        shared: &'a Shared,
        joined: &'a Joined,
        granules: Extent,
    ) -> Result<Self, Error> {
        shared.ledger().touch_counts(joined.holder, granules)?;
        let start = granules.start();
        let mut pin = Self { shared, joined, start, end: start, lost: Purged::default() };
        let (mut lost, mut absent) = (Vec::new(), Vec::new());
        for index in start..granules.end() {
            let word = pin.add(index, granules)?;
            for (runs, is_one) in [(&mut lost, word.is_lost()), (&mut absent, !word.is_present())] {
                if let Some(one) = Extent::new(index, 1).filter(|_| is_one) {
                    push(runs, one);
                }
            }
        }
        absent.into_iter().try_for_each(|run| pin.populate(run))?;
        if !lost.is_empty() {
            pin.lost = Purged::from_runs(shared.in_pages(&lost));
        }
        Ok(pin)
    }

    #[inline]
    fn add(&mut self, index: u64, granules: Extent) -> Result<Word, Error> {
        let ledger = self.shared.ledger();
        let (holder, layout) = (self.joined.holder, ledger.layout());
        loop {
            match try_pin(ledger, holder, index) {
                Tried::Pinned { word, is_first } => {
                    if let Some(Err(error)) = is_first.then(|| self.joined.charge(layout.quota)) {
                        // Another thread may have pinned the granule since. A second pin is free,
                        // so the charge ends with the last pin.
                        self.joined.charge_beyond(layout.quota);
                        if unpin(ledger, holder, index) {
                            self.joined.discharge(layout.quota);
                        }
                        return Err(error);
                    }
                    self.shared.guard().pinned(self.joined.process, index);
                    self.end = index + 1;
                    return Ok(word);
                }
                Tried::Purging => for_purge(ledger, index, granules)?,
                Tried::Exhausted => {
                    let offset = Bytes::new(index * layout.granule);
                    return Err(Error::PinsExhausted { offset, limit: PINS_MAX });
                }
            }
        }
    }

    /// Allocates pinned granules, so no touch lacks memory.
    #[cold]
    fn populate(&self, absent: Extent) -> Result<(), Error> {
        let ledger = self.shared.ledger();
        ledger.allocate(absent)?;
        for index in absent.start()..absent.end() {
            let _ = change(ledger.word(index), |word| {
                // A granule that a purger just claimed is present, and the purger will see the pin.
                (!word.is_purging() && !word.is_present()).then(|| word.with_present())
            });
        }
        Ok(())
    }

    /// Returns the bytes pinned.
    #[must_use]
    pub fn len(&self) -> Bytes {
        Bytes::new((self.end - self.start) * self.shared.granule().get())
    }

    /// Returns the pages that the pin found lost, numbered from the data's start.
    #[must_use = "the contents of these pages are gone"]
    pub fn lost(&self) -> &Purged {
        &self.lost
    }

    /// Declares that lost granules are valid again. If marked, they count as just marked.
    ///
    /// # Errors
    /// [`Error::Forked`], [`Error::Truncated`], [`Error::PurgeUnderWay`], [`Error::Os`].
    pub fn restored(&self) -> Result<(), Error> {
        self.check()?;
        let ledger = self.shared.ledger();
        let time = tick(ledger.field(Field::Clock), uptime::micros());
        let Some(granules) = Extent::between(self.start, self.end) else { return Ok(()) };
        for index in self.start..self.end {
            let restored = |word: Word| word.is_lost().then(|| word.restored(time));
            change_idle(ledger, index, granules, restored)?;
        }
        self.shared.whole()
    }

    /// Copies bytes out. Other processes may change the bytes during the copy.
    ///
    /// # Errors
    /// [`Error::Beyond`] the pin; [`Error::Forked`]; [`Error::Truncated`], which leaves `buf`
    /// undefined.
    #[inline]
    pub fn read(&self, offset: Bytes, buf: &mut [u8]) -> Result<(), Error> {
        let at = self.place(offset, buf.len())?;
        self.shared.data().read(at, buf);
        self.shared.whole()
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// As [`Pin::read`].
    #[inline]
    pub fn write(&self, offset: Bytes, bytes: &[u8]) -> Result<(), Error> {
        let at = self.place(offset, bytes.len())?;
        self.shared.data().write(at, bytes);
        self.shared.whole()
    }

    /// Returns the address of the first pinned byte. Make references only to atomics, because other
    /// processes may change the bytes.
    #[must_use]
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.shared.as_ptr().wrapping_add((self.start * self.shared.granule().get()) as usize)
    }

    #[inline]
    fn place(&self, offset: Bytes, count: usize) -> Result<Bytes, Error> {
        self.check()?;
        let end = offset.checked_add(Bytes::new(count as u64)).unwrap_or(Bytes::new(u64::MAX));
        if end > self.len() {
            return Err(Error::Beyond { end, limit: self.len() });
        }
        Ok(Bytes::new(self.start * self.shared.granule().get()) + offset)
    }

    #[inline]
    fn check(&self) -> Result<(), Error> {
        if self.joined.is_inherited() {
            return Err(Error::Forked);
        }
        self.shared.whole()
    }
}

/// Returns the pinned bytes.
///
/// # Errors
/// [`Error::Forked`], [`Error::Truncated`].
pub fn part_of<'a>(pin: &'a Pin<'_>) -> Result<Part<'a>, Error> {
    let at = pin.place(Bytes::ZERO, pin.len().as_usize())?;
    Ok(pin.shared.data().part(at, pin.len()))
}

impl Drop for Pin<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.joined.is_inherited() {
            return;
        }
        let ledger = self.shared.ledger();
        for index in self.start..self.end {
            self.shared.guard().unpinned(self.joined.process, index);
            if unpin(ledger, self.joined.holder, index) {
                self.joined.discharge(ledger.layout().quota);
            }
        }
    }
}
