//! A benchmark and a demo that are told to end give back what they took of the pools.
//!
//! Pools are the whole machine's: what is asserted is that the process has no claim left in the
//! record, and that the overcommit limit comes to be what it was. Others may raise it meanwhile,
//! so a limit that is not is read again after doing the same once more.

use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";
const RECORD: &str = "/run/lock/glebe-hugetlb.claims";
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
        command.args(["--default-signal=INT,TERM", env!("CARGO_BIN_EXE_glebe")]);
        command.args(args).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        Self(command.spawn().expect("the program starts"))
    }

    fn has_claim(&self) -> bool {
        let pid = format!("{} ", self.0.id());
        fs::read_to_string(RECORD).unwrap_or_default().lines().any(|line| line.starts_with(&pid))
    }

    fn has_ended(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }

    /// Sends a signal once the process has pages of a pool, or has had the time to get them where
    /// there are none to be had; which one ended it, if any did.
    fn end_by(&mut self, signal: &str) -> Option<i32> {
        let begin = Instant::now();
        while !self.has_claim() && begin.elapsed() < PATIENCE && !self.has_ended() {
            thread::sleep(Duration::from_millis(1));
        }
        let pid = self.0.id().to_string();
        assert!(Command::new("kill").args(["-s", signal, &pid]).status().unwrap().success());
        self.0.wait().unwrap().signal()
    }
}

fn overcommit() -> u64 {
    let text = fs::read_to_string(format!("{POOL}/nr_overcommit_hugepages")).unwrap();
    text.trim().parse().unwrap()
}

fn ends_clean(args: &[&str], signal: &str, number: i32) {
    let writable = |name| fs::OpenOptions::new().write(true).open(format!("{POOL}/{name}")).is_ok();
    if !writable("nr_hugepages") || fs::metadata(RECORD).is_err() {
        println!("skipped: the 2 MiB pool cannot be changed, or no record is at {RECORD}");
        return;
    }
    let mut seen = Vec::new();
    for _ in 0..ATTEMPTS {
        let before = overcommit();
        let mut run = Running::start(args);
        assert_eq!(run.end_by(signal), Some(number), "{args:?}");
        assert!(!run.has_claim(), "{args:?}: pages are left");
        seen.push((before, overcommit()));
        if seen.last().is_some_and(|(before, after)| before == after) {
            return;
        }
    }
    panic!("the overcommit limit, before and after: {seen:?}");
}

#[test]
fn a_benchmark_that_is_interrupted_leaves_nothing() {
    ends_clean(&["bench", "reserve", "--quick"], "INT", 2);
}

#[test]
fn a_demo_that_is_terminated_leaves_nothing() {
    ends_clean(&["demo", "--quick", "--size", "64M", env!("CARGO_MANIFEST_DIR")], "TERM", 15);
}

#[test]
fn scratch_files_go_to_a_directory_that_there_is() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_glebe"));
    let output = command.args(["bench", "reserve", "--dir", "/nonexistent"]).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("/nonexistent"), "{output:?}");
}
