//! [`PackedPages`]: pages of the page cache that are stored compressed, several to a lent page.
//!
//! A page that shrinks to three quarters or less becomes an object of a pool on lent pages
//! ([`packed`](super::packed)): its key, 32 bytes that are compared at every read before anything
//! is decoded, and what the codec made. An entry of the cache's index names it as it names a page:
//! the pool's *entry index* in the place of the page, with [`OBJECT`] set, and the low bits of what
//! a handle names in the place of the generation. So the bound in the head of
//! [`index`](super::index) on what the generation's bits say holds here too, and entries of lost
//! objects die lazily, as those of recalled pages do.

use super::error::Error;
use super::lender::Lender;
use super::lent::Meta;
use super::packed::{Packed, Rest};
use super::stats::Counter;
use super::words::PageUse;
use crate::units::Pages;
use crate::zpool::{with_buffer, Codec, Coder, Kind, Pinned};

/// In the place of a page: it is an object here.
const OBJECT: usize = 1 << 32;
const KEY_BYTES: usize = size_of::<Meta>();

/// See the module.
#[derive(Debug)]
pub(super) struct PackedPages {
    packed: Packed,
    coder: Coder,
}

/// Whether an entry names an object and not a page.
#[inline]
pub(super) fn is_object(at: PageUse) -> bool {
    at.page & OBJECT != 0
}

/// The key that an object begins with, and what follows it; `None` if that is none.
fn split(object: &[u8]) -> Option<(Meta, &[u8])> {
    let (head, rest) = object.split_at_checked(KEY_BYTES)?;
    let mut words = head.chunks_exact(size_of::<u64>()).map(|word| word.try_into().ok());
    let mut key = Meta::default();
    for word in &mut key {
        *word = u64::from_ne_bytes(words.next()??);
    }
    Some((key, rest))
}

impl PackedPages {
    /// In what `lender` lends.
    pub(super) fn new(lender: &Lender, codec: &Codec) -> Result<Self, Error> {
        let page = lender.lent().frames().page();
        let room = Pages::new(lender.lent().pages() as u64).bytes(page);
        let packed = Packed::new(lender, room, None, Codec::None, Rest::Goes)?;
        let coder = Coder::new(codec, page.bytes().as_usize());
        let coder = coder.map_err(crate::zpool::Error::from)?;
        Ok(Self { packed, coder })
    }

    /// Makes an object of a page, if it shrinks enough and there is room.
    pub(super) fn store(&self, lender: &Lender, key: &Meta, page: &[u8]) -> Option<PageUse> {
        let most = page.len() / 4 * 3;
        let handle = with_buffer(most, |object| {
            let (head, body) = object.split_at_mut(KEY_BYTES);
            for (to, word) in head.chunks_exact_mut(size_of::<u64>()).zip(key) {
                to.copy_from_slice(&word.to_ne_bytes());
            }
            let len = self.coder.encode(page, body.len(), |kind, bytes| {
                let body = (kind == Kind::Coded).then(|| &mut body[..bytes.len()])?;
                body.copy_from_slice(bytes);
                Some(KEY_BYTES + bytes.len())
            })?;
            if !self.packed.has_room(lender) {
                return None;
            }
            self.packed.staging.pool().insert(&object[..len]).ok()
        })?;
        lender.counts().add(Counter::PackedStored, 1);
        let page = handle.index() as usize | OBJECT;
        Some(PageUse { page, generation: handle.generation() as u16 })
    }

    /// Pins the object that an entry names, with what its handle names.
    fn pin(&self, at: PageUse) -> Option<(Pinned, u32)> {
        let (index, staging) = (at.page as u32, &self.packed.staging);
        let named = staging.named(index);
        if named as u16 != at.generation {
            return None;
        }
        Some((staging.pin(index, named)?, named))
    }

    /// The key of the object that an entry names; `None` if it is no more.
    pub(super) fn key_of(&self, lender: &Lender, at: PageUse) -> Option<Meta> {
        let (pinned, _) = self.pin(at)?;
        let key = |head: &[u8]| split(head).map(|(key, _)| key);
        self.packed.with_head(lender, &pinned, KEY_BYTES, key)?
    }

    /// Copies the page of `key` out, if the object that an entry names is that.
    pub(super) fn read(&self, lender: &Lender, key: &Meta, at: PageUse, buf: &mut [u8]) -> bool {
        let Some((pinned, _)) = self.pin(at) else { return false };
        let decode = |object: &[u8]| {
            let coded = split(object).filter(|(other, _)| other == key);
            let len = buf.len();
            let mut decode = |coded| self.coder.decode_coded(Kind::Coded, coded, buf);
            coded.is_some_and(|(_, coded)| decode(coded).is_ok_and(|made| made == len))
        };
        self.packed.with_stored(lender, &pinned, decode) == Some(true)
    }

    /// Ends an object that has no entry in the index any more.
    pub(super) fn drop_object(&self, lender: &Lender, at: PageUse) {
        let Some((pinned, named)) = self.pin(at) else { return };
        let staging = &self.packed.staging;
        staging.unpin(&pinned);
        if staging.remove(at.page as u32, named) {
            lender.counts().add(Counter::PackedDropped, 1);
        }
    }

    /// After each call that stores or drops; see [`Packed::settle`].
    pub(super) fn settle(&self, lender: &Lender) {
        self.packed.settle(lender);
    }

    /// Pages that are here, and how many were found lost.
    pub(super) fn pages(&self) -> (Pages, u64) {
        (Pages::new(self.packed.staging.objects()), self.packed.lost())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_without_a_whole_key_is_none() {
        let object: Vec<u8> = (0..40).collect();
        assert_eq!(split(&object[..KEY_BYTES - 1]), None);
        let (key, rest) = split(&object).unwrap();
        assert_eq!(key.map(u64::to_ne_bytes).concat(), object[..KEY_BYTES]);
        assert_eq!(rest, &object[KEY_BYTES..]);
    }
}
