//! What this process holds of the machine between two reserves: nothing may be left of the first.
//!
//! Unit: bytes of resident memory; descriptors and threads by number. Threads that have been told
//! to end are waited for. Source: proc_pid_status(5).

use std::fs;
use std::time::Duration;

use glebe::units::Bytes;

use crate::clock;

/// The allocator and the harness keep what they once had; a reserve is many times as large.
const RSS_SLACK: Bytes = Bytes::mib(32);
/// How long threads may take to end on a busy machine.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is held at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Footing {
    rss: Bytes,
    descriptors: usize,
    threads: usize,
}

impl Footing {
    /// What is held now.
    pub(super) fn now() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = rss.and_then(|text| text.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
        Self {
            rss: Bytes::new(kib.unwrap_or_default() << 10),
            descriptors: count("/proc/self/fd"),
            threads: count("/proc/self/task"),
        }
    }

    /// What is held beyond this, in words; `None` if nothing.
    pub(super) fn left(&self) -> Option<String> {
        let deadline = clock::wall() + PATIENCE;
        loop {
            let now = Self::now();
            let more = now.descriptors > self.descriptors
                || now.threads > self.threads
                || now.rss > self.rss.checked_add(RSS_SLACK).unwrap_or(self.rss);
            if !more {
                return None;
            }
            if clock::wall() > deadline {
                return Some(format!("left behind: {now:?}, where {self:?} was held before"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn count(dir: &str) -> usize {
    fs::read_dir(dir).map_or(0, Iterator::count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_on_to_is_told() {
        let before = Footing { descriptors: 0, ..Footing::now() };
        let held = Footing { threads: usize::MAX, ..Footing::now() };
        assert!(before.descriptors < Footing::now().descriptors && held.threads > 1);
    }
}
