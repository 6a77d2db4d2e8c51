//! A memory cgroup of version 1 for a test.

use std::fs;
use std::path::{Path, PathBuf};

use glebe::units::Bytes;

/// A memory cgroup below this process's own, removed at the end.
pub struct Group(pub PathBuf);

impl Group {
    /// With a limit; the reason where none can be made.
    pub fn make(limit: Bytes) -> Result<Self, String> {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let own = groups.lines().find_map(|line| line.split_once(":memory:")).map(|(_, own)| own);
        let own = own.ok_or("no memory controller of version 1")?;
        let mount = Path::new("/sys/fs/cgroup/memory");
        let below = Some(mount.join(own.trim_start_matches('/'))).filter(|dir| dir.is_dir());
        let dir = below
            .unwrap_or_else(|| mount.to_owned())
            .join(format!("glebe-test-{}", std::process::id()));
        fs::create_dir(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        let group = Self(dir);
        fs::write(group.0.join("memory.limit_in_bytes"), limit.get().to_string())
            .map_err(|error| format!("the limit: {error}"))?;
        Ok(group)
    }

    /// Processes of it that the kernel killed.
    pub fn kills(&self) -> u64 {
        let text = fs::read_to_string(self.0.join("memory.oom_control")).unwrap();
        let kills = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        kills.map_or(0, |kills| kills.parse().unwrap())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A group stays busy until the last process in it has been waited for; it has.
        if let Err(error) = fs::remove_dir(&self.0) {
            println!("{} is left: {error}", self.0.display());
        }
    }
}
