//! Tests that files made to harm a purger do not stop it from purging other files.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use glebe::units::Bytes;
use glebe_testing::time::{is_long, storm, wait_until};

use super::purging::Purging;
use super::{lost, mark, mib, Fake, Tmpfs};

fn a_while() -> Duration {
    storm(Duration::from_millis(if is_long() { 2000 } else { 1000 }))
}

struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

#[test]
fn random_state_keeps_no_other_file_from_being_purged() {
    let Some(dir) = Tmpfs::new() else { return };
    let (good, bad) = (dir.shared("good", 16), dir.shared("bad", 16));
    mark(&bad, mib(0, 16), 0);
    let fake = Fake::new(&dir);
    let paths = ["bad", "good"].map(|name| dir.join(name).to_str().unwrap().to_owned());
    let mut purging = Purging::start([
        "--quota",
        "1M",
        "--cgroup",
        fake.dir(),
        "--margin",
        "64M",
        &paths[0],
        &paths[1],
    ]);
    purging.says("good: 16 MiB");
    let file = File::options().write(true).open(dir.join("bad")).unwrap();
    let state = file.metadata().unwrap().len() - bad.len().get();
    let page = glebe::page_size().bytes().get();
    let (mut numbers, begin) = (Numbers(0x9E37_79B9_7F4A_7C15), Instant::now());
    let time = a_while();
    fake.lack(Bytes::mib(4));
    while begin.elapsed() < time {
        // Does not overwrite the first 9 words, which hold the layout.
        let at = 9 * 8 + numbers.next() % (state - 9 * 8 - 8) / 8 * 8;
        let at = if numbers.next() % 2 == 0 { page + at % page } else { at };
        let value = match numbers.next() % 3 {
            0 => u64::MAX,
            1 => numbers.next() | 0b1001,
            _ => numbers.next(),
        };
        file.write_all_at(&value.to_ne_bytes(), at).unwrap();
    }
    mark(&good, mib(0, 16), 7);
    wait_until("the good file is purged", Duration::from_secs(20), || {
        good.stats().lost.get() * page >= Bytes::mib(16).get()
    });
    purging.ends_well();
    assert_eq!(lost(&good), Bytes::mib(16));
}

#[test]
fn a_file_that_is_cut_while_it_is_purged_is_left_and_others_are_not() {
    let Some(dir) = Tmpfs::new() else { return };
    let good = dir.shared("good", 4);
    let fake = Fake::new(&dir);
    let paths = ["bad", "good"].map(|name| dir.join(name).to_str().unwrap().to_owned());
    let _bad = dir.shared("bad", 16);
    let page = glebe::page_size().bytes().get();
    let mut purging =
        Purging::start(["-v", "--cgroup", fake.dir(), "--margin", "64M", &paths[0], &paths[1]]);
    purging.says("good: 4 MiB");
    let file = File::options().write(true).open(dir.join("bad")).unwrap();
    let whole = file.metadata().unwrap().len();
    fake.lack(Bytes::mib(4));
    let (begin, time) = (Instant::now(), a_while());
    while begin.elapsed() < time {
        for len in [whole, page, whole, page * 5, whole - 1] {
            file.set_len(len).unwrap();
            // `words` say that granules are marked and present, so the purger works while this loop
            // cuts the file.
            let words = 0b1001_u64.to_ne_bytes().repeat(256);
            let _ = file.write_all_at(&words, page).map(|()| file.set_len(len));
            thread::sleep(Duration::from_millis(1));
        }
    }
    purging.says("bad: ");
    mark(&good, mib(0, 4), 7);
    wait_until("the good file is purged", Duration::from_secs(20), || good.stats().lost.get() > 0);
    purging.signal(rustix::process::Signal::TERM);
    assert_eq!(purging.end().code(), Some(0));
}

/// Python program that locks the byte that purges lock (F_OFD_SETLK), until its input ends.
const LOCK: &str = "
import fcntl, struct, sys
file = open(sys.argv[1], 'r+b')
fcntl.fcntl(file, 37, struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, (1 << 62) + 1, 1, 0))
print('locked', end='', flush=True)
sys.stdin.read()
";

#[test]
fn who_holds_the_lock_of_purges_keeps_that_file_alone() {
    let Some(dir) = Tmpfs::new() else { return };
    let (good, bad) = (dir.shared("good", 4), dir.shared("bad", 4));
    mark(&bad, mib(0, 4), 0);
    mark(&good, mib(0, 4), 0);
    let mut locking = Command::new("python3")
        .args(["-c", LOCK])
        .arg(dir.join("bad"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("Python starts");
    let mut said = [0; 6];
    locking.stdout.take().unwrap().read_exact(&mut said).unwrap();
    let fake = Fake::new(&dir);
    let paths = ["bad", "good"].map(|name| dir.join(name).to_str().unwrap().to_owned());
    let mut purging =
        Purging::start(["--wait", "--cgroup", fake.dir(), "--margin", "64M", &paths[0], &paths[1]]);
    fake.lack(Bytes::mib(4));
    purging.says("good: purged 4 MiB");
    drop(locking.stdin.take());
    assert!(locking.wait().unwrap().success());
    purging.says("bad: purged 4 MiB");
    purging.ends_well();
}
