//! [`Copies`] stores compressed copies of objects.
//!
//! The codec makes one *block* of an object. If that saves less than an eighth, the block is the
//! object itself. The pool stores a block as *pieces* of up to a page, and the handles of several
//! pieces as another object, the *list*. A [file](super::file) record is one block. An object of
//! one repeated word takes no room.
//!
//! A CRC-32 of key and block is checked before decoding, so damaged and mixed-up blocks are
//! refused. Cost: the codec, 0.1 ns a byte for the checksum. Locks: the pool's, the file's.

use crc32fast::Hasher;

use super::error::SwapError;
use super::file::SpillFile;
use super::key::Key;
use crate::zpool::internal::{same_filled, with_buffer, Coder};
use crate::zpool::{self, Codec, Handle, ObjectPool};
use glebe_os::error::OsError;
use glebe_os::internal::sys::page_size;
use glebe_os::units::Bytes;

const FORM_SHIFT: u32 = 62;
const IN_FILE: u64 = 1 << 61;
const LEN_SHIFT: u32 = 32;
const LEN: u64 = (1 << 24) - 1;
const HANDLE: usize = size_of::<u64>();
const GAIN: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Copy {
    Filled(u64),
    Block(CopyBlock),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CopyBlock {
    /// Pool handle of the block or of the list of its pieces, or first unit in the file.
    what: u64,
    pub(super) len: usize,
    pub(super) is_coded: bool,
    is_in_file: bool,
    checksum: u32,
}

impl Copy {
    pub(super) fn to_raw(self) -> [u64; 2] {
        match self {
            Self::Filled(word) => [word, 0],
            Self::Block(CopyBlock { what, len, is_coded, is_in_file, checksum }) => {
                let form = (1 + u64::from(is_coded)) << FORM_SHIFT;
                let place = if is_in_file { IN_FILE } else { 0 };
                [what, form | place | (len as u64) << LEN_SHIFT | u64::from(checksum)]
            }
        }
    }

    pub(super) fn in_pool(self) -> Option<CopyBlock> {
        match self {
            Self::Block(block) if !block.is_in_file => Some(block),
            _ => None,
        }
    }

    pub(super) fn is_in_file(self) -> bool {
        matches!(self, Self::Block(block) if block.is_in_file)
    }

    pub(super) fn from_raw([what, about]: [u64; 2]) -> Self {
        match about >> FORM_SHIFT {
            0 => Self::Filled(what),
            form => Self::Block(CopyBlock {
                what,
                is_in_file: about & IN_FILE != 0,
                len: (about >> LEN_SHIFT & LEN) as usize,
                is_coded: form > 1,
                checksum: about as u32,
            }),
        }
    }
}

#[derive(Debug)]
pub(super) struct Copies {
    pub(super) pool: ObjectPool,
    pub(super) file: Option<SpillFile>,
    coder: Coder,
    page: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Pool,
    Idle,
    File,
}

#[derive(Debug)]
pub(super) enum Unreadable {
    Damaged(&'static str),
    Refused(SwapError),
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

fn most_coded(object: &[u8]) -> usize {
    object.len() - object.len().div_ceil(GAIN)
}

impl CopyBlock {
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
    pub(super) fn new(
        codec: &Codec,
        limit: Bytes,
        file: Option<SpillFile>,
    ) -> Result<Self, SwapError> {
        let page = page_size().bytes().as_usize();
        let pool = ObjectPool::options().codec(Codec::None).limit(limit).build()?;
        let coder = Coder::new(codec, page).map_err(zpool::Error::Codec)?;
        Ok(Self { pool, file, coder, page })
    }

    /// Fails with `Full` if less than `1 / free` of the pool is unused, unless the object is one
    /// repeated word.
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

    /// The place in the description is unset.
    pub(super) fn coded<R>(
        &self,
        key: Key,
        object: &[u8],
        then: impl FnOnce(&[u8], CopyBlock) -> R,
    ) -> R {
        self.coder.encode_block(object, most_coded(object), |coded| {
            let (bytes, is_coded) = (coded.unwrap_or(object), coded.is_some());
            let (len, checksum) = (bytes.len(), checksum_of(key, bytes));
            then(bytes, CopyBlock { what: 0, len, is_coded, is_in_file: false, checksum })
        })
    }

    pub(super) fn put_in_pool(&self, bytes: &[u8], block: CopyBlock) -> Result<Copy, zpool::Error> {
        Ok(Copy::Block(CopyBlock { what: self.put(bytes)?.to_raw(), ..block }))
    }

    pub(super) fn store_in_file(&self, key: Key, object: &[u8]) -> Result<Option<Copy>, SwapError> {
        let Some(file) = &self.file else { return Ok(None) };
        self.coded(key, object, |bytes, block| {
            let need = file.units(bytes.len());
            let run = file.take(need, need).ok_or_else(|| file.is_full())?;
            let start = file.write(run, std::iter::once(bytes))?[0];
            Ok(Some(block.moved_to_file(start)))
        })
    }

    pub(super) fn warm_up(&self, object: &[u8]) {
        self.coder.encode_block(object, most_coded(object), |_| ());
    }

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

    /// After an error, `out` may hold any bytes.
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

    fn load_saved(&self, key: Key, block: CopyBlock, out: &mut [u8]) -> Result<Source, Unreadable> {
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

    pub(super) fn decode(
        &self,
        key: Key,
        block: CopyBlock,
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

    pub(super) fn gather(&self, block: CopyBlock, out: &mut [u8]) -> Result<(), Unreadable> {
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
        let _ = self.pool.remove(handle);
    }

    fn remove_listed(&self, list: &[u8]) {
        for handle in handles(list).filter_map(Handle::from_raw) {
            let _ = self.pool.remove(handle);
        }
    }
}

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
