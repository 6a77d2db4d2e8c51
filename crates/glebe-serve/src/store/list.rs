//! Lists items in pieces, so that no lock is held for long.
//!
//! A [`Place`] holds a hash, because entries move and the index grows during a listing. An item
//! that exists during the whole listing is listed once.

use super::item::HEAD;
use super::shard::FLUSHED;
use super::{Found, Room, Store};
use crate::protocol::KEY_MAX;

/// Positions of the index that one call examines.
const PLACES: usize = 256;

/// The position of a listing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    shard: usize,
    /// Lower bound of the upper 32 hash bits of entries not yet listed.
    from: u64,
}

/// Whether to list small items, and whether to list large items.
pub type Classes = [bool; 2];

impl Store {
    /// Calls `show` for the next items. Returns the next place, or `None` at the end.
    pub fn list(
        &self,
        place: Place,
        classes: Classes,
        room: &mut Room,
        mut show: impl FnMut(&[u8], &Found),
    ) -> Option<Place> {
        let shard = self.shard(place.shard);
        let next = shard.walk(place.from, PLACES, |at| {
            let entry = shard.at(at);
            let is_wanted = classes[usize::from(entry.is_large())] && entry.access & FLUSHED == 0;
            if !is_wanted {
                return;
            }
            match self.look(&shard, entry, HEAD + KEY_MAX, room) {
                Some(head) if !self.is_over(&head) => {
                    show(head.key(&room.page), &Found { head, entry, at });
                }
                // The item has expired, or a recall took it.
                _ => {}
            }
        });
        let is_last = place.shard + 1 == self.shards.len();
        match next {
            Some(from) => Some(Place { from, ..place }),
            None if is_last => None,
            None => Some(Place { shard: place.shard + 1, from: 0 }),
        }
    }
}
