//! Answers `stats` with memcached's names. Names without a counterpart in glebe have the value 0,
//! for clients that look for them. Class 1 is small items, which share pages; class 2 is large
//! items.

mod classes;

use std::fmt::Write;
use std::path::Path;
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use glebe::contig::Node;
use glebe::units::Bytes;

use super::answer::line;
use super::conn::State;
use super::counters::Counters;
use super::listing::Dump;
use super::tls::Keys;
use super::{Shared, VERSION};
use crate::store::Held;

const ZEROS: &[&str] = &[
    "hash_is_expanding",
    "slab_reassign_rescues",
    "slab_reassign_chunk_rescues",
    "slab_reassign_inline_reclaim",
    "slab_reassign_busy_items",
    "slab_reassign_busy_deletes",
    "slab_reassign_busy_nomem",
    "slab_reassign_running",
    "slabs_moved",
    "lru_crawler_running",
    "lru_crawler_starts",
    "malloc_fails",
    "log_worker_dropped",
    "evicted_active",
    "lrutail_reflocked",
    "moves_to_cold",
    "moves_to_warm",
    "moves_within_lru",
];

struct Stats<'a>(&'a mut Vec<u8>);

impl Stats<'_> {
    fn put(&mut self, name: impl std::fmt::Display, value: impl std::fmt::Display) {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = write!(text, "STAT {name} {value}\r\n");
        self.0.extend_from_slice(text.as_bytes());
    }
}

fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// Answers `stats`, or returns the listing that it asks for.
pub(super) fn answer(shared: &Shared, words: &[u8], conn: u64, out: &mut Vec<u8>) -> Option<Dump> {
    let mut words = words.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
    let word = words.next().unwrap_or_default();
    let mut stats = Stats(out);
    match word {
        b"" => general(shared, &mut stats),
        b"settings" => settings(shared, &mut stats),
        b"items" => classes::items(shared, &mut stats),
        b"slabs" => classes::slabs(shared, &mut stats),
        b"sizes" => stats.put("sizes_status", "disabled"),
        b"conns" => conns(shared, conn, &mut stats),
        b"reset" => {
            shared.counters.iter().for_each(Counters::reset);
            shared.prefixes.reset();
            shared.store.reset();
            out.extend_from_slice(b"RESET\r\n");
            return None;
        }
        b"cachedump" => match Dump::of_cache(shared, words.next(), words.next()) {
            Ok(dump) => return Some(dump),
            Err(answer) => {
                line(out, answer);
                return None;
            }
        },
        b"detail" => {
            detail(shared, words.next(), out);
            return None;
        }
        _ => {
            out.extend_from_slice(b"ERROR\r\n");
            return None;
        }
    }
    out.extend_from_slice(b"END\r\n");
    None
}

fn detail(shared: &Shared, word: Option<&[u8]>, out: &mut Vec<u8>) {
    let answer = match word {
        _ if !shared.settings.dump => "CLIENT_ERROR stats detail not allowed",
        Some(b"dump") => return shared.prefixes.dump(out),
        Some(word @ (b"on" | b"off")) => {
            shared.prefixes.switch(word == b"on");
            "OK"
        }
        _ => "CLIENT_ERROR usage: stats detail on|off|dump",
    };
    line(out, answer);
}

