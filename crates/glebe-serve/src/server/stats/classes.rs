//! Answers `stats items` and `stats slabs` for classes with items.
//!
//! memcached divides pages into chunks. Here a chunk has the mean length of the class's items, and
//! the gaps in the class's pages count as free chunks.

use super::{Counters, Shared, Stats};
use crate::server::counters::Sums;
use crate::store::Held;

struct Class {
    number: usize,
    items: u64,
    bytes: u64,
    of_pages: u64,
}

fn classes(held: &Held) -> impl Iterator<Item = Class> {
    let (items, bytes) = (held.large_items, held.large_bytes);
    let large = Class { number: 2, items, bytes, of_pages: bytes };
    let small = Class {
        number: 1,
        items: held.items.saturating_sub(items),
        bytes: held.bytes.saturating_sub(bytes),
        of_pages: held.segment_bytes,
    };
    [small, large].into_iter().filter(|class| class.items > 0)
}

pub(super) fn items(shared: &Shared, stats: &mut Stats<'_>) {
    let (held, events) = (shared.store.held(), &shared.store.events);
    for class in classes(&held) {
        let (number, of) = (class.number, class.number - 1);
        let mut put =
            |name: &str, value: u64| stats.put(format_args!("items:{number}:{name}"), value);
        put("number", class.items);
        put("age", 0);
        put("mem_requested", class.bytes);
        put("evicted", events.evicted.of(of));
        put("evicted_nonzero", 0);
        put("evicted_time", 0);
        put("outofmemory", events.no_memory.of(of));
        put("tailrepairs", 0);
        put("reclaimed", events.reclaimed.of(of));
        put("expired_unfetched", events.expired_unfetched.of(of));
        put("evicted_unfetched", events.evicted_unfetched.of(of));
        put("recalled", events.recalled.of(of));
    }
}

pub(super) fn slabs(shared: &Shared, stats: &mut Stats<'_>) {
    let (held, page) = (shared.store.held(), shared.store.page() as u64);
    let sums = Counters::sum(shared.counters.iter());
    let mut active = 0;
    for class in classes(&held) {
        active += 1;
        let chunk = (class.bytes / class.items).max(1);
        let free = class.of_pages.saturating_sub(class.bytes) / chunk;
        let mut put =
            |name: &str, value: u64| stats.put(format_args!("{}:{name}", class.number), value);
        put("chunk_size", chunk);
        put("chunks_per_page", (page / chunk).max(1));
        put("total_pages", class.of_pages / page);
        put("total_chunks", class.items + free);
        put("used_chunks", class.items);
        put("free_chunks", free);
        put("free_chunks_end", 0);
        for (name, count) in counts(&sums, class.number == 2) {
            put(name, count);
        }
    }
    stats.put("active_slabs", active);
    stats.put("total_malloced", held.used);
}

fn counts(sums: &Sums, large: bool) -> [(&'static str, u64); 8] {
    let of = |all: u64, of_large: u64| if large { of_large } else { all.saturating_sub(of_large) };
    [
        ("get_hits", of(sums.get_hits, sums.large_get_hits)),
        ("cmd_set", of(sums.cmd_set, sums.large_cmd_set)),
        ("delete_hits", of(sums.delete_hits, sums.large_delete_hits)),
        ("incr_hits", of(sums.incr_hits, sums.large_incr_hits)),
        ("decr_hits", of(sums.decr_hits, sums.large_decr_hits)),
        ("cas_hits", of(sums.cas_hits, sums.large_cas_hits)),
        ("cas_badval", of(sums.cas_badval, sums.large_cas_badval)),
        ("touch_hits", of(sums.touch_hits, sums.large_touch_hits)),
    ]
}
