//! A memory cgroup of a test's own, below this process's own group: of version 1, or of version 2
//! where a group above passes the memory controller on. Removed when dropped. The test runs itself
//! in it as a child process: who is killed there is counted, and this process is outside.
#![allow(dead_code)] // each test takes a part

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use glebe::units::Bytes;

const V1: &str = "/sys/fs/cgroup/memory";
const V2: &str = "/sys/fs/cgroup";

/// A group.
pub struct Group {
    dir: PathBuf,
    is_v2: bool,
}

impl Group {
    /// A group that may hold `limit`, without swap; why there is none.
    pub fn make(limit: Bytes) -> Result<Self, String> {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let own = |mark: &str| {
            let own = groups.lines().find_map(|line| line.split_once(mark));
            own.map(|(_, own)| own.trim_start_matches('/'))
        };
        let below = |mount: &str, own: &str| {
            let dir = Path::new(mount).join(own);
            Some(dir).filter(|dir| dir.is_dir()).unwrap_or_else(|| mount.into())
        };
        let (parent, is_v2) = match (own(":memory:"), own("0::")) {
            (Some(own), _) => (below(V1, own), false),
            (None, Some(own)) => (passes_on(&below(V2, own))?, true),
            (None, None) => return Err("no memory controller".into()),
        };
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let nth = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = parent.join(format!("glebe-test-{}-{nth}", std::process::id()));
        fs::create_dir(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        // From here on the drop removes it.
        let group = Self { dir, is_v2 };
        let (most, swap) = match is_v2 {
            true => ("memory.max", "memory.swap.max"),
            // A limit with swap, if it is the same, is met first.
            false => ("memory.limit_in_bytes", "memory.swappiness"),
        };
        let written = fs::write(group.dir.join(most), limit.get().to_string());
        written.map_err(|error| format!("the limit: {error}"))?;
        // Only kernels with swap have it.
        let _ = fs::write(group.dir.join(swap), "0");
        Ok(group)
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Processes that were killed for want of memory.
    pub fn kills(&self) -> u64 {
        let name = if self.is_v2 { "memory.events" } else { "memory.oom_control" };
        let text = fs::read_to_string(self.dir.join(name)).unwrap();
        let kills = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        kills.map_or(0, |kills| kills.parse().unwrap())
    }
}

/// Puts this process into the group of directory `dir`.
pub fn enter(dir: &Path) {
    fs::write(dir.join("cgroup.procs"), std::process::id().to_string()).unwrap();
}

/// The nearest group from `own` upwards that passes the memory controller on to its children.
fn passes_on(own: &Path) -> Result<PathBuf, String> {
    let does = |dir: &&Path| {
        let listed = fs::read_to_string(dir.join("cgroup.subtree_control")).unwrap_or_default();
        listed.split_whitespace().any(|name| name == "memory")
    };
    let found = own.ancestors().take_while(|dir| dir.starts_with(V2)).find(does);
    found.map(Path::to_owned).ok_or_else(|| "no group passes the memory controller on".into())
}

impl Drop for Group {
    fn drop(&mut self) {
        // Else what it holds of the page cache keeps it alive.
        let _ = fs::write(self.dir.join("memory.force_empty"), "0");
        // A group stays busy until the last process in it has been waited for; it has.
        if let Err(error) = fs::remove_dir(&self.dir) {
            println!("{} is left: {error}", self.dir.display());
        }
    }
}