fn general(shared: &Shared, stats: &mut Stats<'_>) {
    let (store, settings, totals) = (&shared.store, &shared.settings, &shared.totals);
    let (events, sums, held) = (&store.events, Counters::sum(shared.counters.iter()), store.held());
    stats.put("pid", process::id());
    stats.put("uptime", store.clock().uptime());
    stats.put("time", store.clock().date());
    stats.put("version", VERSION);
    stats.put("libevent", "none");
    stats.put("pointer_size", usize::BITS);
    let usage = cpu_times();
    stats.put("rusage_user", usage.0);
    stats.put("rusage_system", usage.1);
    let now = read(&totals.now);
    stats.put("max_connections", settings.conns);
    stats.put("curr_connections", now + shared.listeners());
    stats.put("total_connections", read(&totals.all) + shared.listeners());
    stats.put("rejected_connections", read(&totals.refused));
    stats.put("connection_structures", now + shared.listeners());
    stats.put("response_obj_count", 0);
    stats.put("response_obj_bytes", read(&shared.answers));
    stats.put("response_obj_oom", sums.answer_kicks);
    stats.put("read_buf_count", settings.threads);
    stats.put("read_buf_bytes", read(&shared.under_way));
    stats.put("read_buf_bytes_free", 0);
    stats.put("read_buf_oom", sums.value_kicks);
    stats.put("reserved_fds", 0);
    stats.put("cmd_get", sums.cmd_get);
    stats.put("cmd_set", sums.cmd_set);
    stats.put("cmd_flush", sums.cmd_flush);
    stats.put("cmd_touch", sums.cmd_touch);
    stats.put("cmd_meta", sums.cmd_meta);
    stats.put("get_hits", sums.get_hits);
    stats.put("get_misses", sums.get_misses);
    stats.put("get_expired", read(&events.get_expired));
    stats.put("get_flushed", read(&events.get_flushed));
    stats.put("delete_misses", sums.delete_misses);
    stats.put("delete_hits", sums.delete_hits);
    stats.put("incr_misses", sums.incr_misses);
    stats.put("incr_hits", sums.incr_hits);
    stats.put("decr_misses", sums.decr_misses);
    stats.put("decr_hits", sums.decr_hits);
    stats.put("cas_misses", sums.cas_misses);
    stats.put("cas_hits", sums.cas_hits);
    stats.put("cas_badval", sums.cas_badval);
    stats.put("touch_hits", sums.touch_hits);
    stats.put("touch_misses", sums.touch_misses);
    stats.put("store_too_large", read(&events.too_large));
    stats.put("store_no_memory", events.no_memory.sum());
    stats.put("auth_cmds", sums.auth_cmds);
    stats.put("auth_errors", sums.auth_errors);
    stats.put("idle_kicks", sums.idle_kicks);
    stats.put("bytes_read", sums.bytes_read);
    stats.put("bytes_written", sums.bytes_written);
    stats.put("limit_maxbytes", held.most);
    stats.put("accepting_conns", u8::from(now < settings.conns as u64 || settings.refuse_fast));
    stats.put("listen_disabled_num", read(&totals.paused));
    stats.put("time_in_listen_disabled_us", 0);
    stats.put("threads", settings.threads);
    stats.put("conn_yields", sums.conn_yields);
    stats.put("hash_power_level", (held.index / 16).max(1).ilog2());
    stats.put("hash_bytes", held.index);
    tls_and_watchers(shared, sums.ssl_handshake_errors, stats);
    for zero in ZEROS {
        stats.put(zero, 0);
    }
    items_in_all(shared, &held, stats);
}

fn tls_and_watchers(shared: &Shared, handshake_errors: u64, stats: &mut Stats<'_>) {
    if let Some(keys) = &shared.keys {
        stats.put("ssl_handshake_errors", handshake_errors);
        stats.put("time_since_server_cert_refresh", keys.age());
    }
    let [watchers, sent, skipped] = shared.store.watch.counts();
    stats.put("log_worker_written", sent);
    stats.put("log_watcher_skipped", skipped);
    stats.put("log_watcher_sent", sent);
    stats.put("log_watchers", watchers);
}

fn items_in_all(shared: &Shared, held: &Held, stats: &mut Stats<'_>) {
    let events = &shared.store.events;
    stats.put("bytes", held.bytes);
    stats.put("curr_items", held.items);
    stats.put("total_items", read(&events.stored));
    stats.put("slab_global_page_pool", 0);
    stats.put("expired_unfetched", events.expired_unfetched.sum());
    stats.put("evicted_unfetched", events.evicted_unfetched.sum());
    stats.put("evictions", events.evicted.sum());
    stats.put("recalled_items", events.recalled.sum());
    stats.put("reclaimed", events.reclaimed.sum());
    stats.put("limit_now", held.limit);
    stats.put("bytes_used", held.used);
    stats.put("bytes_taken", held.taken);
    on_nodes(&shared.store.on_nodes(), stats);
}

fn on_nodes(nodes: &[(Node, Bytes)], stats: &mut Stats<'_>) {
    for (node, bytes) in nodes {
        stats.put(format_args!("bytes_node_{}", node.0), bytes.get());
    }
}

/// Returns the process's user and system time in seconds.
fn cpu_times() -> (String, String) {
    // Fields 14 and 15 of the file count ticks of 10 ms. `fields` begins with field 3.
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> =
        text.rsplit(')').next().unwrap_or_default().split_ascii_whitespace().collect();
    let seconds = |nth: usize| {
        let ticks: u64 = fields.get(nth).and_then(|ticks| ticks.parse().ok()).unwrap_or(0);
        format!("{}.{:02}0000", ticks / 100, ticks % 100)
    };
    (seconds(11), seconds(12))
}

