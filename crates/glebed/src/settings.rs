//! [`Settings`] of the daemon.

use std::path::PathBuf;
use std::time::Duration;

use glebe::contig::Node;
use glebe::units::{Bytes, PageSize};
use glebe_lease::wire::FRAMES_MAX;

use crate::caches::CACHES_MAX;

/// Page of the pool that `contig::Options::bricks_of` takes.
const PAGE: PageSize = PageSize::new(2 << 20).unwrap();
/// An answer has the frames of one such brick.
const BRICK_MAX: PageSize = PageSize::new(PAGE.bytes().get() * FRAMES_MAX as u64).unwrap();
/// Margin for connections of other users, new pages while pages of clients are taken back, and all
/// the rest.
const OTHERS: u64 = 256;

/// Limits for each user and connection; 0 sets no limit. Root has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Bytes that a user may hold, with promises.
    pub user: Bytes,
    /// Bytes that a user may promise itself.
    pub promised: Bytes,
    /// Bytes that a user may hold by revocable leases.
    pub revocable: Bytes,
    /// Bytes of a second's zeroing that a user's returned leases may cost.
    pub zeroing: Bytes,
    /// Connections of a user.
    pub connections: usize,
    /// Leases and promises of a connection.
    pub leases: usize,
}

/// The daemon's settings.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Path of the socket.
    pub path: PathBuf,
    /// Mode of the socket.
    pub mode: u32,
    /// Group of the socket, if the machine has that group.
    pub group: Option<String>,
    /// Bytes zeroed ahead, which caches do not use.
    pub zeroed: Bytes,
    /// Time between the request for a revocable lease and its end.
    pub notice: Duration,
    /// Time after which an unused named cache loses its memory.
    pub cache_idle: Duration,
    /// Most bytes to add to the reserve when leases need them, within the reserve's room.
    pub grow: Bytes,
    /// Time after which memory is given back that was added and that nobody uses.
    pub idle: Duration,
    /// Time without an attempt to add memory, after one that failed. Tests shorten it.
    pub rest: Duration,
    /// Time between two signs of life (`WATCHDOG=1`) that the server thread sends to the service
    /// manager.
    pub pulse: Option<Duration>,
    /// Most descriptors that the service manager stores, so that the next daemon knows the leases
    /// of this one; 0 if it stores none.
    pub stored: usize,
    /// The NUMA nodes that the reserve is limited to; any if empty.
    pub nodes: Vec<Node>,
    /// Limits.
    pub quota: Quota,
}

impl Settings {
    /// Returns the smallest size of bricks that makes fewer bricks than half of `limit` out of
    /// `memory` and all memory that may be added. If none suffices, returns the largest size.
    #[must_use]
    pub fn brick(&self, memory: Bytes, limit: u64) -> PageSize {
        let is_enough = |each: &PageSize| self.bricks(memory, *each) < limit.div_ceil(2);
        let sizes = (PAGE.bytes().get().ilog2()..=BRICK_MAX.bytes().get().ilog2())
            .filter_map(|log| PageSize::new(1 << log));
        sizes.clone().find(is_enough).unwrap_or(BRICK_MAX)
    }

    fn bricks(&self, memory: Bytes, each: PageSize) -> u64 {
        memory.pages_up(each).get() + self.grow.pages_up(each).get()
    }

    /// Returns the bytes that may be added, rounded up to bricks of `each`.
    #[must_use]
    pub fn grown(&self, each: PageSize) -> Bytes {
        let whole = self.grow.pages_up(each).checked_bytes(each);
        whole.unwrap_or_else(|| self.grow.pages_down(each).bytes(each))
    }

    /// Returns the descriptors that the daemon needs with a reserve of `memory` in bricks of
    /// `each`, one user's connections and shared caches, and a margin. Each brick has one, also an
    /// added one, and so has each file and connection of an earlier daemon.
    #[must_use]
    pub fn descriptors(&self, memory: Bytes, each: PageSize) -> u64 {
        let bricks = self.bricks(memory, each);
        let of_user = self.quota.connections as u64 + CACHES_MAX as u64;
        bricks + self.stored as u64 + of_user + OTHERS
    }
}

/// Returns `$GLEBE_LEASES`, else the usual path of a daemon of this user.
fn own_path() -> PathBuf {
    let machine = || PathBuf::from("/run/glebed/leases");
    match (std::env::var_os("GLEBE_LEASES"), std::env::var_os("XDG_RUNTIME_DIR")) {
        (Some(given), _) => given.into(),
        (None, Some(dir)) if !rustix::process::geteuid().is_root() => {
            PathBuf::from(dir).join("glebed/leases")
        }
        _ => machine(),
    }
}

impl Default for Quota {
    fn default() -> Self {
        Self {
            user: Bytes::ZERO,
            promised: Bytes::ZERO,
            revocable: Bytes::ZERO,
            zeroing: Bytes::ZERO,
            connections: 256,
            leases: 1024,
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            path: own_path(),
            mode: 0o660,
            group: Some("glebe".to_owned()),
            zeroed: Bytes::mib(64),
            notice: Duration::from_millis(100),
            cache_idle: Duration::from_secs(600),
            grow: Bytes::ZERO,
            idle: Duration::from_secs(60),
            rest: Duration::from_secs(10),
            pulse: None,
            stored: 0,
            nodes: Vec::new(),
            quota: Quota::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bricks_are_fewer_than_half_of_the_limit() {
        let mib = |memory, grow, limit| {
            let settings = Settings { grow: Bytes::mib(grow), ..Settings::default() };
            settings.brick(Bytes::mib(memory), limit).bytes().get() >> 20
        };
        assert_eq!(mib(1024, 0, u64::MAX), 2);
        assert_eq!([1025, 1024, 514, 513, 512].map(|limit| mib(1024, 0, limit)), [2, 4, 4, 4, 8]);
        assert_eq!([mib(1000, 24, 1025), mib(1000, 26, 1025)], [2, 4], "with what may be added");
        assert_eq!(mib(1 << 20, 0, 65530), 64, "a tebibyte");
        assert_eq!(mib(1 << 20, 0, 0), BRICK_MAX.bytes().get() >> 20);
        let settings = Settings::default();
        let two = [2, 4].map(|mib| PageSize::new(mib << 20).unwrap());
        let [one, other] = two.map(|each| settings.descriptors(Bytes::mib(1024), each));
        assert_eq!(one - other, 256);
        let grown = |grow| Settings { grow, ..Settings::default() }.grown(two[1]).get();
        let most = u64::MAX - ((4 << 20) - 1);
        assert_eq!(
            [0, 1, 4 << 20, u64::MAX].map(|b| grown(Bytes::new(b))),
            [0, 4 << 20, 4 << 20, most]
        );
    }
}
