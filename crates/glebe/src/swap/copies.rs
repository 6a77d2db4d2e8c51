//! [`Copies`]: the bytes of objects that are not in memory, or a second time of those that are.
//!
//! An object is coded as one block. A block that does not get an eighth smaller is the object as it
//! is. The block is cut into *pieces* of up to a page, which are objects of a pool; of more than
//! one piece, the handles are an object of that pool too, the *list*. Or it is one record of a
//! [file](super::file). An object that one word fills over and over takes nothing of either.
//!
//! The checksum (CRC-32) is of key and block, and tested before anything is decoded: of a spoilt or
//! mixed up block no byte is decoded. It is no defence against who writes what he wants.
//!
//! Cost: the codec's, 0.1 ns a byte for the checksum, a pool's insert or read for each page. Locks:
//! the pool's.

use crc32fast::Hasher;

use super::error::Error;
use super::file::SpillFile;
use super::key::Key;
use crate::error::OsError;
use crate::sys::page_size;
use crate::units::Bytes;
use crate::zpool::{self, same_filled, with_buffer, Codec, Coder, Handle, ObjectPool};

const FORM_SHIFT: u32 = 62;
const IN_FILE: u64 = 1 << 61;
const LEN_SHIFT: u32 = 32;
const LEN: u64 = (1 << 24) - 1;
/// Bytes of a handle in a list.
const HANDLE: usize = size_of::<u64>();
/// A block must be smaller than the object by one part of so many.
const GAIN: usize = 8;

/// Where the copy of an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Copy {
    /// Nowhere: one word fills the object.
    Filled(u64),
    /// In the pool or the file.
    Block(Block),
}

/// A block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    /// A handle as a number, of the one piece or the list; in the file, the first unit.
    what: u64,
    /// Bytes.
    pub(super) len: usize,
    pub(super) is_coded: bool,
    is_in_file: bool,
    checksum: u32,
}

impl Copy {
    pub(super) fn to_raw(self) -> [u64; 2] {
        match self {
            Self::Filled(word) => [word, 0],
            Self::Block(Block { what, len, is_coded, is_in_file, checksum }) => {
                let form = (1 + u64::from(is_coded)) << FORM_SHIFT;
                let place = if is_in_file { IN_FILE } else { 0 };
                [what, form | place | (len as u64) << LEN_SHIFT | u64::from(checksum)]
            }
        }
    }

    /// The block, if it is in the pool.
    pub(super) fn in_pool(self) -> Option<Block> {
        match self {
            Self::Block(block) if !block.is_in_file => Some(block),
            _ => None,
        }
    }

    /// Whether it is in the file.
    pub(super) fn is_in_file(self) -> bool {
        matches!(self, Self::Block(block) if block.is_in_file)
    }

