//! Codecs of a pool: how the bytes of an object are stored.
//!
//! A [`Codec`] is what a caller chooses; [`Coder`] is it at work. Objects that are half a word over
//! and over are seen before any codec; what does not go to a smaller class when coded is stored as
//! it is. No header: a coded object shorter than a page has its length in the two bytes after what
//! the codec made. LZ4 and zstd are features of the crate; without them they are refused.
//!
//! Cost: LZ4 some 8 µs to code and 2 µs to decode a page of 4 KiB of text, zstd some 20 and 7.
//! Locks: one for the idle contexts of zstd, held to take one out or put it back.

#[cfg(feature = "lz4")]
mod lz4;
#[cfg(feature = "zstd")]
mod zstd;

use std::cell::RefCell;

use crate::sync::{AtomicU64, Ordering};
use crate::zpool::entry::word::{Entry, Kind};
use crate::zpool::error::{CodecError, Error};
use crate::zpool::objects::Stored;

/// Bytes of the length that follows the coded bytes of an object shorter than a page.
const LENGTH: usize = size_of::<u16>();

/// How objects are made smaller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Codec {
    /// Not at all. The default where the crate is built without `lz4`.
    #[cfg_attr(not(feature = "lz4"), default)]
    None,
    /// LZ4: quick both ways. With the feature `lz4`.
    #[cfg_attr(feature = "lz4", default)]
    Lz4,
    /// Zstandard: smaller, three times as long to read. With the feature `zstd`.
    Zstd(Zstd),
}

/// The level that codes a page four times as small as it was at LZ4's pace divided by three.
const ZSTD_LEVEL: i32 = 1;

/// How zstd codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Zstd {
    level: i32,
}

impl Default for Zstd {
    fn default() -> Self {
        Self::new(ZSTD_LEVEL)
    }
}

impl Zstd {
    /// At a level of zstd's own; higher is smaller and slower, below zero quicker.
    #[must_use]
    pub fn new(level: i32) -> Self {
        Self { level }
    }
}

/// Bytes of a word.
const WORD: usize = size_of::<u64>();

/// The word that fills all of `object`, which is a whole number of words.
pub(crate) fn same_filled(object: &[u8]) -> Option<u64> {
    let word = object.first_chunk::<WORD>()?;
    let whole = object.len() % WORD == 0;
    // Most objects that are not filled differ at their end already.
    let filled = whole && object.ends_with(word) && object[WORD..] == object[..object.len() - WORD];
    filled.then(|| u64::from_le_bytes(*word))
}

/// A codec at work.
#[derive(Debug)]
enum Engine {
    None,
    #[cfg(feature = "lz4")]
    Lz4,
    #[cfg(feature = "zstd")]
    Zstd(zstd::Contexts),
}

impl Engine {
    #[cfg_attr(not(feature = "zstd"), allow(unused_variables))]
    fn new(codec: &Codec, page: usize) -> Result<Self, CodecError> {
        match codec {
            Codec::None => Ok(Self::None),
            #[cfg(feature = "lz4")]
            Codec::Lz4 => Ok(Self::Lz4),
            #[cfg(feature = "zstd")]
            Codec::Zstd(how) => Ok(Self::Zstd(zstd::Contexts::new(*how, page)?)),
            #[allow(unreachable_patterns)] // with both features
            Codec::Lz4 => Err(CodecError::Missing { codec: "lz4" }),
            #[allow(unreachable_patterns)]
            Codec::Zstd(_) => Err(CodecError::Missing { codec: "zstd" }),
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Self::None => "no codec",
            #[cfg(feature = "lz4")]
            Self::Lz4 => "LZ4",
            #[cfg(feature = "zstd")]
            Self::Zstd(_) => "zstd",
        }
    }

    /// The most bytes that `len` bytes become.
    fn bound(&self, len: usize) -> usize {
        match self {
            Self::None => len,
            #[cfg(feature = "lz4")]
            Self::Lz4 => lz4::bound(len),
            #[cfg(feature = "zstd")]
            Self::Zstd(_) => zstd::bound(len),
        }
    }

    /// Codes into `out`, which has [`Engine::bound`] bytes; how many are used.
    fn encode(&self, object: &[u8], out: &mut [u8]) -> Option<usize> {
        match self {
            Self::None => {
                let _ = (object, out);
                None
            }
            #[cfg(feature = "lz4")]
            Self::Lz4 => lz4::encode(object, out),
            #[cfg(feature = "zstd")]
            Self::Zstd(contexts) => contexts.encode(object, out),
        }
    }

