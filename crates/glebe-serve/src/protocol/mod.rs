//! The memcached protocol as bytes: what a client asks, found in a buffer without copying.
//!
//! [`line()`] finds the end of a command line, [`parse`] says what the line asks for, as slices of
//! it. Values are not looked at: a storing command says how many bytes follow. Pure, no I/O. Each
//! length has a limit: a line, a key, a value, a number, the flags of a meta command. A line that
//! asks for many keys may be longer, and is then taken by pieces.
//!
//! Classic commands are in `text`, meta commands in `meta`; `binary` refuses its protocol. Source:
//! memcached's protocol.txt.

mod binary;
mod meta;
mod text;
mod tokens;

pub use binary::{Request, HEAD as BINARY_HEAD};
pub use meta::{Flags, Mode};

use tokens::Tokens;

/// Bytes of a key at most.
pub const KEY_MAX: usize = 250;
/// Bytes of a line at most, its end included, unless it asks for many keys.
pub const LINE_MAX: usize = 2048;
/// Bytes of a line that asks for many keys, after which it is not waited for its end.
pub const KEYS_PIECE: usize = 16 << 10;

/// What a client is told where its line is wrong.
pub const BAD_FORMAT: &str = "CLIENT_ERROR bad command line format";
const BAD_CHUNK: &str = "CLIENT_ERROR bad data chunk";
const BAD_EXPTIME: &str = "CLIENT_ERROR invalid exptime argument";
const BAD_DELTA: &str = "CLIENT_ERROR invalid numeric delta argument";
const UNKNOWN: &str = "ERROR";

/// What is at the start of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line<'a> {
    /// A line without its end, and its bytes with it.
    Whole(&'a [u8], usize),
    /// The beginning of a long line that asks for many keys.
    Keys(&'a [u8]),
    /// A request of the binary protocol, which has no lines: its head.
    Binary(Request),
    /// More bytes are needed.
    Partial,
    /// More bytes than a line may have, and none of them ends it.
    TooLong,
}

/// The first line of `buf`. A bare line feed ends one, too. O(length).
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

/// Whether `buf` is the beginning of a line that asks for keys. O(length).
#[must_use]
pub fn is_open(buf: &[u8]) -> bool {
    asks_for_keys(buf) && memchr::memchr(b'\n', buf).is_none()
}

fn asks_for_keys(buf: &[u8]) -> bool {
    text::is_get(Tokens::new(buf).next().unwrap_or_default())
}

/// How a classic command stores a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Whether or not there is one.
    Set,
    /// Only where there is none.
    Add,
    /// Only where there is one.
    Replace,
    /// Behind the one that there is.
    Append,
    /// Before the one that there is.
    Prepend,
    /// Only over the one with this number.
    Cas(u64),
}

/// A key as a client sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key<'a> {
    /// The bytes on the line.
    pub sent: &'a [u8],
    /// Whether they are base64 of the key.
    pub is_base64: bool,
}

/// What a line asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// `get`, `gets`, `gat`, `gats`: the values of keys, of which there is at least one.
    Get {
        /// The keys, with blanks between them. None is longer than [`KEY_MAX`].
        keys: &'a [u8],
        /// Whether each value's number is wanted.
        cas: bool,
        /// The new time to live, as sent.
        touch: Option<i64>,
    },
    /// A value follows.
    Store {
        /// The key.
        key: &'a [u8],
        /// How it is stored.
        verb: Verb,
        /// The client's own flags.
        flags: u32,
        /// When it ends, as sent.
        exptime: i64,
        /// Bytes of the value, without its line's end.
        len: u64,
        /// Whether no answer is wanted.
        noreply: bool,
    },
    /// `delete`.
    Delete {
        /// The key.
        key: &'a [u8],
        /// Whether no answer is wanted.
        noreply: bool,
    },
    /// `incr` and `decr`.
    Arithmetic {
        /// The key.
        key: &'a [u8],
        /// What is added.
        delta: u64,
        /// Or rather taken away.
        down: bool,
        /// Whether no answer is wanted.
        noreply: bool,
    },
    /// `touch`.
    Touch {
        /// The key.
        key: &'a [u8],
        /// When it ends, as sent.
        exptime: i64,
        /// Whether no answer is wanted.
        noreply: bool,
    },
    /// `flush_all`.
    FlushAll {
        /// When, as sent; at once without.
        delay: Option<i64>,
        /// Whether no answer is wanted.
        noreply: bool,
    },
    /// `verbosity`.
    Verbosity {
        /// Whether no answer is wanted.
        noreply: bool,
    },
    /// `version`.
    Version,
    /// `stats`, with its further words.
    Stats(&'a [u8]),
    /// `quit`.
    Quit,
    /// `shutdown`.
    Shutdown,
    /// `mg`.
    MetaGet(Key<'a>, Flags<'a>),
    /// `ms`, with the bytes of the value that follows.
    MetaSet(Key<'a>, u64, Flags<'a>),
    /// `md`.
    MetaDelete(Key<'a>, Flags<'a>),
    /// `ma`.
    MetaArithmetic(Key<'a>, Flags<'a>),
    /// `mn`.
    MetaNoop,
    /// `me`.
    MetaDebug(Key<'a>),
    /// A command of administration that has no meaning here, or one for tests.
    Other {
        /// Its words.
        line: &'a [u8],
        /// Whether no answer is wanted.
        noreply: bool,
    },
    /// The line is wrong.
    Wrong {
        /// What the client is told.
        answer: &'static str,
        /// Bytes of a value that follows all the same, its line's end included.
        swallow: u64,
        /// Whether no answer is wanted.
        noreply: bool,
    },
    /// The connection ends without an answer: the client speaks HTTP, or wants no answer to a line
    /// that does not say where the next one begins.
    Lost,
}

impl Command<'_> {
    const fn wrong(answer: &'static str) -> Self {
        Self::Wrong { answer, swallow: 0, noreply: false }
    }
}

/// What `line`, which has no end of its own, asks for. O(length).
#[must_use]
pub fn parse(line: &[u8]) -> Command<'_> {
    let mut tokens = Tokens::new(line);
    let Some(verb) = tokens.next() else { return Command::wrong(BAD_FORMAT) };
    match verb {
        b"mg" | b"ms" | b"md" | b"ma" | b"mn" | b"me" => meta::parse(verb, tokens),
        _ => text::parse(verb, tokens, line),
    }
}