    pub(super) fn from_raw([what, about]: [u64; 2]) -> Self {
        match about >> FORM_SHIFT {
            0 => Self::Filled(what),
            form => Self::Block(Block {
                what,
                is_in_file: about & IN_FILE != 0,
                len: (about >> LEN_SHIFT & LEN) as usize,
                is_coded: form > 1,
                checksum: about as u32,
            }),
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Copies {
    pub(super) pool: ObjectPool,
    pub(super) file: Option<SpillFile>,
    coder: Coder,
    page: usize,
}

/// Where a copy was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// In memory, or it is nowhere.
    Pool,
    /// In idle memory; the file has it as well.
    Idle,
    File,
}

/// Why a copy gives no object.
#[derive(Debug)]
pub(super) enum Unreadable {
    /// It is not what was stored; what is wrong.
    Damaged(&'static str),
    /// It may be there, and cannot be read now.
    Refused(Error),
}

impl From<OsError> for Unreadable {
    fn from(error: OsError) -> Self {
        Self::Refused(error.into())
    }
}

impl From<zpool::Error> for Unreadable {
    fn from(error: zpool::Error) -> Self {
        match error {
            zpool::Error::Stale | zpool::Error::Foreign => Self::Damaged("a piece of it is gone"),
            zpool::Error::BufferTooSmall { .. } => Self::Damaged("a piece of it is too long"),
            zpool::Error::Codec(zpool::CodecError::Corrupt { what, .. }) => Self::Damaged(what),
            error => Self::Refused(error.into()),
        }
    }
}

fn checksum_of(key: Key, block: &[u8]) -> u32 {
    let mut hasher = Hasher::new();
    hasher.update(&key.to_bytes());
    hasher.update(block);
    hasher.finalize()
}

/// The most bytes that a block may have to be worth the codec.
fn most_coded(object: &[u8]) -> usize {
    object.len() - object.len().div_ceil(GAIN)
}

impl Block {
    /// The same block in the file.
    pub(super) fn moved_to_file(self, start: u64) -> Copy {
        Copy::Block(Self { what: start, is_in_file: true, ..self })
    }

    fn check(&self, key: Key, bytes: &[u8]) -> Result<(), Unreadable> {
        if bytes.len() != self.len {
            return Err(Unreadable::Damaged("its length is another"));
        }
        if checksum_of(key, bytes) != self.checksum {
            return Err(Unreadable::Damaged("its checksum does not match"));
        }
        Ok(())
    }
}

impl Copies {
    /// Without any; the pool holds up to `limit`.
    pub(super) fn new(codec: &Codec, limit: Bytes, file: Option<SpillFile>) -> Result<Self, Error> {
        let page = page_size().bytes().as_usize();
        let pool = ObjectPool::options().codec(Codec::None).limit(limit).build()?;
        let coder = Coder::new(codec, page).map_err(zpool::Error::Codec)?;
        Ok(Self { pool, file, coder, page })
    }

    /// Stores a copy of an object, and leaves one part of so many of the pool free.
    ///
    /// # Errors
    /// What the pool refuses; then nothing is stored.
    pub(super) fn store(&self, key: Key, object: &[u8], free: u64) -> Result<Copy, zpool::Error> {
        if let Some(word) = same_filled(object) {
            return Ok(Copy::Filled(word));
        }
        let (len, held, limit) = (object.len(), self.pool.held(), self.pool.limit());
        if held.get() > limit.get() - limit.get() / free {
            return Err(zpool::Error::Full { len, held, limit });
        }
        self.coded(key, object, |bytes, block| self.put_in_pool(bytes, block))
    }

    /// Codes an object, and hands `then` the bytes with a block of them that has no place yet.
    pub(super) fn coded<R>(
        &self,
        key: Key,
        object: &[u8],
        then: impl FnOnce(&[u8], Block) -> R,
    ) -> R {
        self.coder.encode_block(object, most_coded(object), |coded| {
            let (bytes, is_coded) = (coded.unwrap_or(object), coded.is_some());
            let (len, checksum) = (bytes.len(), checksum_of(key, bytes));
            then(bytes, Block { what: 0, len, is_coded, is_in_file: false, checksum })
        })
    }

    /// Puts a block into the pool that has no place yet.
    ///
    /// # Errors
    /// What the pool refuses.
    pub(super) fn put_in_pool(&self, bytes: &[u8], block: Block) -> Result<Copy, zpool::Error> {
        Ok(Copy::Block(Block { what: self.put(bytes)?.to_raw(), ..block }))
    }

    /// As [`Copies::store`], in the file at once; none where there is no file.
    ///
    /// # Errors
    /// [`Error::FileFull`], or what the device refuses.
    pub(super) fn store_in_file(&self, key: Key, object: &[u8]) -> Result<Option<Copy>, Error> {
        let Some(file) = &self.file else { return Ok(None) };
        self.coded(key, object, |bytes, block| {
            let need = file.units(bytes.len());
            let run = file.take(need, need).ok_or_else(|| file.is_full())?;
            let start = file.write(run, std::iter::once(bytes))?[0];
            Ok(Some(block.moved_to_file(start)))
        })
    }

    /// Makes what the calling thread needs to code an object.
    pub(super) fn warm_up(&self, object: &[u8]) {
        self.coder.encode_block(object, most_coded(object), |_| ());
    }

    /// Puts a block into the pool.
    fn put(&self, block: &[u8]) -> Result<Handle, zpool::Error> {
        if block.len() <= self.page {
            return self.pool.insert(block);
        }
        let mut list = Vec::with_capacity(block.len().div_ceil(self.page) * HANDLE);
        let mut put = || -> Result<Handle, zpool::Error> {
            for piece in block.chunks(self.page) {
                list.extend_from_slice(&self.pool.insert(piece)?.to_raw().to_le_bytes());
            }
            self.pool.insert(&list)
        };
        put().inspect_err(|_| self.remove_listed(&list))
    }

    /// Writes an object, of as many bytes as it has, to `out`. After an error `out` may hold
    /// anything.
    pub(super) fn load(&self, key: Key, copy: Copy, out: &mut [u8]) -> Result<Source, Unreadable> {
        match copy {
            Copy::Filled(word) => fill(out, word),
            Copy::Block(block) if block.is_in_file => return self.load_saved(key, block, out),
            Copy::Block(block) if block.len <= self.page => {
                let bytes = self.pool.get(handle_of(block.what)?)?;
                self.decode(key, block, &bytes, out)?;
            }
            Copy::Block(block) => with_buffer(block.len, |bytes| {
                self.gather(block, bytes)?;
                self.decode(key, block, bytes, out)
            })?,
        }
        Ok(Source::Pool)
    }

    /// As [`Copies::load`], of a block that is in the file. Where idle memory does not have it, or
    /// not as it was, the file is read, and then it has.
    fn load_saved(&self, key: Key, block: Block, out: &mut [u8]) -> Result<Source, Unreadable> {
        let file = self.file.as_ref().ok_or(Unreadable::Damaged("there is no file"))?;
        let (start, len) = (block.what, block.len);
        let kept = file.read_idle(start, len, |bytes| self.decode(key, block, bytes, out));
        if let Some(Ok(())) = kept {
            return Ok(Source::Idle);
        }
        file.read(start, len, |bytes| {
            self.decode(key, block, bytes, out)?;
            file.keep(start, bytes);
            Ok(Source::File)
        })?
    }

    /// Checks a block, then decodes it.
    pub(super) fn decode(
        &self,
        key: Key,
        block: Block,
        bytes: &[u8],
        out: &mut [u8],
    ) -> Result<(), Unreadable> {
        block.check(key, bytes)?;
        if block.is_coded {
            return Ok(self.coder.decode_block(bytes, out)?);
        }
        if bytes.len() != out.len() {
            return Err(Unreadable::Damaged("it is of another length than the object"));
        }
        out.copy_from_slice(bytes);
        Ok(())
    }

    /// Copies the pieces of a block in the pool to `out`, one behind the other.
    pub(super) fn gather(&self, block: Block, out: &mut [u8]) -> Result<(), Unreadable> {
        if block.len <= self.page {
            let len = self.pool.read(handle_of(block.what)?, out)?;
            return (len == block.len).then_some(()).ok_or(Unreadable::Damaged("it is too short"));
        }
        let list = self.pool.get(handle_of(block.what)?)?;
        let pieces = out.chunks_mut(self.page);
        if list.len() != pieces.len() * HANDLE {
            return Err(Unreadable::Damaged("its list is of another length"));
        }
        for (piece, handle) in pieces.zip(handles(&list)) {
            if self.pool.read(handle_of(handle)?, piece)? != piece.len() {
                return Err(Unreadable::Damaged("a piece of it is too short"));
            }
        }
        Ok(())
    }

    /// Forgets a copy.
    pub(super) fn drop_copy(&self, copy: Copy) {
        let Copy::Block(block) = copy else { return };
        if block.is_in_file {
            let file = self.file.iter();
            return file.for_each(|file| file.drop_record(block.what, block.len));
        }
        let Ok(handle) = handle_of(block.what) else { return };
        if block.len > self.page {
            if let Ok(list) = self.pool.get(handle) {
                self.remove_listed(&list);
            }
        }
        // What is not there any more need not be removed.
        let _ = self.pool.remove(handle);
    }

    fn remove_listed(&self, list: &[u8]) {
        for handle in handles(list).filter_map(Handle::from_raw) {
            let _ = self.pool.remove(handle);
        }
    }
}

/// Fills `out` with a word.
fn fill(out: &mut [u8], word: u64) {
    out.chunks_mut(size_of::<u64>()).for_each(|chunk| {
        chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
    });
}

fn handles(list: &[u8]) -> impl Iterator<Item = u64> + '_ {
    list.chunks_exact(HANDLE).filter_map(|raw| Some(u64::from_le_bytes(*raw.first_chunk()?)))
}

fn handle_of(raw: u64) -> Result<Handle, Unreadable> {
    Handle::from_raw(raw).ok_or(Unreadable::Damaged("it names no piece"))
}
