//! [`Region`] takes hints about pages. No lock.

use std::ops::Range;

use super::evict::{Asker, Turn};
use super::inner::RegionCore;
use super::leaving::Leaving;
use super::pins::WAITS;
use super::Region;
use crate::swap::error::SwapError;
use crate::swap::stats::Counter;
use crate::swap::word::{change, look, Refusal, Word, WordState};
use glebe_os::internal::mapping::DISCARD_MAX;
use glebe_os::internal::sync::Backoff;
use glebe_os::internal::sys::page_size;
use glebe_os::units::Bytes;

impl Region {
    /// Brings the first pages of the range to memory, up to the budget. Pages may leave before use.
    ///
    /// # Errors
    /// `Beyond`; `Budget`, `Full` or `FileFull` without room; `LostPage`, `Os`, `Pool`, `Forked`.
    pub fn will_need(&self, offset: Bytes, len: Bytes) -> Result<(), SwapError> {
        let inner = self.inner();
        let pages = inner.checked(offset, len.get())?;
        pages.take(inner.budget() as usize).try_for_each(|page| inner.prefetch(page))
    }

    /// Marks whole pages in the range as next to leave, even if recently touched. May forget
    /// earlier ranges.
    ///
    /// # Errors
    /// `Beyond`, `Forked`.
    pub fn cold(&self, offset: Bytes, len: Bytes) -> Result<(), SwapError> {
        let inner = self.inner();
        inner.cold.add(inner.whole(offset, len)?);
        Ok(())
    }

    /// Discards whole pages in the range, which then read as zeros.
    ///
    /// # Errors
    /// `Beyond`, `Forked`; `Pinned` if a guard or a long copy uses a page; `Os` if the kernel keeps
    /// memory. An error may leave some pages discarded.
    pub fn discard(&self, offset: Bytes, len: Bytes) -> Result<(), SwapError> {
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
                return Err(SwapError::Pinned);
            }
            waits += u32::from(refusal == Refusal::Pinned);
            backoff.wait();
        }
        Ok(())
    }
}

impl RegionCore {
    fn whole(&self, offset: Bytes, len: Bytes) -> Result<Range<u64>, SwapError> {
        self.checked(offset, len.get())?;
        let (first, end) = (offset.pages_up(page_size()), (offset + len).pages_down(page_size()));
        Ok(first.get()..end.get())
    }

    fn prefetch(&self, page: u64) -> Result<(), SwapError> {
        match look(self.slot_of(page).word()).state() {
            WordState::Stored | WordState::Window => self.bring(page, Asker::Call),
            _ => Ok(()),
        }
    }

    /// Discards up to [`DISCARD_MAX`] pages, and removes them from `pages`.
    fn discard(&self, pages: &mut Range<u64>) -> Result<Option<Refusal>, SwapError> {
        let mut home = Leaving::dead(self, &self.home, WordState::Resident);
        let mut shadow = Leaving::dead(self, &self.shadow, WordState::Window);
        let mut refused = None;
        for page in pages.clone().take(DISCARD_MAX) {
            match change(self.slot_of(page).word(), Word::discarding).map(Word::state) {
                Ok(WordState::Resident) => home.push(page),
                Ok(WordState::Window) => shadow.push(page),
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
