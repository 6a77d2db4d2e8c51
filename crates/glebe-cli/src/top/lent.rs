//! [`LentNow`] is what the usual daemon of leases tells about them.

use std::time::Duration;

use glebe::internal::sys::files::socket::Peer;
use glebe::lease::wire::Row;
use glebe::lease::{socket_path, Client, LeaseError};

/// Longest wait for a daemon that does not answer, as for a reserve.
const PATIENCE: Duration = Duration::from_secs(2);
const NAME: &str = "glebe top";

/// The daemon's statistic, and what the picture calls it.
pub const OF_LEASES: [(&str, &str); 6] = [
    ("held", "leased"),
    ("promised", "promised"),
    ("stock", "zeroed ahead"),
    ("cached", "in named caches"),
    ("grown", "added for leases"),
    ("returning", "on the way back"),
];

#[derive(Clone, Debug)]
pub struct LentNow {
    pub path: String,
    /// The process that listens: the daemon, or a service manager that listened for it. 0 if this
    /// process may not know it.
    pub pid: u32,
    pub rows: Vec<Row>,
    /// Bytes of each kind in [`OF_LEASES`].
    pub bytes: [u64; 6],
}

impl LentNow {
    pub fn look() -> Result<Self, LeaseError> {
        let path = socket_path();
        let client = Client::connect_within(&path, NAME, PATIENCE)?;
        let (rows, stats) = (client.list()?, client.stats()?);
        let of = |(name, _): (&str, &str)| {
            let prefix = format!("glebe_lease_{name}_bytes ");
            let line = stats.lines().find_map(|line| line.strip_prefix(&prefix));
            line.and_then(|value| value.parse().ok()).unwrap_or(0)
        };
        let pid = Peer::of(&client).map_or(0, |peer| peer.pid);
        Ok(Self { path: path.display().to_string(), pid, rows, bytes: OF_LEASES.map(of) })
    }

    pub fn leased(&self) -> u64 {
        self.bytes[0]
    }

    pub fn promised(&self) -> u64 {
        self.bytes[1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_daemon_has_each_statistic() {
        let text = glebed::Stats::default().to_openmetrics();
        for (name, _) in OF_LEASES {
            assert!(text.contains(&format!("\nglebe_lease_{name}_bytes 0\n")), "{name}");
        }
    }

    #[test]
    fn leased_and_promised_bytes_are_of_their_names() {
        assert_eq!([OF_LEASES[0].0, OF_LEASES[1].0], ["held", "promised"]);
    }
}