    /// Decodes into `out`; how many bytes that made, or what is wrong.
    fn decode(
        &self,
        coded: &[u8],
        out: &mut [u8],
    ) -> Result<Result<usize, &'static str>, CodecError> {
        match self {
            Self::None => {
                let _ = (coded, out);
                Ok(Err("nothing was coded"))
            }
            #[cfg(feature = "lz4")]
            Self::Lz4 => Ok(lz4::decode(coded, out)),
            #[cfg(feature = "zstd")]
            Self::Zstd(contexts) => contexts.decode(coded, out),
        }
    }
}

/// A codec at work, for many threads.
#[derive(Debug)]
pub(crate) struct Coder {
    engine: Engine,
    page: usize,
    /// Bytes of the working state when they were counted last.
    counted: AtomicU64,
}

thread_local! {
    static BUFFERS: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// A buffer of `len` bytes, kept by the thread; contents unspecified. Another one within `work`.
pub(crate) fn with_buffer<R>(len: usize, work: impl FnOnce(&mut [u8]) -> R) -> R {
    // In a destructor of the thread's there are none any more.
    let kept = BUFFERS.try_with(|kept| kept.borrow_mut().pop());
    let mut buffer = kept.ok().flatten().unwrap_or_default();
    if buffer.len() < len {
        buffer.resize(len, 0);
    }
    let done = work(&mut buffer[..len]);
    let _ = BUFFERS.try_with(|kept| kept.borrow_mut().push(buffer));
    done
}

/// Writes `word` over and over.
fn fill(out: &mut [u8], word: [u8; WORD / 2]) {
    out.chunks_mut(word.len()).for_each(|chunk| chunk.copy_from_slice(&word[..chunk.len()]));
}

impl Coder {
    /// For objects of at most `page` bytes, which is at most 64 KiB.
    ///
    /// # Errors
    /// [`CodecError::Missing`], [`CodecError::Level`], [`CodecError::NoMemory`].
    pub(crate) fn new(codec: &Codec, page: usize) -> Result<Self, CodecError> {
        Ok(Self { engine: Engine::new(codec, page)?, page, counted: AtomicU64::new(0) })
    }

    /// Whether objects are stored as they are.
    #[inline]
    pub(crate) fn is_off(&self) -> bool {
        matches!(self.engine, Engine::None)
    }

    /// Makes of an object what a pool stores. `pays` says of a number of bytes whether they go to
    /// a smaller class than the object as it is.
    pub(crate) fn stored<R>(
        &self,
        object: &[u8],
        pays: impl Fn(usize) -> bool,
        store: impl FnOnce(Stored<'_>) -> R,
    ) -> R {
        let len = object.len();
        match same_filled(object) {
            Some(word) if word >> u32::BITS == word & u64::from(u32::MAX) => {
                store(Stored::Filled { fill: word as u32, len })
            }
            _ => self.encode(object, len, |kind, bytes| match kind {
                Kind::Raw => store(Stored::raw(object)),
                _ if !pays(bytes.len()) => store(Stored::raw(object)),
                kind => store(Stored::Bytes { kind, bytes, len }),
            }),
        }
    }

    /// Codes an object, if that makes it at most `limit` bytes long, and hands it to `store`.
    pub(crate) fn encode<R>(
        &self,
        object: &[u8],
        limit: usize,
        store: impl FnOnce(Kind, &[u8]) -> R,
    ) -> R {
        // LZ4's own state goes before the buffer of a thread that ends.
        if self.is_off() || BUFFERS.try_with(|_| ()).is_err() {
            return store(Kind::Raw, object);
        }
        let (kind, tail) =
            if object.len() < self.page { (Kind::Short, LENGTH) } else { (Kind::Coded, 0) };
        with_buffer(self.engine.bound(object.len()) + LENGTH, |buffer| {
            match self.engine.encode(object, buffer) {
                Some(len) if len + tail <= limit.min(object.len().saturating_sub(1)) => {
                    let length = (object.len() as u16).to_le_bytes();
                    buffer[len..len + tail].copy_from_slice(&length[..tail]);
                    store(kind, &buffer[..len + tail])
                }
                _ => store(Kind::Raw, object),
            }
        })
    }

    /// The length of an object whose stored bytes are `stored`.
    ///
    /// # Errors
    /// [`CodecError::Corrupt`].
    pub(crate) fn len(&self, entry: Entry, stored: &[u8]) -> Result<usize, Error> {
        match entry.kind() {
            Kind::Coded | Kind::Short => self.coded_len(entry.kind(), stored),
            Kind::Free | Kind::Raw | Kind::Filled => Ok(entry.bytes()),
        }
    }

    fn coded_len(&self, kind: Kind, stored: &[u8]) -> Result<usize, Error> {
        if kind == Kind::Coded {
            return Ok(self.page);
        }
        let length = stored.last_chunk().map(|two| usize::from(u16::from_le_bytes(*two)));
        length
            .filter(|len| (1..self.page).contains(len))
            .ok_or_else(|| self.corrupt(stored, "its length is not that of an object below a page"))
    }

    /// Writes an object to the start of `out`; its length. On an error `out` may hold anything.
    ///
    /// # Errors
    /// [`CodecError::Corrupt`], [`CodecError::NoMemory`], [`Error::BufferTooSmall`].
    pub(crate) fn decode(
        &self,
        entry: Entry,
        stored: &[u8],
        out: &mut [u8],
    ) -> Result<usize, Error> {
        if matches!(entry.kind(), Kind::Coded | Kind::Short) {
            return self.decode_coded(entry.kind(), stored, out);
        }
        let out = start_of(out, entry.bytes())?;
        match entry.kind() {
            Kind::Filled => fill(out, entry.fill().to_le_bytes()),
            _ => out.copy_from_slice(stored),
        }
        Ok(out.len())
    }

    /// Codes an object of any length, if that makes it at most `limit` bytes long, and hands it to
    /// `store`.
    pub(crate) fn encode_block<R>(
        &self,
        object: &[u8],
        limit: usize,
        store: impl FnOnce(Option<&[u8]>) -> R,
    ) -> R {
        // LZ4's own state goes before the buffer of a thread that ends.
        if self.is_off() || BUFFERS.try_with(|_| ()).is_err() {
            return store(None);
        }
        with_buffer(self.engine.bound(object.len()), |buffer| {
            let coded = self.engine.encode(object, buffer).filter(|len| *len <= limit);
            store(coded.map(|len| &buffer[..len]))
        })
    }

    /// Decodes what [`Coder::encode_block`] made of an object as long as `out`.
    ///
    /// # Errors
    /// [`CodecError::Corrupt`], [`CodecError::NoMemory`].
    pub(crate) fn decode_block(&self, coded: &[u8], out: &mut [u8]) -> Result<(), Error> {
        let len = out.len();
        match self.engine.decode(coded, out).map_err(Error::Codec)? {
            Ok(made) if made == len => Ok(()),
            Ok(_) => Err(self.corrupt(coded, "it makes an object of another length")),
            Err(what) => Err(self.corrupt(coded, what)),
        }
    }

    /// As [`Coder::decode`], of what [`Coder::encode`] made.
    pub(crate) fn decode_coded(
        &self,
        kind: Kind,
        stored: &[u8],
        out: &mut [u8],
    ) -> Result<usize, Error> {
        let len = self.coded_len(kind, stored)?;
        let out = start_of(out, len)?;
        let tail = if kind == Kind::Short { LENGTH } else { 0 };
        match self.engine.decode(&stored[..stored.len() - tail], out).map_err(Error::Codec)? {
            Ok(made) if made == len => Ok(len),
            Ok(_) => Err(self.corrupt(stored, "it makes an object of another length")),
            Err(what) => Err(self.corrupt(stored, what)),
        }
    }

    fn corrupt(&self, stored: &[u8], what: &'static str) -> Error {
        let (len, codec) = (stored.len(), self.engine.name());
        Error::Codec(CodecError::Corrupt { len, codec, what })
    }

    /// Bytes of the working state.
    #[inline]
    fn bytes(&self) -> u64 {
        match &self.engine {
            #[cfg(feature = "zstd")]
            Engine::Zstd(contexts) => contexts.bytes(),
            _ => 0,
        }
    }

    /// Whether the working state is not what was counted.
    #[inline]
    pub(crate) fn has_grown(&self) -> bool {
        self.bytes() != self.counted.load(Ordering::Relaxed)
    }

    /// Counts the bytes of the working state: those that were counted before, and those of now.
    pub(crate) fn count(&self) -> (u64, u64) {
        let now = self.bytes();
        (self.counted.swap(now, Ordering::Relaxed), now)
    }
}

/// The first `len` bytes of a buffer.
fn start_of(out: &mut [u8], len: usize) -> Result<&mut [u8], Error> {
    let given = out.len();
    out.get_mut(..len).ok_or(Error::BufferTooSmall { given, len })
}

#[cfg(all(test, feature = "lz4", feature = "zstd"))]
mod tests;