fn settings(shared: &Shared, stats: &mut Stats<'_>) {
    let settings = &shared.settings;
    let yes = |is: bool| if is { "yes" } else { "no" };
    let unix = settings.unix.as_ref().map(|(path, _)| path.display().to_string());
    let inter: Vec<String> = settings.listen.iter().map(|addr| addr.ip().to_string()).collect();
    stats.put("maxbytes", settings.memory);
    stats.put("maxconns", settings.conns);
    stats.put("tcpport", settings.listen.first().map_or(0, |addr| addr.port()));
    stats.put("udpport", 0);
    stats.put("inter", if inter.is_empty() { "NULL".into() } else { inter.join(",") });
    stats.put("verbosity", shared.verbosity.level());
    stats.put("evictions", if settings.evict { "on" } else { "off" });
    stats.put("domain_socket", unix.as_deref().unwrap_or("NULL"));
    stats
        .put("umask", settings.unix.as_ref().map_or_else(|| "0".into(), |(_, m)| format!("{m:o}")));
    stats.put("num_threads", settings.threads);
    stats.put("stat_key_prefix", shared.prefixes.delimiter());
    stats.put("detail_enabled", yes(shared.prefixes.is_on()));
    stats.put("reqs_per_event", settings.turn);
    stats.put("cas_enabled", "yes");
    stats.put("tcp_backlog", settings.backlog);
    stats.put("binding_protocol", "ascii");
    stats.put("auth_enabled_sasl", "no");
    let users = shared.passwords.as_ref().map(|users| users.path().display().to_string());
    stats.put("auth_enabled_ascii", users.as_deref().unwrap_or("no"));
    stats.put("item_size_max", settings.item_max);
    stats.put("maxconns_fast", yes(settings.refuse_fast));
    stats.put("flush_enabled", yes(settings.flush));
    stats.put("dump_enabled", yes(settings.dump));
    stats.put("shutdown_command", yes(settings.shutdown));
    stats.put("idle_timeout", settings.idle.map_or(0, |idle| idle.as_secs()));
    tls(shared, stats);
    stats.put("lru_crawler", "yes");
    stats.put("slab_reassign", "no");
    stats.put("hash_algorithm", "siphash13");
    stats.put("track_sizes", "no");
    stats.put("client_flags_size", 4);
}

fn tls(shared: &Shared, stats: &mut Stats<'_>) {
    stats.put("ssl_enabled", if shared.keys.is_some() { "yes" } else { "no" });
    let Some(files) = shared.keys.as_ref().map(Keys::files) else { return };
    let path = |path: Option<&Path>| {
        path.map_or_else(|| "NULL".to_owned(), |path| path.display().to_string())
    };
    stats.put("ssl_chain_cert", files.chain.display());
    stats.put("ssl_key", path(files.key.as_deref()));
    stats.put("ssl_verify_mode", files.clients as u8);
    stats.put("ssl_ca_cert", path(files.authorities.as_deref()));
    stats.put("ssl_session_cache", if files.resume { "yes" } else { "no" });
    stats.put("ssl_min_version", if files.only_1_3 { "tlsv1.3" } else { "tlsv1.2" });
}

fn conns(shared: &Shared, asks: u64, stats: &mut Stats<'_>) {
    let now = shared.store.clock().now();
    for conn in shared.shown().values() {
        let state = usize::from(conn.state.load(Ordering::Relaxed));
        let is_listening = state == State::Listening as usize;
        let name = if conn.number == asks { "conn_parse_cmd" } else { State::NAMES[state] };
        let mut put = |what: &str, value: &dyn std::fmt::Display| {
            stats.put(format_args!("{}:{what}", conn.number), value);
        };
        put("addr", &conn.addr);
        if !is_listening {
            put("listen_addr", &conn.listen_addr);
        }
        put("state", &name);
        if !is_listening {
            put("secs_since_last_cmd", &now.saturating_sub(conn.last.load(Ordering::Relaxed)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_of_several_nodes_has_a_line() {
        let mut out = Vec::new();
        on_nodes(&[(Node(0), Bytes::mib(2)), (Node(3), Bytes::ZERO)], &mut Stats(&mut out));
        assert_eq!(out, b"STAT bytes_node_0 2097152\r\nSTAT bytes_node_3 0\r\n");
    }
}
