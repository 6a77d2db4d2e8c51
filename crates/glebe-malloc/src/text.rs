//! [`Out`]: text to a file in pieces of some length, without allocation.
//!
//! Made for signal handlers, for malloc, and for the end of a process. What cannot be written is
//! lost: nobody could be told.

use core::fmt;

use glebe::sys::plain_file::{self, Plain};

/// A piece: small, as a signal handler's stack may be.
const PIECE: usize = 512;

/// Text on its way to a file. The last piece is written when it is dropped.
#[derive(Debug)]
pub struct Out<'a> {
    to: &'a Plain,
    piece: [u8; PIECE],
    len: usize,
}

impl<'a> Out<'a> {
    /// Text to this file.
    #[must_use]
    pub fn new(to: &'a Plain) -> Self {
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

/// Bytes as people can read them: what is no printable ASCII becomes `?`, what is long is cut.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a>(pub &'a [u8]);

/// Characters of what is shown.
const SHOWN: usize = 60;

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        for &byte in self.0.iter().take(SHOWN) {
            let is_plain = byte == b' ' || byte.is_ascii_graphic();
            fmt::Write::write_char(f, if is_plain { byte as char } else { '?' })?;
        }
        f.write_str(if self.0.len() > SHOWN { "..." } else { "" })
    }
}
