//! Items listed: those that a reader would find, by pieces, so that nobody waits for all of them.
//!
//! A listing goes on by hashes, not by places in the index: entries may move and the index may grow
//! meanwhile. An item that is there all the time is listed once.

use super::item::HEAD;
use super::shard::FLUSHED;
use super::{Found, Room, Store};
use crate::protocol::KEY_MAX;

/// Places of the index that are looked at under one lock.
const PLACES: usize = 256;

/// Where a listing goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    shard: usize,
    /// The least upper half of a hash.
    from: u64,
}

/// Which items are listed: those that share pages, those in pages of their own.
pub type Classes = [bool; 2];

impl Store {
    /// Shows the next items of these classes with their keys. Returns where the listing goes on;
    /// `None` at its end.
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
                // It is over, or a recall took it.
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
