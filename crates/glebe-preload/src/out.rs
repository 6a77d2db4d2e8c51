//! [`Out`]: text to a file in pieces of some length, without allocation.

use core::fmt;

use glebe::sys::plain_file::{self, Plain};

/// A piece: small, as a signal handler's stack may be.
const PIECE: usize = 512;

/// Text on its way to a file; the last piece is written when dropped. What has no room is lost.
pub(crate) struct Out<'a> {
    to: &'a Plain,
    piece: [u8; PIECE],
    len: usize,
}

impl<'a> Out<'a> {
    pub(crate) fn new(to: &'a Plain) -> Self {
        Self { to, piece: [0; PIECE], len: 0 }
    }

    fn flush(&mut self) {
        plain_file::write(self.to, &self.piece[..self.len]);
        self.len = 0;
    }
}

impl fmt::Write for Out<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for part in text.as_bytes().chunks(PIECE) {
            if self.len + part.len() > PIECE {
                self.flush();
            }
            self.piece[self.len..self.len + part.len()].copy_from_slice(part);
            self.len += part.len();
        }
        Ok(())
    }
}

impl Drop for Out<'_> {
    fn drop(&mut self) {
        self.flush();
    }
}
