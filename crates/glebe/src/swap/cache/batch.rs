//! [`Batch`] collects blocks for the spill file.
//!
//! A batch takes several writes if no free run fits all blocks.

use super::entries::Entry;
use crate::swap::copies::{Copy, CopyBlock};
use crate::swap::error::SwapError;
use crate::swap::file::SpillFile;

#[derive(Clone, Copy, Debug)]
pub(super) struct Page {
    pub(super) offset: u64,
    /// The page's entry before the write, or a new page's unpublished entry.
    pub(super) was: Entry,
    pub(super) block: CopyBlock,
}

#[derive(Debug, Default)]
pub(super) struct Batch {
    pages: Vec<Page>,
    bytes: Vec<u8>,
}

impl Batch {
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn has(&self, offset: u64) -> bool {
        self.pages.iter().any(|page| page.offset == offset)
    }

    pub(super) fn push(&mut self, page: Page, bytes: &[u8]) {
        self.pages.push(page);
        self.bytes.extend_from_slice(bytes);
    }

    /// Empties the batch, also after an error.
    pub(super) fn write(
        &mut self,
        file: &SpillFile,
        mut placed: impl FnMut(Page, Copy, &[u8]),
    ) -> Result<(), SwapError> {
        let Self { pages, bytes } = std::mem::take(self);
        let (mut pages, mut rest) = (&pages[..], &bytes[..]);
        while let Some(first) = pages.first() {
            let all = pages.iter().map(|page| file.units(page.block.len)).sum();
            let run = file.take(file.units(first.block.len), all).ok_or_else(|| file.is_full())?;
            let (mut count, mut room) = (0, run.units());
            while let Some(page) = pages.get(count) {
                let Some(left) = room.checked_sub(file.units(page.block.len)) else { break };
                (count, room) = (count + 1, left);
            }
            let now;
            (now, pages) = pages.split_at(count);
            let starts = file.write(run, records(now, rest))?;
            for (page, start) in now.iter().zip(starts) {
                let bytes;
                (bytes, rest) = rest.split_at(page.block.len);
                placed(*page, page.block.moved_to_file(start), bytes);
            }
        }
        Ok(())
    }
}

fn records<'a>(
    pages: &'a [Page],
    mut bytes: &'a [u8],
) -> impl Iterator<Item = &'a [u8]> + Clone + 'a {
    pages.iter().map(move |page| {
        let record;
        (record, bytes) = bytes.split_at(page.block.len);
        record
    })
}
