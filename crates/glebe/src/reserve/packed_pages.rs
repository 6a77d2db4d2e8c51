//! [`PackedPages`] keeps compressed pages of the page cache, several to a lent page.
//!
//! A page whose key and compressed bytes fit in three quarters of a page becomes an object of a
//! pool on lent pages ([`packed`](super::packed)): the key, 32 bytes that each read compares first,
//! then the coded bytes. In the page's index entry, `page` is the handle's index with [`OBJECT`]
//! set, and `generation` is the low bits of the handle's generation.

use super::error::ReserveError;
use super::lender::Lender;
use super::lent::Meta;
use super::packed::{Packed, Rest};
use super::stats::Counter;
use super::words::PageUse;
use crate::zpool::internal::{handle_generation, handle_index, with_buffer, Coder, Kind, Pinned};
use crate::zpool::Codec;
use glebe_os::units::Pages;

/// Flag in an index entry's page: the entry names an object.
const OBJECT: usize = 1 << 32;
const KEY_BYTES: usize = size_of::<Meta>();

#[derive(Debug)]
pub(super) struct PackedPages {
    packed: Packed,
    coder: Coder,
}

#[inline]
pub(super) fn is_object(at: PageUse) -> bool {
    at.page & OBJECT != 0
}

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
    pub(super) fn new(lender: &Lender, codec: &Codec) -> Result<Self, ReserveError> {
        let page = lender.lent().frames().page();
        let room = Pages::new(lender.lent().pages() as u64).bytes(page);
        let packed = Packed::new(lender, room, None, Codec::None, Rest::Goes)?;
        let coder = Coder::new(codec, page.bytes().as_usize());
        let coder = coder.map_err(crate::zpool::Error::from)?;
        Ok(Self { packed, coder })
    }

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
        let page = handle_index(handle) as usize | OBJECT;
        Some(PageUse { page, generation: handle_generation(handle) as u16 })
    }

    fn pin(&self, at: PageUse) -> Option<(Pinned, u32)> {
        let (index, staging) = (at.page as u32, &self.packed.staging);
        let named = staging.named(index);
        if named as u16 != at.generation {
            return None;
        }
        Some((staging.pin(index, named)?, named))
    }

    pub(super) fn key_of(&self, lender: &Lender, at: PageUse) -> Option<Meta> {
        let (pinned, _) = self.pin(at)?;
        let key = |head: &[u8]| split(head).map(|(key, _)| key);
        self.packed.with_head(lender, &pinned, KEY_BYTES, key)?
    }

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

    pub(super) fn drop_object(&self, lender: &Lender, at: PageUse) {
        let Some((pinned, named)) = self.pin(at) else { return };
        let staging = &self.packed.staging;
        staging.unpin(&pinned);
        if staging.remove(at.page as u32, named) {
            lender.counts().add(Counter::PackedDropped, 1);
        }
    }

    /// Must follow each store or drop.
    pub(super) fn settle(&self, lender: &Lender) {
        self.packed.settle(lender);
    }

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
