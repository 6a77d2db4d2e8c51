//! [`Packed`]: a file's pages, each deflated on its own, in ordinary memory.
//!
//! Raw deflate at its fastest level; the level changes the size and hardly the price of inflating.
//! Every page is stored whole, zeros after the end of the file included. Cost of a read: one
//! inflate of a page (tens of microseconds for 4 KiB), with the state kept per thread.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};
use glebe::sys::page_size;

/// Deflated pages back to back.
#[derive(Debug)]
pub(super) struct Packed {
    bytes: Vec<u8>,
    /// End of each page in `bytes`.
    ends: Vec<usize>,
}

impl Packed {
    /// Reads and deflates the first `pages` of a file of `len` bytes.
    ///
    /// Fails with `UnexpectedEof` if the file is shorter than that by now.
    pub(super) fn of(file: &File, len: u64, pages: u64) -> io::Result<Self> {
        let size = page_size().bytes().get();
        let mut page = vec![0; size as usize];
        let mut deflated = Vec::with_capacity(2 * page.len());
        let mut state = Compress::new(Compression::fast(), false);
        let mut packed = Self { bytes: Vec::new(), ends: Vec::new() };
        for index in 0..pages {
            let start = index * size;
            let part = (len - start).min(size) as usize;
            file.read_exact_at(&mut page[..part], start)?;
            page[part..].fill(0);
            state.reset();
            deflated.clear();
            let status = state.compress_vec(&page, &mut deflated, FlushCompress::Finish)?;
            if !matches!(status, Status::StreamEnd) {
                return Err(io::ErrorKind::InvalidData.into());
            }
            packed.bytes.extend_from_slice(&deflated);
            packed.ends.push(packed.bytes.len());
        }
        packed.bytes.shrink_to_fit();
        Ok(packed)
    }

    /// Inflates page `index` into `page`.
    pub(super) fn read(&self, index: u64, page: &mut [u8]) -> io::Result<()> {
        thread_local! {
            static STATE: RefCell<Decompress> = RefCell::new(Decompress::new(false));
        }
        let index = index as usize;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        let deflated = &self.bytes[start..self.ends[index]];
        STATE.with_borrow_mut(|state| {
            state.reset(false);
            let status = state.decompress(deflated, page, FlushDecompress::Finish)?;
            match status {
                Status::StreamEnd if state.total_out() == page.len() as u64 => Ok(()),
                _ => Err(io::ErrorKind::InvalidData.into()),
            }
        })
    }
}
