//! What the program knows of a region's pages: which it needs soon, not for a while, or no more.
//!
//! Cost: of [`Region::cold`] one atomic operation; of the others as that of pages that come and go,
//! without the codec for what is discarded. No lock.

use std::ops::Range;

use super::evict::{Asker, Turn};
use super::inner::Inner;
use super::leaving::Leaving;
use super::pins::WAITS;
use super::Region;
use crate::mapping::DISCARD_MAX;
use crate::swap::error::Error;
use crate::swap::stats::Counter;
use crate::swap::word::{change, look, Refusal, State, Word};
use crate::sync::Backoff;
use crate::sys::page_size;
use crate::units::Bytes;

impl Region {
    /// Brings pages to memory that will be needed soon: those that hold the first of the bytes, as
    /// many as the budget has. They may leave again before they are needed.
    ///
    /// # Errors
    /// [`Error::Beyond`]; [`Error::Budget`], [`Error::Full`] and [`Error::Os`] where no room can be
    /// made; [`Error::LostPage`]; [`Error::Forked`].
    pub fn will_need(&self, offset: Bytes, len: Bytes) -> Result<(), Error> {
        let inner = self.inner();
        let pages = inner.checked(offset, len.get())?;
        pages.take(inner.budget() as usize).try_for_each(|page| inner.prefetch(page))
    }

    /// Says that pages are not needed for a while: where memory is short, those that lie whole in
    /// the range are the next to leave it. A touch until then does not change that. Of many ranges
    /// that wait, the oldest are forgotten.
    ///
    /// # Errors
    /// [`Error::Beyond`], [`Error::Forked`].
    pub fn cold(&self, offset: Bytes, len: Bytes) -> Result<(), Error> {
        let inner = self.inner();
        inner.cold.add(inner.whole(offset, len)?);
        Ok(())
    }

    /// Gives up the bytes of the pages that lie whole in the range: they take neither memory nor
    /// room in pool and file any more, are zeros from then on, and a damaged page is whole again.
    ///
    /// # Errors
    /// [`Error::Beyond`]; [`Error::Pinned`] if a guard has one of the pages, or a copy is at it for
    /// long; [`Error::Os`] for memory that the kernel does not take back. Then the first pages may
    /// be zeros. [`Error::Forked`].
    pub fn discard(&self, offset: Bytes, len: Bytes) -> Result<(), Error> {
        let inner = self.inner();
        let mut pages = inner.whole(offset, len)?;
        let (mut backoff, mut waits) = (Backoff::default(), 0);
        while !pages.is_empty() {
            let start = pages.start;
            let Some(refusal) = inner.discard(&mut pages)? else { continue };
            if pages.start > start {
                (backoff, waits) = (Backoff::default(), 0);
            }
            if waits == WAITS {
                return Err(Error::Pinned);
            }
            waits += u32::from(refusal == Refusal::Pinned);
            backoff.wait();
        }
        Ok(())
    }
}

impl Inner {
    /// The pages that lie whole in a range.
    fn whole(&self, offset: Bytes, len: Bytes) -> Result<Range<u64>, Error> {
        self.checked(offset, len.get())?;
        let (first, end) = (offset.pages_up(page_size()), (offset + len).pages_down(page_size()));
        Ok(first.get()..end.get())
    }

    /// Brings a page home that has bytes elsewhere.
    fn prefetch(&self, page: u64) -> Result<(), Error> {
        match look(self.slot_of(page).word()).state() {
            State::Stored | State::Window => self.bring(page, Asker::Call),
            _ => Ok(()),
        }
    }

    /// Makes holes of the first of these pages, up to one that cannot be had now: why not. What
    /// became a hole is no more in `pages`.
    fn discard(&self, pages: &mut Range<u64>) -> Result<Option<Refusal>, Error> {
        let mut home = Leaving::dead(self, &self.home, State::Resident);
        let mut shadow = Leaving::dead(self, &self.shadow, State::Window);
        let mut refused = None;
        for page in pages.clone().take(DISCARD_MAX) {
            match change(self.slot_of(page).word(), Word::discarding).map(Word::state) {
                Ok(State::Resident) => home.push(page),
                Ok(State::Window) => shadow.push(page),
                Ok(_) => {
                    self.forget(page);
                    self.counts.add(Counter::Freed, 1);
                }
                Err(Refusal::Unfit) => {}
                Err(refusal) => {
                    refused = Some(refusal);
                    break;
                }
            }
            pages.start = page + 1;
        }
        let mut turn = Turn::default();
        home.drop_all(&mut turn);
        shadow.drop_all(&mut turn);
        turn.refused.map_or(Ok(refused), Err)
    }
}
