//! [`Tree`] is a folder with files like the kernel's, such as those of a cgroup of version 2.

use std::fs;
use std::path::Path;

use glebe::units::Bytes;
use glebe_testing::Scratch;

pub struct Tree(Scratch);

impl Tree {
    pub fn new(name: &str) -> Self {
        Self(Scratch::new(name))
    }

    pub fn v2(name: &str, limit: Bytes, used: Bytes) -> Self {
        let mount = "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        let tree = Self::new(name).machine(Bytes::gib(8), Bytes::gib(4));
        let tree = tree.file("proc/self/cgroup", "0::/a\n").file("proc/self/mountinfo", mount);
        let tree = tree.file("sys/fs/cgroup/a/memory.max", &format!("{}\n", limit.get()));
        tree.set_used(used);
        tree
    }

    pub fn machine(self, total: Bytes, available: Bytes) -> Self {
        let kib = |bytes: Bytes| bytes.get() >> 10;
        let text = format!(
            "MemTotal: {} kB\nMemFree: {1} kB\nMemAvailable: {1} kB\n",
            kib(total),
            kib(available)
        );
        self.file("proc/meminfo", &text)
    }

    pub fn file(self, path: &str, text: &str) -> Self {
        self.set(path, text);
        self
    }

    pub fn set(&self, path: &str, text: &str) {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub fn set_used(&self, used: Bytes) {
        self.set("sys/fs/cgroup/a/memory.current", &format!("{}\n", used.get()));
    }

    pub fn root(&self) -> &Path {
        self.0.path()
    }
}
