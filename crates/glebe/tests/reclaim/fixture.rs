//! A tree of files as on a machine that runs this process in a group of version 2.

use std::fs;
use std::path::Path;

use glebe::units::Bytes;
use glebe_testing::Scratch;

/// Fixture files, removed when dropped.
pub struct Tree(Scratch);

impl Tree {
    /// Makes an empty tree.
    pub fn new(name: &str) -> Self {
        Self(Scratch::new(name))
    }

    /// Makes a tree with a limited group, on a machine with room.
    pub fn v2(name: &str, limit: Bytes, used: Bytes) -> Self {
        let mount = "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        let tree = Self::new(name).machine(Bytes::gib(8), Bytes::gib(4));
        let tree = tree.file("proc/self/cgroup", "0::/a\n").file("proc/self/mountinfo", mount);
        let tree = tree.file("sys/fs/cgroup/a/memory.max", &format!("{}\n", limit.get()));
        tree.set_used(used);
        tree
    }

    /// Writes `/proc/meminfo`.
    pub fn machine(self, total: Bytes, available: Bytes) -> Self {
        let kib = |bytes: Bytes| bytes.get() >> 10;
        let text = format!(
            "MemTotal: {} kB\nMemFree: {1} kB\nMemAvailable: {1} kB\n",
            kib(total),
            kib(available)
        );
        self.file("proc/meminfo", &text)
    }

    /// Writes a file.
    pub fn file(self, path: &str, text: &str) -> Self {
        self.set(path, text);
        self
    }

    /// Writes a file.
    pub fn set(&self, path: &str, text: &str) {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Sets the group's usage.
    pub fn set_used(&self, used: Bytes) {
        self.set("sys/fs/cgroup/a/memory.current", &format!("{}\n", used.get()));
    }

    /// Returns the root of the tree.
    pub fn root(&self) -> &Path {
        self.0.path()
    }
}
