//! Tests that the log reports each event once.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use glebe::units::Bytes;
use glebe_testing::time::is_long;
use glebe_testing::Scratch;
use rustix::process::Signal;

use super::purging::{glebe, patience, Purging};
use super::{lost, mark, mib, Fake, Tmpfs};

/// Returns a time for one check of the files, or two with `GLEBE_LONG`. The command checks every
/// second.
fn a_look() -> Duration {
    Duration::from_millis(if is_long() { 2300 } else { 1300 })
}

#[test]
fn a_purger_says_what_it_watches_and_that_it_is_ready() {
    let Some(dir) = Tmpfs::new() else { return };
    let _shared = dir.shared("cache", 4);
    let scratch = Scratch::new("reclaim-notify");
    let notify = scratch.path().join("notify");
    let told = UnixDatagram::bind(&notify).expect("a socket");
    told.set_read_timeout(Some(patience())).expect("a timeout");
    let fake = Fake::new(&dir);
    let mut command = glebe();
    command.args(["reclaim", "--cgroup", fake.dir()]).arg(dir.join("cache"));
    let mut purging = Purging::of(command.env("NOTIFY_SOCKET", &notify));
    let line = purging.says("started");
    assert!(line.contains(fake.dir()), "{line}");
    let line = purging.says("of usage");
    assert!(line.contains("does not tell of usage: "), "{line}");
    purging.says("of stalls");
    let line = purging.says("cache: 4 MiB in granules of 64 KiB");
    assert!(line.ends_with("used by one process"), "{line}");
    let mut text = [0; 64];
    let len = told.recv(&mut text).expect("readiness is told");
    assert!(text[..len].starts_with(b"READY=1"));
    assert_eq!(purging.listen(a_look()), Vec::<String>::new());
    purging.ends_well();
}

#[test]
fn a_shortage_is_told_once_and_what_was_purged_of_which_file() {
    let Some(dir) = Tmpfs::new() else { return };
    let (one, two) = (dir.shared("one", 8), dir.shared("two", 8));
    mark(&one, mib(0, 4), 0);
    mark(&one, mib(4, 4), 2);
    mark(&two, mib(0, 8), 2);
    let fake = Fake::new(&dir);
    let paths = ["one", "two"].map(|name| dir.join(name).to_str().unwrap().to_owned());
    let mut purging =
        Purging::start(["-v", "--cgroup", fake.dir(), "--margin", "64M", &paths[0], &paths[1]]);
    purging.says("two: 8 MiB");
    fake.lack(Bytes::mib(4));
    let line = purging.says("memory is short");
    assert!(line.contains("of 1 GiB, ") && line.contains(" are to go"), "{line}");
    // The fake group stays short, so all memory is purged, lowest priority first.
    let line = purging.says("one: purged ");
    assert!(line.contains("4 MiB of priority 0"), "{line}");
    let heard = purging.listen(a_look());
    assert!(!heard.iter().any(|line| line.contains("memory is short")), "{heard:#?}");
    fake.use_up(Bytes::ZERO);
    let line = purging.says("memory is short no more");
    assert!(line.ends_with("1 GiB of 1 GiB to be had"), "{line}");
    purging.ends_well();
    assert_eq!((lost(&one), lost(&two)), (Bytes::mib(8), Bytes::mib(8)));
}

#[test]
fn no_more_goes_than_is_missing() {
    let Some(dir) = Tmpfs::new() else { return };
    let shared = dir.shared("cache", 64);
    mark(&shared, mib(0, 64), 0);
    let fake = Fake::new(&dir);
    let path = dir.join("cache");
    let mut purging =
        Purging::start(["--cgroup", fake.dir(), "--margin", "64M", path.to_str().unwrap()]);
    purging.says("cache: 64 MiB");
    assert_eq!(shared.stats().marked, glebe::units::Bytes::mib(64).pages_down(glebe::page_size()));
    purging.ends_well();
    assert_eq!(lost(&shared), Bytes::ZERO);
}

#[test]
fn pins_over_the_quota_are_told_until_they_fall() {
    let Some(dir) = Tmpfs::new() else { return };
    let shared = dir.shared("cache", 8);
    mark(&shared, mib(0, 8), 0);
    let path = dir.join("cache");
    let mut purging = Purging::start(["--quota", "2M", "-q", path.to_str().unwrap()]);
    let some = shared.pin(mib(0, 2)).unwrap();
    assert_eq!(purging.listen(a_look()), Vec::<String>::new());
    let more = shared.pin(mib(4, 1)).unwrap();
    let over = format!("process {} has 3 MiB pinned, over 2 MiB", std::process::id());
    purging.says(&over);
    assert_eq!(purging.listen(a_look()), Vec::<String>::new());
    drop(some);
    // The command must look once meanwhile, also on a busy machine.
    assert_eq!(purging.listen(Duration::from_millis(3300)), Vec::<String>::new());
    // The pins fell below the quota since the last warning, so the log warns again.
    let all = shared.pin(mib(0, 8)).unwrap();
    purging.says(&over.replace("3 MiB", "8 MiB"));
    drop((all, more));
}

