//! [`families`] returns the statistics of the cache as OpenMetrics text without an end mark: the
//! numbers that `stats` shows, under names of Prometheus' conventions.
//!
//! The reserve's own statistics are not among them.

use std::sync::atomic::{AtomicU64, Ordering};

use glebe::internal::stats::{families as written, Row, Set, Unit, Value};
use glebe::page_size;

use super::counters::{Counters, Sums};
use super::Shared;
use crate::store::{ByClass, Held};

const PREFIX: &str = "glebe_serve_";
const CLASSES: [&str; 2] = ["small", "large"];

fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn counter(name: &'static str, count: u64, what: &'static str) -> Row<'static> {
    Row { name, value: Value::Counter(Unit::Count, count), what }
}

fn counter_of_bytes(name: &'static str, bytes: u64, what: &'static str) -> Row<'static> {
    Row { name, value: Value::Counter(Unit::Bytes, bytes), what }
}

fn gauge(name: &'static str, count: u64, what: &'static str) -> Row<'static> {
    Row { name, value: Value::Gauge(Unit::Count, count), what }
}

fn bytes(name: &'static str, bytes: u64, what: &'static str) -> Row<'static> {
    Row { name, value: Value::Gauge(Unit::Bytes, bytes), what }
}

pub(super) fn families(shared: &Shared) -> String {
    let (held, sums) = (shared.store.held(), Counters::sum(shared.counters.iter()));
    let all = [Set { labels: Vec::new(), rows: whole(shared, &held, &sums) }];
    [&commands(&sums)[..], &classes(shared, &held), &all]
        .into_iter()
        .map(|sets| written(PREFIX, page_size().bytes(), sets))
        .collect()
}

fn commands(sums: &Sums) -> Vec<Set<'static>> {
    let set = |(command, result, count): (&str, &str, u64)| Set {
        labels: vec![("command", command.to_owned()), ("result", result.to_owned())],
        rows: vec![counter("commands", count, "commands on items, by their result")],
    };
    let all = [
        ("get", "hit", sums.get_hits),
        ("get", "miss", sums.get_misses),
        ("touch", "hit", sums.touch_hits),
        ("touch", "miss", sums.touch_misses),
        ("delete", "hit", sums.delete_hits),
        ("delete", "miss", sums.delete_misses),
        ("incr", "hit", sums.incr_hits),
        ("incr", "miss", sums.incr_misses),
        ("decr", "hit", sums.decr_hits),
        ("decr", "miss", sums.decr_misses),
        ("cas", "hit", sums.cas_hits),
        ("cas", "miss", sums.cas_misses),
        ("cas", "changed", sums.cas_badval),
    ];
    all.into_iter().map(set).collect()
}

fn classes(shared: &Shared, held: &Held) -> Vec<Set<'static>> {
    let events = &shared.store.events;
    let (items, used) = (held.large_items, held.large_bytes);
    let now = [(held.items.saturating_sub(items), held.bytes.saturating_sub(used)), (items, used)];
    let rows = |class: usize| {
        let of = |count: &ByClass| count.of(class);
        vec![
            gauge("items", now[class].0, "items in the cache"),
            bytes("items_bytes", now[class].1, "bytes of items: head, key and value, rounded up"),
            counter("evicted_items", of(&events.evicted), "items evicted for new ones"),
            counter(
                "evicted_unread_items",
                of(&events.evicted_unfetched),
                "items evicted that no client had read",
            ),
            counter(
                "recalled_items",
                of(&events.recalled),
                "items found lost with memory that recalls or leases took",
            ),
            counter("reclaimed_items", of(&events.reclaimed), "expired or flushed items removed"),
            counter(
                "expired_unread_items",
                of(&events.expired_unfetched),
                "items that expired before any client read them",
            ),
            counter("refused_items", of(&events.no_memory), "items refused for lack of memory"),
        ]
    };
    let labels = |class: &str| vec![("class", class.to_owned())];
    (0..CLASSES.len()).map(|nth| Set { labels: labels(CLASSES[nth]), rows: rows(nth) }).collect()
}

fn whole(shared: &Shared, held: &Held, sums: &Sums) -> Vec<Row<'static>> {
    let (events, totals) = (&shared.store.events, &shared.totals);
    vec![
        counter("sets", sums.cmd_set, "commands that store: set, add, replace, append, cas, ms"),
        counter("flushes", sums.cmd_flush, "commands that flush all items"),
        counter("meta_commands", sums.cmd_meta, "commands of the meta protocol"),
        counter("stored_items", read(&events.stored), "items stored"),
        counter("too_large_items", read(&events.too_large), "items refused for their length"),
        counter("expired_gets", read(&events.get_expired), "lookups of expired items"),
        counter("flushed_gets", read(&events.get_flushed), "lookups of flushed items"),
        counter_of_bytes("received_bytes", sums.bytes_read, "bytes that clients sent"),
        counter_of_bytes("sent_bytes", sums.bytes_written, "bytes sent to clients"),
        gauge("connections", read(&totals.now), "connections of clients"),
        gauge("connections_max", shared.settings.conns as u64, "most connections at a time"),
        counter("accepted_connections", read(&totals.all), "connections accepted"),
        counter(
            "refused_connections",
            read(&totals.refused),
            "connections refused beyond the limit",
        ),
        counter(
            "accept_pauses",
            read(&totals.paused),
            "times the server accepted none, being full",
        ),
        counter("idle_closes", sums.idle_kicks, "connections closed for being idle"),
        counter(
            "unread_closes",
            sums.answer_kicks,
            "connections closed because their clients took no answers",
        ),
        counter(
            "stalled_closes",
            sums.value_kicks,
            "connections closed because a value stalled and others had no room",
        ),
        counter("turns_ended", sums.conn_yields, "turns of connections ended by their limit"),
        gauge("threads", shared.settings.threads as u64, "threads that serve"),
        bytes("limit_bytes", held.most, "most memory of the cache, as set"),
        bytes(
            "limit_now_bytes",
            held.limit,
            "most memory of the cache that recalls and leases leave",
        ),
        bytes("used_bytes", held.used, "memory that counts against the limit"),
        bytes("taken_bytes", held.taken, "memory of the reserve that recalls and leases have"),
        bytes("index_bytes", held.index, "memory of the index"),
        bytes("answers_bytes", read(&shared.answers), "answers that clients have not taken"),
        bytes("values_bytes", read(&shared.under_way), "values that clients are sending"),
    ]
}
