//! A tree of files as a machine has that runs this process in a group of version 2.

use std::fs;
use std::path::Path;

use glebe::units::Bytes;
use glebe_testing::Scratch;

/// See the module. Removed when dropped.
pub struct Tree(Scratch);

impl Tree {
    /// An empty tree.
    pub fn new(name: &str) -> Self {
        Self(Scratch::new(name))
    }

    /// A group with a limit, on a machine that has room.
    pub fn v2(name: &str, limit: Bytes, used: Bytes) -> Self {
        let mount = "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        let tree = Self::new(name).machine(Bytes::gib(8), Bytes::gib(4));
        let tree = tree.file("proc/self/cgroup", "0::/a\n").file("proc/self/mountinfo", mount);
        let tree = tree.file("sys/fs/cgroup/a/memory.max", &format!("{}\n", limit.get()));
        tree.set_used(used);
        tree
    }

    /// What /proc/meminfo says.
    pub fn machine(self, total: Bytes, available: Bytes) -> Self {
        let kib = |bytes: Bytes| bytes.get() >> 10;
        let text = format!(
            "MemTotal: {} kB\nMemFree: {1} kB\nMemAvailable: {1} kB\n",
            kib(total),
            kib(available)
        );
        self.file("proc/meminfo", &text)
    }

    /// A file, made or written over.
    pub fn file(self, path: &str, text: &str) -> Self {
        self.set(path, text);
        self
    }

    /// As [`Tree::file`].
    pub fn set(&self, path: &str, text: &str) {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// What the group uses.
    pub fn set_used(&self, used: Bytes) {
        self.set("sys/fs/cgroup/a/memory.current", &format!("{}\n", used.get()));
    }

    /// Its place.
    pub fn root(&self) -> &Path {
        self.0.path()
    }
}
