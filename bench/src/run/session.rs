//! [`Session`]: the shortest client of PostgreSQL there can be: one text query at a time.
//!
//! Version 3 of the protocol, without passwords. A message is a byte for its kind, a length of four
//! bytes that counts itself, and a body. Source: *Message Formats* of PostgreSQL's manual.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::Outcome;

const VERSION: u32 = 3 << 16;
const WHO: &[u8] = b"user\0postgres\0database\0postgres\0\0";
const PATIENCE: Duration = Duration::from_secs(60);
const READY: u8 = b'Z';
const ROW: u8 = b'D';
const ERROR: u8 = b'E';
/// Bytes before the text of a row's first column: the number of columns and a length.
const ROW_HEAD: usize = 6;

pub(super) struct Session(UnixStream);

impl Session {
    /// Fails while the server starts.
    pub(super) fn open(socket: &Path) -> Outcome<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut this = Self(stream);
        let mut hello = framed(WHO.len() + size_of::<u32>())?;
        hello.extend(VERSION.to_be_bytes());
        hello.extend(WHO);
        this.0.write_all(&hello)?;
        this.until_ready()?;
        Ok(this)
    }

    /// Returns the first column of the last row.
    pub(super) fn query(&mut self, text: &str) -> Outcome<String> {
        let mut message = vec![b'Q'];
        message.extend(framed(text.len() + 1)?);
        message.extend(text.as_bytes());
        message.push(0);
        self.0.write_all(&message)?;
        self.until_ready()
    }

    fn until_ready(&mut self) -> Outcome<String> {
        let mut found = String::new();
        loop {
            let mut head = [0; 5];
            self.0.read_exact(&mut head)?;
            let [kind, len @ ..] = head;
            let len = (u32::from_be_bytes(len) as usize).checked_sub(size_of::<u32>());
            let mut body = vec![0; len.ok_or("a message of no length")?];
            self.0.read_exact(&mut body)?;
            match kind {
                READY => return Ok(found),
                ROW => {
                    let column = body.get(ROW_HEAD..).unwrap_or_default();
                    found = String::from_utf8_lossy(column).into_owned();
                }
                ERROR => {
                    let text = String::from_utf8_lossy(&body).replace('\0', " ");
                    return Err(format!("PostgreSQL: {}", text.trim()).into());
                }
                _ => {}
            }
        }
    }
}

/// Returns a length that counts itself and `len` bytes more.
fn framed(len: usize) -> Outcome<Vec<u8>> {
    Ok(u32::try_from(len + size_of::<u32>())?.to_be_bytes().to_vec())
}
