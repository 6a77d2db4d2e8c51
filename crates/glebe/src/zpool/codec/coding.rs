//! [`Coding`]: the codecs of one pool at work, and what of an object they make.
//!
//! Objects that are one word over and over are seen here, before any codec; what does not go to a
//! smaller class when coded is stored as it is. Without a codec everything is. A pool has one
//! dictionary at most: objects of the pool's own codec and those that were coded again while they
//! were idle are read alike.

use std::sync::OnceLock;

use crate::sync::{AtomicU64, Ordering};
use crate::zpool::codec::{same_filled, Codec, CodecError, Coder, Form, Zstd};
use crate::zpool::entry::word::{Entry, Kind, WIDE_LEN};
use crate::zpool::error::Error;
use crate::zpool::objects::Stored;

/// See the module.
#[derive(Debug)]
pub(crate) struct Coding {
    codec: Codec,
    main: Coder,
    /// Of idle objects; made when first asked for.
    idle: OnceLock<(Zstd, Coder)>,
    page: usize,
    /// Bytes of the working state when they were counted last.
    counted: AtomicU64,
}

/// The kind of a coded object, which is never free nor filled.
fn kind_of(form: Form) -> Kind {
    match form {
        Form::Raw => Kind::Raw,
        Form::Lz4 => Kind::Lz4,
        Form::ShortLz4 => Kind::ShortLz4,
        Form::Zstd => Kind::Zstd,
        Form::ShortZstd => Kind::ShortZstd,
    }
}

/// Writes `word` over and over.
fn fill(out: &mut [u8], word: [u8; WIDE_LEN]) {
    out.chunks_mut(WIDE_LEN).for_each(|chunk| chunk.copy_from_slice(&word[..chunk.len()]));
}

impl Coding {
    /// For objects of at most `page` bytes.
    pub(crate) fn new(codec: &Codec, page: usize) -> Result<Self, CodecError> {
        let main = Coder::new(codec.clone(), page)?;
        let (idle, counted) = (OnceLock::new(), AtomicU64::new(0));
        Ok(Self { codec: codec.clone(), main, idle, page, counted })
    }

    /// Whether objects are stored as they are.
    #[inline]
    pub(crate) fn is_off(&self) -> bool {
        self.codec == Codec::None
    }

    /// Whether objects come in coded by zstd.
    pub(crate) fn is_zstd(&self) -> bool {
        matches!(self.codec, Codec::Zstd(_))
    }

    /// Makes of an object what is to be stored. `pays` says of a number of bytes whether they go
    /// to a smaller class than the object as it is.
    pub(crate) fn encode<R>(
        &self,
        object: &[u8],
        pays: impl Fn(usize) -> bool,
        store: impl FnOnce(Stored<'_>) -> R,
    ) -> R {
        let len = object.len();
        if let Some(word) = same_filled(object) {
            let (low, high) = (word as u32, (word >> u32::BITS) as u32);
            if low == high {
                return store(Stored::Filled { fill: low, len });
            }
            if pays(WIDE_LEN) {
                let bytes = word.to_le_bytes();
                return store(Stored::Bytes { kind: Kind::Wide, bytes: &bytes, len });
            }
        }
        code(&self.main, object, pays, store)
    }

    /// The coder of idle objects, by `zstd`, if there is one.
    pub(crate) fn idle(&self, zstd: &Zstd) -> Result<Option<&Coder>, Error> {
        if let Codec::Zstd(main) = &self.codec {
            if !main.reads(zstd) {
                return Err(Error::OtherZstd);
            }
        }
        match self.idle.get() {
            None => Ok(None),
            Some((with, coder)) if with == zstd => Ok(Some(coder)),
            Some(_) => Err(Error::OtherZstd),
        }
    }

    /// Makes the coder of idle objects, which is not yet kept.
    pub(crate) fn make_idle(&self, zstd: &Zstd) -> Result<Coder, Error> {
        Ok(Coder::new(Codec::Zstd(zstd.clone()), self.page)?)
    }

    /// Keeps the coder of idle objects, whose bytes are charged; false if there is one.
    pub(crate) fn keep_idle(&self, zstd: &Zstd, coder: Coder) -> bool {
        let bytes = coder.bytes();
        let is_kept = self.idle.set((zstd.clone(), coder)).is_ok();
        if is_kept {
            self.counted.fetch_add(bytes, Ordering::Relaxed);
        }
        is_kept
    }

    /// How a live object was stored, and by whom it is read; `None` if no codec has to do with it.
    fn reader(&self, entry: Entry) -> Option<(Form, &Coder)> {
        let zstd = self.idle.get().map_or(&self.main, |(_, coder)| coder);
        match entry.kind() {
            Kind::Lz4 => Some((Form::Lz4, &self.main)),
            Kind::ShortLz4 => Some((Form::ShortLz4, &self.main)),
            Kind::Zstd => Some((Form::Zstd, zstd)),
            Kind::ShortZstd => Some((Form::ShortZstd, zstd)),
            Kind::Free | Kind::Raw | Kind::Filled | Kind::Wide => None,
        }
    }

    /// The length of an object whose stored bytes are `stored`.
    pub(crate) fn len(&self, entry: Entry, stored: &[u8]) -> Result<usize, Error> {
        let Some((form, coder)) = self.reader(entry) else { return Ok(entry.bytes()) };
        Ok(coder.len(form, stored)?)
    }

    /// Writes an object to the start of `out`; its length.
    pub(crate) fn decode(
        &self,
        entry: Entry,
        stored: &[u8],
        out: &mut [u8],
    ) -> Result<usize, Error> {
        if let Some((form, coder)) = self.reader(entry) {
            return Ok(coder.decode(form, stored, out)?);
        }
        let (given, len) = (out.len(), entry.bytes());
        let out = out.get_mut(..len).ok_or(Error::BufferTooSmall { given, len })?;
        match (entry.kind(), stored.first_chunk()) {
            (Kind::Filled, _) => fill(out, (u64::from(entry.fill()) * FILL_TWICE).to_le_bytes()),
            (Kind::Wide, Some(word)) => fill(out, *word),
            _ => out.copy_from_slice(stored),
        }
        Ok(len)
    }

    /// Bytes of the working state.
    #[inline]
    fn held_bytes(&self) -> u64 {
        self.main.bytes() + self.idle.get().map_or(0, |(_, coder)| coder.bytes())
    }

    /// Whether the working state is not what was counted.
    #[inline]
    pub(crate) fn has_grown(&self) -> bool {
        self.held_bytes() != self.counted.load(Ordering::Relaxed)
    }

    /// Counts the bytes of the working state: those that were counted before, and those of now.
    pub(crate) fn count(&self) -> (u64, u64) {
        let now = self.held_bytes();
        (self.counted.swap(now, Ordering::Relaxed), now)
    }
}

/// Times half a word that is in both halves.
const FILL_TWICE: u64 = 1 << u32::BITS | 1;

/// Codes an object that is not filled.
pub(crate) fn code<R>(
    coder: &Coder,
    object: &[u8],
    pays: impl Fn(usize) -> bool,
    store: impl FnOnce(Stored<'_>) -> R,
) -> R {
    coder.encode(object, object.len(), |form, bytes| {
        if form == Form::Raw || !pays(bytes.len()) {
            store(Stored::raw(object))
        } else {
            store(Stored::Bytes { kind: kind_of(form), bytes, len: object.len() })
        }
    })
}
