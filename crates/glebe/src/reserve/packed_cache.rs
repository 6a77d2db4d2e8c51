//! [`PackedCache`]: pages of the page cache that are stored compressed, several to a lent page.
//!
//! A page that shrinks to three quarters or less becomes an object of a pool on lent pages
//! ([`packed`](super::packed)); what does not is stored as it is, by the page cache itself. The
//! object is its key, a byte that says how it is coded, and what the codec made:
//!
//! ```text
//! | pool | object | index | generation | form 1 B | coded bytes |     the first four in 1..10 B
//! ```
//!
//! Each of the four is written seven bits a byte, lowest first, with the highest bit set but in
//! the last. They are compared at every read, in the private copy, before anything is decoded.
//!
//! An [`Index`] of its own names the use of an entry (the pool's *entry index* in the place of the
//! page, and the low bits of what a handle names in the place of the generation), so the bound of
//! its head on what the generation's bits say holds here too. A key is in one of the two indexes:
//! whoever publishes in one removes from the other, and readers look here first. So between the
//! two steps of a put that stores the page in the other way a reader meets the old page or, after
//! the first step of a put here, the new one, and never the old one after the new.
//!
//! Entries of lost objects die lazily, as those of recalled pages do.

use std::cell::RefCell;

use super::error::Error;
use super::index::{Held, Index, Key};
use super::lender::Lender;
use super::lent::Meta;
use super::packed::{Packed, Rest};
use super::stats::Counter;
use super::table::Tables;
use super::words::PageUse;
use crate::units::{Bytes, PageSize, Pages};
use crate::zpool::{same_filled, AtLimit, Codec, Coder, Compaction, Handle, Kind};
use crate::zpool::{ObjectPool, Pinned, TableChoice};

/// Of so many bytes of the reserve one is staged in ordinary memory.
const RESERVE_PER_STAGED: u64 = 64;
/// What the tables of the pool may take beside the pages of its objects.
const TABLES: Bytes = Bytes::mib(16);
/// Pages in the cache, at most, that the index has room for, for each page of the reserve.
const PACKED_PER_PAGE: usize = 3;
/// What the index takes for each.
const INDEX_BYTES_A_PAGE: u64 = 43;
/// Bytes of the longest key and what says how it is coded.
const HEAD_MAX: usize = 41;

/// See the module.
#[derive(Debug)]
pub(super) struct PackedCache {
    packed: Packed,
    index: Index,
    coder: Coder,
}

/// How the page of an object is coded: one word over and over, or by the cache's codec.
const FILLED: u8 = 0;
const CODED: u8 = 1;

