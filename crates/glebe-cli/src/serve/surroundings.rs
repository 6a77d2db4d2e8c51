//! Adapts the server to its limits of descriptors and mappings, and to a service manager.

use std::error::Error;
use std::time::Duration;

use glebe::internal::sys::memory::map_count::max_map_count;
use glebe::units::{Bytes, PageSize};
use glebed::Settings as Leases;
use rustix::process::{getrlimit, setrlimit, Resource};

use super::ServeArgs;

/// Allows the most descriptors that this user may have, chooses the size of bricks, and checks that
/// the descriptors suffice.
pub fn chosen_brick(args: &ServeArgs, leases: &Leases) -> Result<PageSize, Box<dyn Error>> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit)?;
    let memory = Bytes::mib(args.memory_limit);
    let files = limit.maximum.unwrap_or(u64::MAX);
    let brick = leases.brick(memory, files.min(max_map_count()?));
    let of_cache = args.conn_limit as u64 + args.threads as u64 * 4;
    let needed = leases.descriptors(memory, brick) + of_cache;
    match needed <= files {
        true => Ok(brick),
        false => Err(format!(
            "leases of {memory} and {} more, a descriptor for each {}, {} stored descriptors, {} \
             connections to the cache, and connections of one user with a margin for others need \
             {needed} descriptors; the limit is {files}: raise it (`ulimit -Hn`, LimitNOFILE= of a \
             service), or lower -m, -c, --lease-grow or --lease-connections",
            leases.grow,
            brick.bytes(),
            leases.stored,
            args.conn_limit
        )
        .into()),
    }
}

/// Returns half of the time after which the service manager takes this process for dead.
pub fn pulse() -> Option<Duration> {
    let mut micros = 0;
    let is_watched = sd_notify::watchdog_enabled(false, &mut micros) && micros > 0;
    is_watched.then(|| Duration::from_micros(micros / 2))
}

/// Returns the most descriptors that the service manager stores for the next process.
pub fn stored() -> usize {
    let has_socket = std::env::var_os("NOTIFY_SOCKET").is_some();
    let most = std::env::var("FDSTORE").ok().filter(|_| has_socket);
    most.and_then(|most| most.parse().ok()).unwrap_or(0)
}
