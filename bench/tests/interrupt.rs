//! A benchmark that is told to end, or is killed, gives back what it took of the pools.
//!
//! Pools are the whole machine's: what is asserted is that the persistent pages and the limit on
//! surplus pages come to be what they were. Who is no program of this project may change them
//! meanwhile: then the same is done once more.

use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use glebe::contig::PoolLock;

const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";
const ATTEMPTS: usize = 4;
/// Far less than either program runs.
const PATIENCE: Duration = Duration::from_secs(3);

/// Ends the program when the test does, by panic too.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    fn start(args: &[&str]) -> Self {
        // A shell ignores SIGINT for what it runs in the background, and so would the program.
        let mut command = Command::new("env");
        command.args(["--default-signal=INT,TERM", env!("CARGO_BIN_EXE_glebe-bench")]);
        command.args(args).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        Self(command.spawn().expect("the program starts"))
    }

    /// Whether it has pages of a pool.
    fn has_pages(&self) -> bool {
        let text = fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("HugetlbPages:"));
        line.is_some_and(|pages| pages.trim() != "0 kB")
    }

    fn has_ended(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }

    /// Sends a signal once the process has pages of a pool, or has had the time to get them where
    /// there are none to be had; which one ended it, if any did.
    fn end_by(&mut self, signal: &str) -> Option<i32> {
        let begin = Instant::now();
        while !self.has_pages() && begin.elapsed() < PATIENCE && !self.has_ended() {
            thread::sleep(Duration::from_millis(1));
        }
        let pid = self.0.id().to_string();
        assert!(Command::new("kill").args(["-s", signal, &pid]).status().unwrap().success());
        self.0.wait().unwrap().signal()
    }
}

/// Persistent pages, and the limit on surplus pages.
fn base() -> (i64, i64) {
    let _lock = PoolLock::acquire().unwrap();
    let count = |name| -> i64 {
        fs::read_to_string(format!("{POOL}/{name}")).unwrap().trim().parse().unwrap()
    };
    (count("nr_hugepages") - count("surplus_hugepages"), count("nr_overcommit_hugepages"))
}

fn ends_clean(args: &[&str], signal: &str, number: i32) {
    if fs::OpenOptions::new().write(true).open(format!("{POOL}/nr_hugepages")).is_err() {
        println!("skipped: the 2 MiB pool cannot be changed");
        return;
    }
    let mut seen = Vec::new();
    for _ in 0..ATTEMPTS {
        let before = base();
        let mut run = Running::start(args);
        assert_eq!(run.end_by(signal), Some(number), "{args:?}");
        let after = base();
        if before == after {
            return;
        }
        seen.push((before, after));
    }
    panic!("{args:?}: pages and limit before and after: {seen:?}");
}

#[test]
fn a_benchmark_that_is_interrupted_leaves_nothing() {
    ends_clean(&["reserve", "--quick"], "INT", 2);
}

#[test]
fn a_benchmark_of_contiguous_memory_that_is_terminated_leaves_nothing() {
    ends_clean(&["contig", "--quick"], "TERM", 15);
}

#[test]
fn a_benchmark_that_is_killed_leaves_nothing() {
    ends_clean(&["reserve", "--quick"], "KILL", 9);
}

#[test]
fn scratch_files_go_to_a_directory_that_there_is() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_glebe-bench"));
    let output = command.args(["reserve", "--dir", "/nonexistent"]).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("/nonexistent"), "{output:?}");
}
