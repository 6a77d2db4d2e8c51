//! Parses the memcached protocol in a buffer, without copying and without I/O.
//!
//! Function [`line()`] finds a line's end, [`parse`] parses the line. Values are not parsed: a
//! storing command says how many bytes follow. Lines, keys, numbers and opaque flags have maximum
//! lengths. A line of keys may be longer; the caller handles it in pieces. Source: memcached's
//! protocol.txt.

mod binary;
mod meta;
mod text;
mod tokens;

pub use binary::{Request, HEAD as BINARY_HEAD};
pub use meta::{Flags, Mode};

use tokens::Tokens;

/// Maximum bytes of a key.
pub const KEY_MAX: usize = 250;
/// Maximum bytes of a line with its end, unless the line asks for keys.
pub const LINE_MAX: usize = 2048;
/// Bytes above which an incomplete line of keys is returned as [`Line::Keys`].
pub const KEYS_PIECE: usize = 16 << 10;

/// Answer to a malformed line.
pub const BAD_FORMAT: &str = "CLIENT_ERROR bad command line format";
const BAD_CHUNK: &str = "CLIENT_ERROR bad data chunk";
const BAD_EXPTIME: &str = "CLIENT_ERROR invalid exptime argument";
const BAD_DELTA: &str = "CLIENT_ERROR invalid numeric delta argument";
const UNKNOWN: &str = "ERROR";

/// The input at the start of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line<'a> {
    /// A complete line without its end, and its length in bytes with the end.
    Whole(&'a [u8], usize),
    /// The beginning of a long line of keys.
    Keys(&'a [u8]),
    /// The head of a binary request, which has no lines.
    Binary(Request),
    /// More bytes are needed.
    Partial,
    /// No line end within [`LINE_MAX`] bytes.
    TooLong,
}

/// Returns the first line of `buf`, ended by CR LF or LF, or the reason why there is none.
/// O(length).
#[must_use]
pub fn line(buf: &[u8]) -> Line<'_> {
    if buf.first() == Some(&binary::REQUEST) {
        let head = buf.first_chunk();
        return head.map_or(Line::Partial, |head| Line::Binary(Request::of(head)));
    }
    let found = memchr::memchr(b'\n', buf);
    let used = found.map_or(buf.len(), |end| end + 1);
    if used > LINE_MAX && !asks_for_keys(buf) {
        return Line::TooLong;
    }
    let Some(end) = found else {
        return if used > KEYS_PIECE { Line::Keys(buf) } else { Line::Partial };
    };
    let line = &buf[..end];
    Line::Whole(line.strip_suffix(b"\r").unwrap_or(line), end + 1)
}

/// Returns true if `buf` begins an incomplete line of keys. O(length).
#[must_use]
pub fn is_open(buf: &[u8]) -> bool {
    asks_for_keys(buf) && memchr::memchr(b'\n', buf).is_none()
}

fn asks_for_keys(buf: &[u8]) -> bool {
    text::is_get(Tokens::new(buf).next().unwrap_or_default())
}

/// The classic commands that store a value, and when they store it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Always.
    Set,
    /// Only if the key is missing.
    Add,
    /// Only if the key exists.
    Replace,
    /// Appends.
    Append,
    /// Prepends.
    Prepend,
    /// Only over the item with this CAS number.
    Cas(u64),
}

/// A key as a client sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key<'a> {
    /// Bytes on the line.
    pub sent: &'a [u8],
    /// True for base64.
    pub is_base64: bool,
}

/// The command of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// `get`, `gets`, `gat`, `gats`.
    Get {
        /// At least one key, separated by blanks, each at most [`KEY_MAX`] bytes.
        keys: &'a [u8],
        /// CAS numbers are wanted.
        cas: bool,
        /// New expiry time as sent.
        touch: Option<i64>,
    },
    /// A value follows.
    Store {
        /// The key.
        key: &'a [u8],
        /// The command.
        verb: Verb,
        /// Client flags.
        flags: u32,
        /// Expiry time as sent.
        exptime: i64,
        /// Bytes of the value.
        len: u64,
        /// No answer wanted.
        noreply: bool,
    },
    /// `delete`.
    Delete {
        /// The key.
        key: &'a [u8],
        /// No answer wanted.
        noreply: bool,
    },
    /// `incr` and `decr`.
    Arithmetic {
        /// The key.
        key: &'a [u8],
        /// Amount to add or subtract.
        delta: u64,
        /// Subtracts instead of adding.
        down: bool,
        /// No answer wanted.
        noreply: bool,
    },
    /// `touch`.
    Touch {
        /// The key.
        key: &'a [u8],
        /// Expiry time as sent.
        exptime: i64,
        /// No answer wanted.
        noreply: bool,
    },
    /// `flush_all`.
    FlushAll {
        /// Time as sent; `None`: at once.
        delay: Option<i64>,
        /// No answer wanted.
        noreply: bool,
    },
    /// `verbosity`.
    Verbosity {
        /// The level of the log, if the line has one.
        level: Option<u32>,
        /// No answer wanted.
        noreply: bool,
    },
    /// `version`.
    Version,
    /// `stats` and its words.
    Stats(&'a [u8]),
    /// `quit`.
    Quit,
    /// `shutdown`.
    Shutdown,
    /// `mg`.
    MetaGet(Key<'a>, Flags<'a>),
    /// `ms`, with the bytes of the value.
    MetaSet(Key<'a>, u64, Flags<'a>),
    /// `md`.
    MetaDelete(Key<'a>, Flags<'a>),
    /// `ma`.
    MetaArithmetic(Key<'a>, Flags<'a>),
    /// `mn`.
    MetaNoop,
    /// `me`.
    MetaDebug(Key<'a>),
    /// A command for administration or tests.
    Other {
        /// The line.
        line: &'a [u8],
        /// No answer wanted.
        noreply: bool,
    },
    /// A malformed line.
    Wrong {
        /// The answer.
        answer: &'static str,
        /// Bytes to skip: the value that follows, with its line end.
        swallow: u64,
        /// No answer wanted.
        noreply: bool,
    },
    /// The connection must end without an answer, because the client speaks HTTP, or because a
    /// value of unknown length may follow a malformed line with `noreply`.
    Lost,
}

impl Command<'_> {
    const fn wrong(answer: &'static str) -> Self {
        Self::Wrong { answer, swallow: 0, noreply: false }
    }
}

/// Parses `line`, given without its end. O(length).
#[must_use]
pub fn parse(line: &[u8]) -> Command<'_> {
    let mut tokens = Tokens::new(line);
    let Some(verb) = tokens.next() else { return Command::wrong(BAD_FORMAT) };
    match verb {
        b"mg" | b"ms" | b"md" | b"ma" | b"mn" | b"me" => meta::parse(verb, tokens),
        _ => text::parse(verb, tokens, line),
    }
}
