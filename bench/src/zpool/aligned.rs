//! [`Aligned`]: a buffer at the start of a page, as direct I/O wants it.

use glebe::sys::page_size;

/// Bytes from the start of a page.
#[derive(Debug)]
pub(super) struct Aligned {
    bytes: Vec<u8>,
    skip: usize,
    len: usize,
}

impl Aligned {
    /// `len` zeros.
    pub(super) fn new(len: usize) -> Self {
        let page = page_size().bytes().as_usize();
        let bytes = vec![0; len + page];
        let skip = bytes.as_ptr().align_offset(page);
        Self { bytes, skip, len }
    }

    /// All of them.
    pub(super) fn bytes(&mut self) -> &mut [u8] {
        &mut self.bytes[self.skip..][..self.len]
    }

    /// Keeps the first `len` only.
    pub(super) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// All of them, to be read.
    pub(super) fn as_slice(&self) -> &[u8] {
        &self.bytes[self.skip..][..self.len]
    }
}
