//! Tests `-u`: the server becomes another user when it has its memory.

use std::fs;
use std::os::unix::fs::MetadataExt;

use glebe_testing::Scratch;

use super::{dialogue, glebe, output, Serving};

const NOBODY: &str = "nobody";

fn is_root() -> bool {
    let is_root = fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0);
    if !is_root {
        eprintln!("skipped: only root can become another user");
    }
    is_root
}

/// Returns the real, effective, saved and file system's user of each thread.
fn users(pid: u32) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("threads");
    let uids = tasks.map(|task| {
        let status = task.expect("a thread").path().join("status");
        let text = fs::read_to_string(status).expect("a status");
        let uids = text.lines().find_map(|row| row.strip_prefix("Uid:")).expect("ids").to_owned();
        let of = |name: &str| text.lines().find_map(|row| row.strip_prefix(name)).expect("a row");
        assert_eq!(u64::from_str_radix(of("CapEff:").trim(), 16), Ok(0), "{text}");
        let groups = |name: &str| of(name).split_ascii_whitespace().any(|group| group == "0");
        assert!(!groups("Gid:") && !groups("Groups:"), "a group of root: {text}");
        uids.split_ascii_whitespace().collect::<Vec<_>>().join(" ")
    });
    uids.collect()
}

#[test]
fn root_becomes_the_user_in_all_threads_and_serves() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::readable("user");
    let (control, run) = (scratch.path().join("control"), scratch.path().join("run"));
    let mut command = glebe();
    command.args(["serve", "-l", "127.0.0.1:0", "-u", NOBODY, "--control"]).arg(&control);
    let mut serving = Serving::start(command.env("XDG_RUNTIME_DIR", &run), 3);
    let nobody = fs::read_to_string("/etc/passwd").expect("users");
    let nobody = nobody.lines().find_map(|row| row.strip_prefix("nobody:")).expect("nobody");
    let uid = nobody.split(':').nth(1).expect("a number");
    let users = users(serving.child.id());
    assert!(users.len() > 5, "{users:?}");
    assert!(users.iter().all(|ids| *ids == [uid; 4].join(" ")), "{users:?}");
    let mut stream = serving.connect();
    let value = "x".repeat(100_000);
    for n in 0..100 {
        dialogue(&mut stream, &format!("set k{n} 0 0 100000\n{value}\n"), "STORED\n");
    }
    assert_eq!(fs::metadata(&control).expect("a socket").uid().to_string(), uid);
    let control = control.to_str().expect("text");
    let recalled = output(&["recall", "1M", "--for", "0s", "--control", control]);
    assert!(recalled.status.success(), "{recalled:?}");
    dialogue(&mut stream, "mn\n", "MN\n");
    serving.signal("TERM");
    serving.ends_well();
}

#[test]
fn who_is_no_user_or_cannot_become_one_is_refused() {
    let socket = Scratch::new("user-refused");
    let socket = socket.path().join("socket");
    let start = |more: &[&str]| {
        let words = ["serve", "--no-stats", "-s", socket.to_str().expect("text")];
        output(&[&words[..], more].concat())
    };
    let mut cases = vec![(vec!["-u", "no such user"], "-u no such user: there is no such user")];
    if is_root() {
        cases.push((vec!["-u", NOBODY, "--leases"], "-u nobody: with --leases, use"));
    } else {
        cases.push((vec!["-u", "root"], "-u root: only root can become another user"));
    }
    for (words, why) in cases {
        let refused = start(&words);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(2) && said.contains(why), "{said}");
    }
}