#[test]
fn that_everything_is_pinned_is_told_when_memory_is_short() {
    let Some(dir) = Tmpfs::new() else { return };
    let shared = dir.shared("cache", 4);
    mark(&shared, mib(0, 4), 0);
    let pin = shared.pin(mib(0, 4)).unwrap();
    let (fake, path) = (Fake::new(&dir), dir.join("cache"));
    let mut purging =
        Purging::start(["--cgroup", fake.dir(), "--margin", "64M", path.to_str().unwrap()]);
    purging.says("cache: 4 MiB");
    assert_eq!(purging.listen(a_look()), Vec::<String>::new());
    fake.lack(Bytes::mib(4));
    purging.says("nothing can be purged");
    let line = purging.says("all 4 MiB that are marked are pinned");
    assert!(line.ends_with(&format!("used by {}", std::process::id())), "{line}");
    assert_eq!(purging.listen(a_look()), Vec::<String>::new());
    drop(pin);
    purging.says("cache: purged 4 MiB: 4 MiB of priority 0");
}

#[test]
fn users_that_go_and_come_are_told() {
    let Some(dir) = Tmpfs::new() else { return };
    let path = dir.join("cache");
    let shared = dir.shared("cache", 1);
    let mut purging = Purging::start([&path]);
    purging.says("used by one process");
    drop(shared);
    purging.says("no process uses it");
    let _one = glebe::volatile::Shared::options().open(&path).unwrap();
    purging.says("used by one process");
    purging.ends_well();
}

#[test]
fn a_file_that_is_replaced_is_purged_as_long_as_it_is_used() {
    let Some(dir) = Tmpfs::new() else { return };
    let (path, fake) = (dir.join("cache"), Fake::new(&dir));
    let old = dir.shared("cache", 4);
    let mut purging =
        Purging::start(["--cgroup", fake.dir(), "--margin", "64M", path.to_str().unwrap()]);
    purging.says("cache: 4 MiB");
    fs::remove_file(&path).unwrap();
    purging.says("cache: is gone");
    assert_eq!(purging.listen(a_look()), Vec::<String>::new());
    let new = dir.shared("cache", 8);
    purging.says("cache: 8 MiB");
    let next = dir.shared("next", 2);
    fs::rename(dir.join("next"), &path).unwrap();
    purging.says("cache: was replaced by another file");
    purging.says("cache: 2 MiB");
    for shared in [&old, &new, &next] {
        mark(shared, mib(0, 2), 1);
    }
    fake.lack(Bytes::mib(4));
    purging.says("memory is short");
    for _ in 0..3 {
        purging.says("purged 2 MiB: 2 MiB of priority 1");
    }
    let purged = purging.said.iter().filter(|line| line.contains("the file that was"));
    assert_eq!(purged.count(), 2, "{:#?}", purging.said);
    drop((old, new));
    let mut heard = [purging.says("no process uses it"), purging.says("no process uses it")];
    heard.sort_unstable();
    assert!(heard.iter().all(|line| line.contains("the file that was")), "{heard:?}");
    fake.use_up(Bytes::ZERO);
    purging.says("short no more");
    assert_eq!(purging.listen(a_look()), Vec::<String>::new());
    purging.ends_well();
}

#[test]
fn a_file_that_turns_into_something_else_is_told_and_one_that_is_right_again_is_opened() {
    let Some(dir) = Tmpfs::new() else { return };
    let path = dir.join("cache");
    let shared = dir.shared("cache", 4);
    let mut purging = Purging::start([&path]);
    purging.says("cache: 4 MiB");
    let whole = fs::metadata(&path).unwrap().len();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let mut state = vec![0; 1 << 16];
    file.read_exact_at(&mut state, 0).unwrap();
    file.set_len(1 << 12).unwrap();
    purging.says("are needed");
    assert_eq!(purging.listen(a_look()), Vec::<String>::new());
    drop(shared);
    file.set_len(0).unwrap();
    purging.says("its length is");
    state[8] = 9;
    file.set_len(whole).unwrap();
    file.write_all_at(&state[..128], 0).unwrap();
    purging.says("the version is 0x9, not 0x1");
    state[8] = 1;
    file.write_all_at(&state[..128], 0).unwrap();
    purging.says("no process uses it");
    fs::remove_file(&path).unwrap();
    purging.says("is gone");
    std::os::unix::fs::symlink(dir.join("other"), &path).unwrap();
    purging.says("cache: not a file that can be shared and purged: a symbolic link");
    purging.ends_well();
}

#[test]
fn a_hangup_opens_the_files_anew_and_an_interrupt_ends_it() {
    let Some(dir) = Tmpfs::new() else { return };
    let path = dir.join("cache");
    let _shared = dir.shared("cache", 1);
    let mut purging = Purging::start([&path]);
    purging.says("cache: 1 MiB");
    purging.signal(Signal::HUP);
    purging.says("SIGHUP: the files are opened anew");
    purging.says("cache: 1 MiB");
    assert_eq!(purging.listen(a_look()), Vec::<String>::new());
    purging.signal(Signal::INT);
    purging.says("ended by a signal");
    assert_eq!(purging.end().code(), Some(0));
}

#[test]
fn a_group_that_goes_is_told() {
    let Some(dir) = Tmpfs::new() else { return };
    let (fake, path) = (Fake::new(&dir), dir.join("cache"));
    let _shared = dir.shared("cache", 1);
    let mut purging = Purging::start(["--cgroup", fake.dir(), path.to_str().unwrap()]);
    purging.says("cache: 1 MiB");
    fs::write(fake.0.join("memory.current"), "none\n").unwrap();
    let line = purging.says("the machine's memory counts alone");
    assert!(line.contains(fake.dir()), "{line}");
    fake.use_up(Bytes::ZERO);
    purging.says("the limits of the groups count again");
    purging.ends_well();
}
