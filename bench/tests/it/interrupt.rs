//! Tests that a benchmark ended by a signal gives back pages of a pool (even after SIGKILL), memory
//! cgroups with their processes, and zram devices.
//!
//! Pools belong to the whole machine. The test compares persistent pages and the limit on surplus
//! pages. Other programs may change both meanwhile, so the test tries several times.

use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use glebe::contig::PoolLock;
use glebe_testing::cgroup;
use glebe_testing::time::slowed;

const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";
const ATTEMPTS: usize = 4;

/// A running program, killed when the test ends, even by a panic.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    fn start(name: &str) -> Self {
        // Background commands of a shell ignore SIGINT, and the program would inherit that.
        let mut command = Command::new("env");
        command.args(["--default-signal=INT,TERM", env!("CARGO_BIN_EXE_glebe-bench")]);
        command
            .args([name, "--quick"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0);
        Self(command.spawn().expect("the program starts"))
    }

    fn until<T>(&mut self, seconds: u64, has: impl Fn(u32) -> Vec<T>) -> Vec<T> {
        let (begin, most) = (Instant::now(), slowed(Duration::from_secs(seconds)));
        loop {
            let seen = has(self.0.id());
            let late = begin.elapsed() > most;
            if !seen.is_empty() || late || self.0.try_wait().unwrap().is_some() {
                return seen;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn end_by(&mut self, signal: &str) -> Option<i32> {
        let pid = self.0.id().to_string();
        assert!(Command::new("kill").args(["-s", signal, &pid]).status().unwrap().success());
        self.0.wait().unwrap().signal()
    }
}

fn pages_of(pid: u32) -> Vec<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("HugetlbPages:"));
    line.filter(|pages| pages.trim() != "0 kB").map(str::to_owned).into_iter().collect()
}

fn base() -> (i64, i64) {
    let _lock = PoolLock::acquire().unwrap();
    let count = |name| -> i64 {
        fs::read_to_string(format!("{POOL}/{name}")).unwrap().trim().parse().unwrap()
    };
    (count("nr_hugepages") - count("surplus_hugepages"), count("nr_overcommit_hugepages"))
}

#[test]
fn pools_are_what_they_were() {
    if fs::OpenOptions::new().write(true).open(format!("{POOL}/nr_hugepages")).is_err() {
        return println!("skipped: the 2 MiB pool cannot be changed");
    }
    for (name, signal, number) in
        [("reserve", "INT", 2), ("contig", "TERM", 15), ("reserve", "KILL", 9)]
    {
        let ends_clean = |_| {
            let before = base();
            let mut run = Running::start(name);
            run.until(3, pages_of);
            assert_eq!(run.end_by(signal), Some(number), "{name}");
            before == base()
        };
        assert!((0..ATTEMPTS).any(ends_clean), "{name}, {signal}: pages or limit are others");
    }
}

fn groups_of(pid: u32) -> Vec<PathBuf> {
    let wanted = format!("glebe-test-{pid}-");
    let parent = cgroup::parent(Path::new("/")).map(|(dir, _)| dir).unwrap_or_default();
    let paths = fs::read_dir(parent).into_iter().flatten().flatten().map(|entry| entry.path());
    paths.filter(|path| path.to_string_lossy().contains(&wanted)).collect()
}

fn members_of(pid: u32) -> Vec<String> {
    let read = |group: PathBuf| fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    let texts: String = groups_of(pid).into_iter().map(read).collect();
    texts.lines().map(str::to_owned).collect()
}

#[test]
fn groups_are_removed_with_who_is_inside() {
    let mut run = Running::start("volatile");
    let (pid, inside) = (run.0.id(), run.until(40, members_of));
    if inside.is_empty() {
        return println!("skipped: no group can be made");
    }
    assert_eq!(run.end_by("INT"), Some(2));
    assert_eq!(groups_of(pid), Vec::<PathBuf>::new());
    let is_left = |member: &String| Path::new("/proc").join(member).exists();
    assert!(!inside.iter().any(is_left), "one of {inside:?} is left");
}

fn devices_of(pid: u32) -> Vec<PathBuf> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let targets = entries.filter_map(|entry| fs::read_link(entry.path()).ok());
    targets.filter(|path| path.to_string_lossy().starts_with("/dev/zram")).collect()
}

#[test]
fn a_device_is_taken_away() {
    if !fs::exists("/sys/class/zram-control/hot_add").unwrap_or(false) {
        return println!("skipped: no zram here");
    }
    let mut run = Running::start("zpool");
    let devices = run.until(30, devices_of);
    if devices.is_empty() {
        return println!("skipped: the run has no device of zram");
    }
    assert_eq!(run.end_by("TERM"), Some(15));
    // Another process may get a removed device's number.
    let left = |path: &&PathBuf| {
        path.exists() && Path::new("/sys/block").join(path.file_name().unwrap()).exists()
    };
    assert!(!devices.iter().all(|path| left(&path)), "left behind: {devices:?}");
}
