//! [`Out`] writes text to a file in short pieces without allocating: in signal handlers, in malloc,
//! at exit. Text that cannot be written is lost.

use core::fmt;

use glebe::internal::sys::files::plain_file::{self, Plain};

/// Bytes of a piece; few, because a signal handler's stack may be small.
const PIECE: usize = 512;

/// Text on its way to a file. Dropping it writes the last piece.
#[derive(Debug)]
pub struct Out<'a> {
    to: &'a Plain,
    piece: [u8; PIECE],
    len: usize,
}

impl<'a> Out<'a> {
    /// Returns an empty text.
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

/// Bytes as readable text: `?` replaces unprintable bytes, and long text is cut.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a>(pub &'a [u8]);

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
