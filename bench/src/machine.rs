//! [`Machine`]: the facts that a figure means nothing without, read from `/proc` and `/sys`.
//!
//! A fact that cannot be read is `unknown` or 0: it must not make a run fail.

use std::fs;
use std::path::Path;

use glebe::sys::page_size;
use glebe::units::Bytes;
use serde::Serialize;

/// The machine a benchmark ran on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Machine {
    /// Kernel release.
    pub kernel: String,
    /// Processors online, whether or not this process may use them.
    pub cpus: u64,
    /// Memory the kernel manages.
    pub memory_bytes: u64,
    /// Base page.
    pub page_bytes: u64,
    /// Mode of transparent hugepages.
    pub thp: String,
    /// Whether this process has CAP_SYS_ADMIN, which shows page frames and changes pools.
    pub privileged: bool,
}

impl Machine {
    /// Reads the facts of this machine.
    #[must_use]
    pub fn read() -> Self {
        Self::read_below(Path::new("/"))
    }

    fn read_below(root: &Path) -> Self {
        let text = |path| fs::read_to_string(root.join(path)).unwrap_or_default();
        let or_unknown = |fact: Option<&str>| match fact {
            Some(fact) if !fact.is_empty() => fact.to_string(),
            _ => "unknown".to_string(),
        };
        Self {
            kernel: or_unknown(Some(text("proc/sys/kernel/osrelease").trim())),
            cpus: cpus(&text("proc/stat")),
            memory_bytes: meminfo(&text("proc/meminfo"), "MemTotal").unwrap_or(Bytes::ZERO).get(),
            page_bytes: page_size().bytes().get(),
            thp: or_unknown(chosen(&text("sys/kernel/mm/transparent_hugepage/enabled"))),
            privileged: privileged(&text("proc/self/status")),
        }
    }
}

/// The amount after `name:` in the text of `/proc/meminfo`.
pub(crate) fn meminfo(text: &str, name: &str) -> Option<Bytes> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(Bytes::new(kib.checked_mul(1 << 10)?))
}

/// Lines `cpuN` of `/proc/stat`; the line `cpu` is their sum.
fn cpus(stat: &str) -> u64 {
    let numbered = |line: &&str| {
        line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    stat.lines().filter(numbered).count() as u64
}

/// The word in brackets.
fn chosen(modes: &str) -> Option<&str> {
    let (_, rest) = modes.split_once('[')?;
    Some(rest.split_once(']')?.0)
}

fn privileged(status: &str) -> bool {
    const CAP_SYS_ADMIN: u64 = 1 << 21;
    status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & CAP_SYS_ADMIN != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_from_texts() {
        let text = "MemTotal:       24684104 kB\nMemTotalExtra: 3 kB\nMemAvailable: 7 kB\n";
        assert_eq!(meminfo(text, "MemAvailable"), Some(Bytes::new(7 << 10)));
        assert_eq!(meminfo(text, "MemTotal"), Some(Bytes::new(24_684_104 << 10)));
        assert_eq!(meminfo(text, "Mem"), None);
        assert_eq!(cpus("cpu  1 2\ncpu0 1\ncpu11 2\ncpufreq 3\nintr 9\n"), 2);
        assert_eq!(chosen("always [madvise] never\n"), Some("madvise"));
        assert!(privileged("Name: x\nCapEff:\t000001ffffffffff\n"));
        assert!(!privileged("CapEff:\t00000000a80425fb\n"));
        assert!(privileged("CapEff:\t0000000000200000\n"));
        assert!(!privileged("CapEff:\t000001ffffdfffff\n"));
        assert!(!privileged(""));
    }

    #[test]
    fn nothing_to_read_is_unknown() {
        let machine = Machine::read_below(Path::new("/proc/self/fd/nothing"));
        assert_eq!((machine.kernel.as_str(), machine.cpus), ("unknown", 0));
        assert_eq!((machine.thp.as_str(), machine.privileged), ("unknown", false));
    }

    #[test]
    fn this_machine_has_them() {
        let machine = Machine::read();
        assert!(machine.cpus > 0 && machine.memory_bytes > 0, "{machine:?}");
        assert_ne!(machine.kernel, "unknown");
    }
}
