//! Tests with file trees of both versions.

use std::fs;

use super::*;

struct Tree {
    root: PathBuf,
}

impl Tree {
    fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("glebe-cgroup-{}-{name}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        Self { root }
    }

    fn file(self, path: &str, text: &str) -> Self {
        let path = self.root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    fn tightest(&self, resource: Resource) -> Option<(String, u64, u64)> {
        let limit = Limits::find(&self.root, resource).unwrap().tightest().unwrap()?;
        let path = limit.path.strip_prefix(&self.root).unwrap().display().to_string();
        Some((path, limit.limit.get(), limit.usage.get()))
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.root).unwrap();
    }
}

fn huge() -> Resource {
    Resource::Hugetlb(PageSize::new(2 << 20).unwrap())
}

#[test]
fn version_2_tightest_of_all_levels_without_inactive_file() {
    let tree = Tree::new("v2")
        .file("proc/self/cgroup", "0::/a/b\n")
        .file(
            "proc/self/mountinfo",
            "9 1 0:1 / /proc rw - proc proc rw\n\
             30 20 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
        )
        .file("sys/fs/cgroup/memory.stat", "inactive_file 1\n")
        .file("sys/fs/cgroup/a/memory.max", "1000\n")
        .file("sys/fs/cgroup/a/memory.current", "900\n")
        .file("sys/fs/cgroup/a/memory.stat", "anon 5\ninactive_file 300\ninactive_file_x 9\n")
        .file("sys/fs/cgroup/a/b/memory.max", "max\n")
        .file("sys/fs/cgroup/a/b/memory.current", "900\n")
        .file("sys/fs/cgroup/a/b/hugetlb.2MB.max", "4194304\n")
        .file("sys/fs/cgroup/a/b/hugetlb.2MB.current", "0\n")
        .file("sys/fs/cgroup/a/b/hugetlb.2MB.rsvd.max", "2097152\n")
        .file("sys/fs/cgroup/a/b/hugetlb.2MB.rsvd.current", "0\n");
    assert_eq!(
        tree.tightest(Resource::Memory),
        Some(("sys/fs/cgroup/a/memory.max".into(), 1000, 600))
    );
    assert_eq!(
        tree.tightest(huge()),
        Some(("sys/fs/cgroup/a/b/hugetlb.2MB.rsvd.max".into(), 2 << 20, 0))
    );
    let gigantic = Resource::Hugetlb(PageSize::new(1 << 30).unwrap());
    assert_eq!(tree.tightest(gigantic), None);
    let tree = tree.file("sys/fs/cgroup/a/b/memory.max", "950");
    assert_eq!(
        tree.tightest(Resource::Memory),
        Some(("sys/fs/cgroup/a/b/memory.max".into(), 950, 900))
    );
}

#[test]
fn version_2_may_charge_hugetlb_to_memory() {
    let tree = Tree::new("v2-accounting")
        .file("proc/self/cgroup", "0::/\n")
        .file(
            "proc/self/mountinfo",
            "30 20 0:26 / /cg rw - cgroup2 cgroup2 rw,memory_hugetlb_accounting\n",
        )
        .file("cg/memory.max", "77\n")
        .file("cg/memory.current", "7\n");
    assert_eq!(tree.tightest(huge()), Some(("cg/memory.max".into(), 77, 7)));
}

#[test]
fn version_1_below_a_mount_that_shows_a_part() {
    let tree = Tree::new("v1")
        .file("proc/self/cgroup", "5:cpu:/x\n4:memory,other:/pod/one/two\n0::/\n")
        .file(
            "proc/self/mountinfo",
            "35 31 0:32 /pod /sys/fs/a\\040b rw,relatime - cgroup cgroup rw,memory\n",
        )
        .file("sys/fs/a b/memory.limit_in_bytes", "500\n")
        .file("sys/fs/a b/memory.usage_in_bytes", "100\n")
        .file("sys/fs/a b/one/two/memory.limit_in_bytes", "9223372036854771712\n")
        .file("sys/fs/a b/one/two/memory.usage_in_bytes", "100\n")
        .file("sys/fs/a b/one/memory.limit_in_bytes", "450\n")
        .file("sys/fs/a b/one/memory.usage_in_bytes", "100\n")
        .file("sys/fs/a b/one/memory.stat", "inactive_file 99\ntotal_inactive_file 40\n");
    assert_eq!(
        tree.tightest(Resource::Memory),
        Some(("sys/fs/a b/one/memory.limit_in_bytes".into(), 450, 60))
    );
    assert_eq!(tree.tightest(huge()), None);
}

#[test]
fn a_group_outside_the_mount_is_judged_by_the_mount() {
    for group in ["/other/place", "/../sibling"] {
        let tree = Tree::new(&format!("outside-{}", group.len()))
            .file("proc/self/cgroup", &format!("4:memory:{group}\n"))
            .file("proc/self/mountinfo", "35 31 0:32 /pod /cg rw - cgroup cgroup rw,memory\n")
            .file("cg/memory.limit_in_bytes", "500\n")
            .file("cg/memory.usage_in_bytes", "100\n");
        assert_eq!(
            tree.tightest(Resource::Memory),
            Some(("cg/memory.limit_in_bytes".into(), 500, 100))
        );
    }
}

#[test]
fn garbled_text_limits_nothing() {
    let tree = Tree::new("garbled")
        .file("proc/self/cgroup", "::::\nmemory\n\n4:memory\n")
        .file("proc/self/mountinfo", "- cgroup\n1 2 - cgroup\n a - cgroup2 x\n\\1\\ - - -\n");
    assert_eq!(tree.tightest(Resource::Memory), None);
    assert_eq!(Tree::new("empty").tightest(Resource::Memory), None);
    assert_eq!(unescape("a\\04b\\040\\"), PathBuf::from("a\\04b \\"));
}
