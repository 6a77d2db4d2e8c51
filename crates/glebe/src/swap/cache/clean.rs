//! The cleaner: writes pages to the file that are in ordinary memory alone.
//!
//! Whoever finds no room for a store cleans; there is no thread. It goes round the chunks from
//! where the last call ended, and writes up to a segment. A page stays readable where it was until
//! its entry names the file; if it is replaced meanwhile, what was written is given back. An error
//! changes nothing. Lock: the hand, for the write, so that one cleans at a time; loads, and stores
//! that have room, wait for none of it.

use super::area::Area;
use super::batch::{Batch, Page};
use super::entries::Entry;
use super::stats::Counter;
use crate::swap::error::Error;
use crate::swap::file::BATCH;
use crate::sync::{lock, Backoff};
use crate::units::Bytes;
use crate::zpool::with_buffer;

impl Area {
    /// Writes pages that are in ordinary memory alone, 256 KiB at a time, until `most` bytes are
    /// written or those that put-back covers are left: for a program that has a moment to spare.
    /// The bytes written.
    ///
    /// # Errors
    /// [`Error::FileFull`], [`Error::Os`]: pages are where they were. [`Error::Forked`].
    pub fn clean(&self, most: Bytes) -> Result<Bytes, Error> {
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

    /// Writes pages if `len` bytes have no room; a number of bytes, 0 if nothing could be done.
    pub(super) fn clean_for(&self, len: usize) -> Result<u64, Error> {
        let mut hand = lock(&self.hand);
        if self.unsaved.has_room(len) {
            return Ok(len as u64);
        }
        self.counts.add(Counter::Waited, 1);
        self.clean_some(&mut hand, self.unsaved.get().to_write())
    }

    /// Writes what is beyond the limits.
    pub(super) fn clean_down(&self, hand: &mut usize) -> Result<(), Error> {
        let mut backoff = Backoff::default();
        loop {
            let state = self.unsaved.get();
            let (stored, limit) = (Bytes::new(state.charged), Bytes::new(state.limit()));
            if stored <= limit {
                return Ok(());
            }
            if !self.unsaved.has_file() {
                return Err(Error::PutBackBelowStored { stored, put_back: limit });
            }
            if self.clean_some(hand, stored.get() - limit.get())? == 0 {
                // Charged by a store that is about to publish it.
                backoff.wait();
            }
        }
    }

    /// Writes pages of `most` bytes and one more, at most a segment; how many bytes.
    fn clean_some(&self, hand: &mut usize, most: u64) -> Result<u64, Error> {
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

    /// Reads pages that the file does not have.
    fn gather(&self, hand: &mut usize, most: u64) -> Batch {
        let mut batch = Batch::default();
        // The chunk at the hand twice: there may be pages before those that were taken last.
        for _ in 0..=self.entries.chunks() {
            for (offset, was) in self.entries.chunk(*hand) {
                if batch.len() as u64 >= most {
                    return batch;
                }
                let Some(block) = was.copy.in_pool() else { continue };
                with_buffer(block.len, |bytes| {
                    // What is gone was replaced; what is damaged its load will say.
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
