//! Codecs of a pool: how the bytes of an object are stored.
//!
//! A [`Codec`] is what a caller chooses; [`Coder`] is it at work. Each object has a [`Form`], so
//! objects of several codecs lie in one pool. What does not shrink is stored as it is. No header:
//! an object shorter than a page has its length in the two bytes after what the codec made.
//!
//! Cost: LZ4 some 8 µs to code and 2 µs to decode a page of 4 KiB of text, zstd some 20 and 7.
//! Locks: one for the idle contexts of zstd, held to take one out or put it back.

pub(crate) mod coding;
mod dictionary;
mod lz4;
mod zstd;

pub use dictionary::Dictionary;
pub use zstd::Zstd;

use std::cell::RefCell;

/// Bytes of the length that follows the coded bytes of an object shorter than a page.
const LENGTH: usize = size_of::<u16>();

/// How objects are made smaller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Codec {
    /// Not at all.
    None,
    /// LZ4: quick both ways.
    #[default]
    Lz4,
    /// Zstandard: smaller, three times as long to read.
    Zstd(Zstd),
}

/// How the bytes of an object are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// As they are.
    Raw,
    /// A page, coded by LZ4.
    Lz4,
    /// Less than a page, coded by LZ4.
    ShortLz4,
    /// A page, coded by zstd.
    Zstd,
    /// Less than a page, coded by zstd.
    ShortZstd,
}

/// What a codec was given or made that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// Stored bytes that no coder made.
    #[error("{len} stored bytes are not what {codec} makes of an object: {what}")]
    Corrupt {
        /// Of the stored bytes.
        len: usize,
        /// Which codec was to read them.
        codec: &'static str,
        /// What it says of them.
        what: &'static str,
    },
    /// The caller's buffer is shorter than the object.
    #[error("a buffer of {given} bytes for an object of {needed}")]
    Buffer {
        /// Bytes of the buffer.
        given: usize,
        /// Bytes of the object.
        needed: usize,
    },
    /// A level that zstd does not have.
    #[error("zstd level {given}: it has {min} to {max}")]
    Level {
        /// The level asked for.
        given: i32,
        /// The lowest.
        min: i32,
        /// The highest.
        max: i32,
    },
    /// Bytes that are no dictionary.
    #[error("{len} bytes are not a dictionary of zstd: {what}")]
    Dictionary {
        /// How many bytes.
        len: usize,
        /// What is wrong.
        what: &'static str,
    },
    /// Samples from which no dictionary can be made.
    #[error("no dictionary of {size} bytes from {samples} samples of {bytes} bytes: {what}")]
    Training {
        /// The size asked for.
        size: usize,
        /// How many samples.
        samples: usize,
        /// Bytes of all of them.
        bytes: usize,
        /// What zstd says.
        what: &'static str,
    },
    /// No memory for a coder's working state.
    #[error("no memory for a {what} of zstd")]
    NoMemory {
        /// Which state.
        what: &'static str,
    },
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

/// A codec at work, for many threads.
#[derive(Debug)]
pub(crate) struct Coder {
    codec: Codec,
    page: usize,
    zstd: zstd::Contexts,
}

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A buffer of `len` bytes, kept by the thread; contents unspecified.
fn with_scratch<R>(len: usize, work: impl FnOnce(&mut [u8]) -> R) -> R {
    // In a destructor of the thread's there is none any more.
    let mut buffer = SCRATCH.try_with(RefCell::take).unwrap_or_default();
    if buffer.len() < len {
        buffer.resize(len, 0);
    }
    let done = work(&mut buffer[..len]);
    let _ = SCRATCH.try_with(|kept| kept.replace(buffer));
    done
}

impl Coder {
    /// For objects of at most `page` bytes, which is at most 64 KiB.
    ///
    /// # Errors
    /// [`CodecError::Level`], [`CodecError::NoMemory`].
    pub(crate) fn new(codec: Codec, page: usize) -> Result<Self, CodecError> {
        let zstd = match &codec {
            Codec::Zstd(zstd) => zstd::Contexts::ready(zstd.clone(), page)?,
            _ => zstd::Contexts::new(Zstd::default())?,
        };
        Ok(Self { codec, page, zstd })
    }

