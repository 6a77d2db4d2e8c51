//! Parses memcached's extended options, `-o`. Ignores options for memcached's memory or for parts
//! that this server lacks, and refuses unknown options.

use std::time::Duration;

use crate::usage;

pub struct Extended {
    /// True if connections beyond the limit are refused, false if they wait.
    pub refuse_fast: bool,
    /// Longest time without a command before the server closes a connection.
    pub idle: Option<Duration>,
}

const TUNING: &[&str] = &[
    "drop_privileges",
    "hash_algorithm",
    "hashexpand",
    "hashpower",
    "hot_lru_pct",
    "hot_max_factor",
    "inline_ascii_response",
    "lru_crawler",
    "lru_crawler_sleep",
    "lru_crawler_tocrawl",
    "lru_maintainer",
    "modern",
    "read_buf_mem_limit",
    "relaxed_privileges",
    "resp_obj_mem_limit",
    "slab_automove",
    "slab_automove_freeratio",
    "slab_automove_ratio",
    "slab_automove_window",
    "slab_chunk_max",
    "slab_reassign",
    "slab_sizes",
    "tail_repair_time",
    "temp_lru",
    "temporary_ttl",
    "track_sizes",
    "warm_lru_pct",
    "warm_max_factor",
    "watcher_logbuf_size",
    "worker_logbuf_size",
    "lru_segmented",
];

pub fn parse(options: &[&str]) -> Result<Extended, Box<dyn std::error::Error>> {
    let mut extended = Extended { refuse_fast: true, idle: None };
    for option in options.iter().filter(|option| !option.is_empty()) {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        match name {
            "maxconns_fast" => extended.refuse_fast = true,
            "no_maxconns_fast" => extended.refuse_fast = false,
            "idle_timeout" => {
                let seconds = value.parse::<u64>();
                let seconds = seconds.or_else(|e| usage(format!("-o {option}: {e}")))?;
                extended.idle = Some(Duration::from_secs(seconds)).filter(|idle| !idle.is_zero());
            }
            _ if TUNING.contains(&name.strip_prefix("no_").unwrap_or(name)) => {}
            _ => return usage(format!("-o {option}: there is no such thing here")),
        }
    }
    Ok(extended)
}
