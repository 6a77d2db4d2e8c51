//! Notes evicted and lost items for clients that watch them.

use std::fmt::Arguments;
use std::io::Write;
use std::time::Duration;

use super::shard::{Entry, Shard, FETCHED, FLUSHED};
use super::{Head, Room, Store};
use crate::watch::{url, Topic};

fn key_to(line: &mut Vec<u8>, key: &[u8]) {
    line.extend_from_slice(b" key=");
    key.iter().for_each(|byte| url(*byte, line));
}

impl Store {
    fn access_to(&self, line: &mut Vec<u8>, entry: Entry, ttl: Arguments<'_>) {
        let fetched = if entry.access & FETCHED != 0 { "yes" } else { "no" };
        let (idle, class) = (entry.idle(self.clock.now()), 1 + u8::from(entry.is_large()));
        // Writing to a vector cannot fail.
        let _ = write!(line, " fetch={fetched}{ttl} la={idle} clsid={class}");
    }

    /// Notes an evicted item. `bytes` begin with its head and key.
    #[inline]
    pub(super) fn note_evicted(&self, entry: Entry, head: &Head, bytes: &[u8]) {
        if !self.watch.wants(Topic::Evictions) || entry.access & FLUSHED != 0 {
            return;
        }
        self.watch.note(Topic::Evictions, |line| {
            line.extend_from_slice(b"eviction");
            key_to(line, head.key(bytes));
            let ttl = match head.exptime {
                0 => -1,
                end => i64::from(end) - i64::from(self.clock.now()),
            };
            self.access_to(line, entry, format_args!(" ttl={ttl}"));
            // Writing to a vector cannot fail.
            let _ = write!(line, " size={}", head.total());
        });
    }

    /// Notes a large item that will be evicted.
    #[inline]
    pub(super) fn note_evicted_large(&self, shard: &Shard, entry: Entry) {
        if self.watch.wants(Topic::Evictions) {
            let mut room = Room::default();
            if let Some(head) = self.look(shard, entry, 0, &mut room) {
                self.note_evicted(entry, &head, &room.page);
            }
        }
    }

    /// Notes an item that a recall took. Its key is gone with it: `key` is the one that a client
    /// asked for, if any.
    #[inline]
    pub(super) fn note_lost(&self, entry: Entry, key: Option<&[u8]>) {
        if self.watch.wants(Topic::Recalls) {
            self.watch.note(Topic::Recalls, |line| {
                line.extend_from_slice(b"recalled");
                if let Some(key) = key {
                    key_to(line, key);
                }
                self.access_to(line, entry, format_args!(""));
            });
        }
    }

    /// Notes that first class took memory.
    pub(super) fn note_recall(&self, bytes: u64, runs: usize, took: Duration) {
        if self.watch.wants(Topic::Recalls) {
            self.watch.note(Topic::Recalls, |line| {
                let micros = took.as_micros();
                // Writing to a vector cannot fail.
                let _ = write!(line, "recall bytes={bytes} runs={runs} us={micros}");
            });
        }
    }
}