/// Writes a key and how the page is coded.
fn write_head(out: &mut Vec<u8>, key: &Meta, form: u8) {
    out.clear();
    for word in key {
        let mut rest = *word;
        while rest > 0x7f {
            out.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        out.push(rest as u8);
    }
    out.push(form);
}

/// The key of an object, and what follows it; `None` if that is none.
fn read_head(mut bytes: &[u8]) -> Option<(Meta, &[u8])> {
    let mut key = Meta::default();
    for word in &mut key {
        for shift in (0..u64::BITS).step_by(7) {
            let (byte, rest) = bytes.split_first()?;
            bytes = rest;
            *word |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
        }
    }
    Some((key, bytes))
}

/// The use of an entry, as the index has it.
fn use_of(index: u32, named: u32) -> PageUse {
    PageUse { page: index as usize, generation: named as u16 }
}

thread_local! {
    static OBJECT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Why a page is not stored here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotPacked {
    /// It does not shrink enough.
    Large,
    /// There is no room, or no entry.
    NoRoom,
}

impl PackedCache {
    /// For a reserve of `pages`.
    pub(super) fn new(
        number: u64,
        pages: usize,
        page: PageSize,
        codec: &Codec,
    ) -> Result<Self, Error> {
        let len = Pages::new(pages as u64).bytes(page);
        let staging = Bytes::new(len.get() / RESERVE_PER_STAGED);
        let options = ObjectPool::options()
            .codec(Codec::None)
            .table(TableChoice::BySize)
            .compaction(Compaction::Automatic)
            .at_limit(AtLimit::Refuse)
            .limit(len + staging + TABLES);
        let packed = Packed::new(number, options, staging.pages_up(page), page, Rest::Goes)?;
        let entries = pages * PACKED_PER_PAGE;
        let mut tables = Tables::new(Bytes::new(entries as u64 * INDEX_BYTES_A_PAGE))?;
        let index = Index::new(&mut tables, entries)?;
        let coder = Coder::new(codec, page.bytes().as_usize());
        let coder = coder.map_err(crate::zpool::Error::from)?;
        Ok(Self { packed, index, coder })
    }

    pub(super) fn prefetch(&self, hash: u64) {
        self.index.prefetch(hash);
    }

    /// Pins the object that an entry of the index names.
    fn pin(&self, at: PageUse) -> Option<(Pinned, u32, u32)> {
        let (index, staging) = (at.page as u32, self.packed.staging());
        let named = staging.named(index);
        if named as u16 != at.generation {
            return None;
        }
        Some((staging.pin(index, named)?, index, named))
    }

    /// What an entry of the index is to `key`.
    fn held(&self, lender: &Lender, key: &Key, at: PageUse) -> Held {
        let Some((pinned, ..)) = self.pin(at) else { return Held::Stale };
        let head = |bytes: &[u8]| read_head(bytes).map(|(other, _)| other[..3] == key.meta[..3]);
        match self.packed.with_head(lender, &pinned, HEAD_MAX, head) {
            Some(Some(true)) => Held::Same,
            Some(_) => Held::Other,
            None => Held::Stale,
        }
    }

    /// Stores a page under `key`, in place of what the key held here.
    pub(super) fn put(&self, lender: &Lender, key: &Key, page: &[u8]) -> Result<(), NotPacked> {
        // In a destructor of the thread's there is none any more.
        let mut object = OBJECT.try_with(RefCell::take).unwrap_or_default();
        let at = self.insert(lender, key, page, &mut object);
        let _ = OBJECT.try_with(|kept| kept.replace(object));
        let at = at?;
        lender.counts().add(Counter::PackedStored, 1);
        let done = self.publish(lender, key, at);
        self.packed.settle(lender);
        if done {
            Ok(())
        } else {
            Err(NotPacked::NoRoom)
        }
    }

    fn insert(
        &self,
        lender: &Lender,
        key: &Key,
        page: &[u8],
        object: &mut Vec<u8>,
    ) -> Result<Handle, NotPacked> {
        self.code(&key.meta, page, object).ok_or(NotPacked::Large)?;
        if !self.packed.has_room(lender) {
            return Err(NotPacked::NoRoom);
        }
        self.packed.pool().insert(object).map_err(|_| NotPacked::NoRoom)
    }

    /// Makes an object of a page; `None` if that does not pay.
    fn code(&self, key: &Meta, page: &[u8], object: &mut Vec<u8>) -> Option<()> {
        if let Some(word) = same_filled(page) {
            write_head(object, key, FILLED);
            object.extend_from_slice(&word.to_le_bytes());
            return Some(());
        }
        let most = page.len() / 4 * 3;
        self.coder.encode(page, most - HEAD_MAX, |kind, bytes| {
            if kind != Kind::Coded {
                return None;
            }
            write_head(object, key, CODED);
            object.extend_from_slice(bytes);
            Some(())
        })
    }

    fn publish(&self, lender: &Lender, key: &Key, handle: Handle) -> bool {
        let (index, named) = (handle.index(), handle.generation());
        let held = |other| self.held(lender, key, other);
        let at = use_of(index, named);
        let Some(published) = self.index.publish(key.hash, at, held) else {
            self.drop_object(lender, at);
            return false;
        };
        for old in [published.replaced, published.displaced].into_iter().flatten() {
            self.drop_object(lender, old);
        }
        true
    }

    /// Ends an object that has no entry in the index any more.
    fn drop_object(&self, lender: &Lender, at: PageUse) {
        let Some((pinned, index, named)) = self.pin(at) else { return };
        let staging = self.packed.staging();
        staging.unpin(&pinned);
        if staging.remove(index, named) {
            lender.counts().add(Counter::PackedDropped, 1);
        }
    }

    /// Copies the page of `key` out; false, and `buf` may hold anything, if it is not here.
    #[inline]
    pub(super) fn get(&self, lender: &Lender, key: &Key, buf: &mut [u8]) -> bool {
        let take = |at: PageUse| {
            let Some((pinned, ..)) = self.pin(at) else { return false };
            let decode = |object: &[u8]| self.decode(&key.meta, object, buf);
            self.packed.with_stored(lender, &pinned, decode) == Some(true)
        };
        let found = self.index.find(key.hash, take).is_some();
        if found {
            lender.counts().add(Counter::PackedLoaded, 1);
        }
        found
    }

    fn decode(&self, key: &Meta, object: &[u8], buf: &mut [u8]) -> bool {
        let Some((other, rest)) = read_head(object) else { return false };
        let Some((form, coded)) = rest.split_first() else { return false };
        if other != *key {
            return false;
        }
        match (*form, coded.first_chunk::<8>()) {
            (CODED, _) => {
                let len = buf.len();
                self.coder.decode_coded(Kind::Coded, coded, buf).is_ok_and(|made| made == len)
            }
            (FILLED, Some(word)) => {
                buf.chunks_mut(word.len()).for_each(|to| to.copy_from_slice(&word[..to.len()]));
                true
            }
            _ => false,
        }
    }

    /// Drops the page of `key`; whether there was one.
    pub(super) fn remove(&self, lender: &Lender, key: &Key) -> bool {
        let same = |at| self.held(lender, key, at) == Held::Same;
        let Some(at) = self.index.remove(key.hash, same) else { return false };
        self.drop_object(lender, at);
        self.packed.settle(lender);
        true
    }

    /// Pages that are here.
    pub(super) fn pages(&self) -> Pages {
        Pages::new(self.packed.staging().objects())
    }

    /// Pages that were found lost.
    pub(super) fn lost(&self) -> u64 {
        self.packed.lost()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_key_comes_back_and_no_other() {
        let mut out = Vec::new();
        for key in [[0; 4], [1, 0x7f, 0x80, u64::MAX], [u64::MAX; 4], [3, 1 << 40, 77, 5]] {
            write_head(&mut out, &key, 9);
            assert!(out.len() <= HEAD_MAX, "{} bytes", out.len());
            out.extend_from_slice(b"rest");
            assert_eq!(read_head(&out), Some((key, &b"\x09rest"[..])));
            assert_eq!(read_head(&out[..2]), None);
        }
    }
}
