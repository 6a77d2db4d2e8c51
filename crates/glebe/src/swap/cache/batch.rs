//! [`Batch`]: blocks on their way to the file.
//!
//! Where the file has no free run for all of them they go in several writes. Each block is handed
//! on as soon as it is in the file, so that an error loses none that came before.

use super::entries::Entry;
use crate::swap::copies::{Block, Copy};
use crate::swap::error::Error;
use crate::swap::file::SpillFile;

/// A page of a batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Page {
    pub(super) offset: u64,
    /// What its entry is; of a new page nothing that anybody has seen.
    pub(super) was: Entry,
    pub(super) block: Block,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pages: Vec<Page>,
    /// The blocks, one behind the other.
    bytes: Vec<u8>,
}

impl Batch {
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn push(&mut self, page: Page, bytes: &[u8]) {
        self.pages.push(page);
        self.bytes.extend_from_slice(bytes);
    }

    /// Writes all blocks, and hands each page to `placed`, with its copy in the file and its bytes.
    /// The batch is empty then, also after an error.
    pub(super) fn write(
        &mut self,
        file: &SpillFile,
        mut placed: impl FnMut(Page, Copy, &[u8]),
    ) -> Result<(), Error> {
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

/// The bytes of each page.
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
