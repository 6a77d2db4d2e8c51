//! Tests two purgers of one file, files that do not exist yet, and files of other users.

use std::os::unix::fs::{chown, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::time::Duration;

use glebe::units::Bytes;

use super::purging::{glebe, output, Purging};
use super::{lost, mark, mib, Fake, Tmpfs};

const NOBODY: u32 = 65534;

#[test]
fn the_second_purger_of_a_file_says_so_and_ends_or_waits() {
    let Some(dir) = Tmpfs::new() else { return };
    let path = dir.join("cache");
    let _shared = dir.shared("cache", 1);
    let mut first = Purging::start([&path]);
    first.says("cache: 1 MiB");
    let mut second = Purging::start([&path]);
    second.says("cache: another purger has it");
    assert_eq!(second.end().code(), Some(1));
    let mut second = Purging::start([path.to_str().unwrap(), "--wait"]);
    second.says("cache: another purger has it");
    assert_eq!(second.listen(Duration::from_millis(1500)), Vec::<String>::new());
    drop(first);
    second.says("cache: 1 MiB");
    second.ends_well();
}

#[test]
fn a_purge_of_so_much_goes_beside_a_purger() {
    let Some(dir) = Tmpfs::new() else { return };
    let path = dir.join("cache");
    let shared = dir.shared("cache", 2);
    mark(&shared, mib(0, 2), 0);
    let mut purging = Purging::start([&path]);
    purging.says("cache: 2 MiB");
    let done = output(["--once", "1M", path.to_str().unwrap()]);
    assert!(done.status.success(), "{done:?}");
    assert_eq!(lost(&shared), Bytes::mib(1));
    purging.ends_well();
}

#[test]
fn a_file_that_is_not_there_yet_is_waited_for() {
    let Some(dir) = Tmpfs::new() else { return };
    let path = dir.join("cache");
    let mut purging = Purging::start(["--wait", path.to_str().unwrap()]);
    purging.says("cache: No such file");
    let _shared = dir.shared("cache", 1);
    purging.says("cache: 1 MiB");
    purging.ends_well();
}

#[test]
fn no_name_of_a_file_makes_a_line_or_moves_a_cursor() {
    let Some(dir) = Tmpfs::new() else { return };
    let name = "a\nglebe reclaim: ended\u{1b}[2J";
    let _shared = dir.shared(name, 1);
    let mut purging = Purging::start([dir.join(name)]);
    let line = purging.says("1 MiB");
    assert!(line.contains("a\\nglebe reclaim: ended\\u{1b}[2J: 1 MiB"), "{line:?}");
    purging.ends_well();
    let refused = output([dir.join("b\nc")]);
    let said = String::from_utf8(refused.stderr).unwrap();
    // Notes about repaired memory blocks may appear too.
    assert!(said.lines().all(|line| line.starts_with("glebe: ")), "{said:?}");
    assert_eq!(said.lines().filter(|line| line.contains("b\\nc")).count(), 1, "{said:?}");
}

#[test]
fn a_user_purges_its_own_file_and_root_anybodys() {
    let Some(dir) = Tmpfs::new() else { return };
    let path = dir.join("cache");
    let shared = dir.shared("cache", 4);
    if chown(&path, Some(NOBODY), Some(NOBODY)).is_err() {
        println!("skipped: not root, no file can be made another's");
        return;
    }
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    mark(&shared, mib(0, 4), 0);
    let root = output(["--once", "1M", path.to_str().unwrap()]);
    assert!(root.status.success(), "{root:?}");
    assert_eq!(lost(&shared), Bytes::mib(1));
    mark(&shared, mib(2, 2), 0);
    let fake = Fake::new(&dir);
    let mut command = glebe();
    command.args(["reclaim", "--cgroup", fake.dir(), "--margin", "64M"]).arg(&path);
    if command.get_program().to_str().is_none_or(|name| !is_reachable(name)) {
        println!("skipped: the command cannot be run as another user");
        return;
    }
    let mut purging = Purging::of(command.uid(NOBODY).gid(NOBODY));
    purging.says("cache: 4 MiB");
    fake.lack(Bytes::mib(4));
    purging.says("cache: purged 2 MiB: 2 MiB of priority 0");
    purging.ends_well();
}

fn is_reachable(program: &str) -> bool {
    let mut command = std::process::Command::new(program);
    command.arg("--version").uid(NOBODY).gid(NOBODY);
    command.output().is_ok_and(|output| output.status.success())
}