    /// Codes an object, if that makes it at most `limit` bytes long, and hands it to `store`.
    pub(crate) fn encode<R>(
        &self,
        object: &[u8],
        limit: usize,
        store: impl FnOnce(Form, &[u8]) -> R,
    ) -> R {
        let short = object.len() < self.page;
        let bound = match self.codec {
            Codec::None => return store(Form::Raw, object),
            // LZ4's own state went before that.
            _ if SCRATCH.try_with(|_| ()).is_err() => return store(Form::Raw, object),
            Codec::Lz4 => lz4::bound(object.len()),
            Codec::Zstd(_) => zstd::bound(object.len()),
        };
        with_scratch(bound + LENGTH, |buffer| {
            let (coded, forms) = match self.codec {
                Codec::Zstd(_) => (self.zstd.encode(object, buffer), (Form::Zstd, Form::ShortZstd)),
                _ => (lz4::encode(object, buffer), (Form::Lz4, Form::ShortLz4)),
            };
            let tail = if short { LENGTH } else { 0 };
            match coded {
                Some(len) if len + tail <= limit.min(object.len().saturating_sub(1)) => {
                    if short {
                        let length = (object.len() as u16).to_le_bytes();
                        buffer[len..len + LENGTH].copy_from_slice(&length);
                    }
                    let form = if short { forms.1 } else { forms.0 };
                    store(form, &buffer[..len + tail])
                }
                _ => store(Form::Raw, object),
            }
        })
    }

    /// Bytes of the object that `stored` holds.
    ///
    /// # Errors
    /// [`CodecError::Corrupt`].
    pub(crate) fn len(&self, form: Form, stored: &[u8]) -> Result<usize, CodecError> {
        match form {
            Form::Raw => Ok(stored.len()),
            Form::Lz4 | Form::Zstd => Ok(self.page),
            Form::ShortLz4 | Form::ShortZstd => {
                let length = stored.last_chunk().map(|two| usize::from(u16::from_le_bytes(*two)));
                length.filter(|len| (1..self.page).contains(len)).ok_or_else(|| {
                    form.corrupt(stored, "its length is not that of an object below a page")
                })
            }
        }
    }

    /// Decodes an object into the start of `out`; its length. On an error `out` may hold
    /// anything.
    ///
    /// # Errors
    /// [`CodecError::Corrupt`], [`CodecError::Buffer`], [`CodecError::NoMemory`].
    pub(crate) fn decode(
        &self,
        form: Form,
        stored: &[u8],
        out: &mut [u8],
    ) -> Result<usize, CodecError> {
        let needed = self.len(form, stored)?;
        let given = out.len();
        let out = out.get_mut(..needed).ok_or(CodecError::Buffer { given, needed })?;
        let (long, short) = (stored, stored.len().saturating_sub(LENGTH));
        let made = match form {
            Form::Raw => {
                out.copy_from_slice(stored);
                Ok(needed)
            }
            Form::Lz4 => lz4::decode(long, out),
            Form::ShortLz4 => lz4::decode(&stored[..short], out),
            Form::Zstd => self.zstd.decode(long, out)?,
            Form::ShortZstd => self.zstd.decode(&stored[..short], out)?,
        };
        match made {
            Ok(len) if len == needed => Ok(needed),
            Ok(_) => Err(form.corrupt(stored, "it makes an object of another length")),
            Err(what) => Err(form.corrupt(stored, what)),
        }
    }

    /// Bytes of the working state, for the pool's account.
    #[inline]
    pub(crate) fn bytes(&self) -> u64 {
        self.zstd.bytes()
    }
}

impl Form {
    fn corrupt(self, stored: &[u8], what: &'static str) -> CodecError {
        let codec = match self {
            Self::Raw => "no codec",
            Self::Lz4 | Self::ShortLz4 => "LZ4",
            Self::Zstd | Self::ShortZstd => "zstd",
        };
        CodecError::Corrupt { len: stored.len(), codec, what }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
