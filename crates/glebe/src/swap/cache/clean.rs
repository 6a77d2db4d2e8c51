//! [`Area::clean`] writes to the file the pages that only ordinary memory holds.
//!
//! A store without room for its page first cleans; no background thread does. A page stays readable
//! during its write; if a store then replaces it, the cleaner frees the written bytes. A cleaner
//! holds the lock `hand`, also during the write.

use super::area::Area;
use super::batch::{Batch, Page};
use super::entries::Entry;
use super::stats::Counter;
use crate::swap::error::SwapError;
use crate::swap::file::BATCH;
use crate::zpool::internal::with_buffer;
use glebe_os::internal::sync::{lock, Backoff};
use glebe_os::units::Bytes;

impl Area {
    /// Writes about `most` bytes of pages that only ordinary memory holds, less if the rest may
    /// stay unwritten. Returns the bytes written.
    ///
    /// # Errors
    /// `FileFull`, `Os`, `Forked`. No page is lost.
    pub fn clean(&self, most: Bytes) -> Result<Bytes, SwapError> {
        self.alive()?;
        let mut written = 0;
        while written < most.get() {
            let left = self.unsaved.get().to_write().min(most.get() - written);
            match self.clean_some(&mut lock(&self.hand), left)? {
                0 => break,
                bytes => written += bytes,
            }
        }
        Ok(Bytes::new(written))
    }

    pub(super) fn clean_for(&self, len: usize) -> Result<u64, SwapError> {
        let mut hand = lock(&self.hand);
        if self.unsaved.has_room(len) {
            return Ok(len as u64);
        }
        self.counts.add(Counter::Waited, 1);
        self.clean_some(&mut hand, self.unsaved.get().to_write())
    }

    pub(super) fn clean_down(&self, hand: &mut usize) -> Result<(), SwapError> {
        let mut backoff = Backoff::default();
        loop {
            let state = self.unsaved.get();
            let (stored, limit) = (Bytes::new(state.charged), Bytes::new(state.limit()));
            if stored <= limit {
                return Ok(());
            }
            if !self.unsaved.has_file() {
                return Err(SwapError::PutBackBelowStored { stored, put_back: limit });
            }
            if self.clean_some(hand, stored.get() - limit.get())? == 0 {
                // A store has charged bytes, and will publish their entry soon.
                backoff.wait();
            }
        }
    }

    fn clean_some(&self, hand: &mut usize, most: u64) -> Result<u64, SwapError> {
        let Some(file) = &self.copies.file else { return Ok(0) };
        let mut batch = self.gather(hand, most.min(BATCH as u64));
        let mut cleaned = 0;
        batch.write(file, |page, copy, bytes| {
            let len = bytes.len() as u64;
            self.counts.add(Counter::WrittenBytes, len);
            let saved = Entry { copy, kept: self.kept.insert(bytes), ..page.was };
            let was = self.entries.set_if(page.offset, &page.was, Some(saved));
            if was.is_some() {
                self.counts.add(Counter::Cleaned, 1);
            }
            self.drop_entry(&was.unwrap_or(saved));
            cleaned += len;
        })?;
        Ok(cleaned)
    }

    fn gather(&self, hand: &mut usize, most: u64) -> Batch {
        let mut batch = Batch::default();
        // Visits the first chunk again, because pages may have been stored there.
        for _ in 0..=self.entries.chunks() {
            for (offset, was) in self.entries.chunk(*hand) {
                if batch.len() as u64 >= most {
                    return batch;
                }
                let Some(block) = was.copy.in_pool() else { continue };
                with_buffer(block.len, |bytes| {
                    // Skips unreadable blocks: a missing block was replaced, and a damaged block
                    // fails at its next load.
                    if self.copies.gather(block, bytes).is_ok() {
                        batch.push(Page { offset, was, block }, bytes);
                    }
                });
            }
            *hand = (*hand + 1) % self.entries.chunks();
        }
        batch
    }
}
