//! A benchmark and a demo that are told to end give back what they took of the pools.
//!
//! Pools are the whole machine's: what is asserted is that the process has no claim left in the
//! record, and that the overcommit limit, less what others are recorded to have raised it by, comes
//! to be what it was. Others may have its pages in use when it ends, and who is no program of this
//! project may change the limit meanwhile: where either is not so, the same is done once more.

use std::env;
use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use glebe::contig::{with_pools_locked, SetAside, Source};

const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";
const RECORD: &str = "/run/lock/glebe-hugetlb.claims";
const RAISES: &str = "glebe-hugetlb.limits";
const ATTEMPTS: usize = 4;
/// Far less than either program runs.
const PATIENCE: Duration = Duration::from_secs(3);

/// Pages that `bench contig --quick` sets aside for what it populates.
const SET_ASIDE: u64 = 80;
/// It measures other things first.
const PATIENCE_SET_ASIDE: Duration = Duration::from_secs(60);

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

    fn claimed(&self) -> u64 {
        let pid = format!("{} ", self.0.id());
        let record = fs::read_to_string(RECORD).unwrap_or_default();
        let own = record.lines().filter(|line| line.starts_with(&pid));
        own.filter_map(|line| line.split(' ').nth(4)?.parse().ok()).max().unwrap_or(0)
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

/// Who raised the limit of the 2 MiB pool and by how much, of a line of the record.
fn raised_by(line: &str) -> Option<(&str, i64)> {
    let fields: Vec<&str> = line.splitn(5, ' ').collect();
    let [pid, _, _, pages, limit] = fields[..] else { return None };
    (limit == format!("{POOL}/nr_overcommit_hugepages")).then_some((pid, pages.parse().unwrap()))
}

fn raises() -> String {
    let usual = fs::read_to_string(format!("/run/lock/{RAISES}"));
    usual.or_else(|_| fs::read_to_string(env::temp_dir().join(RAISES))).unwrap_or_default()
}

/// The overcommit limit, less what it was raised by.
fn overcommit() -> i64 {
    with_pools_locked(|| {
        let text = fs::read_to_string(format!("{POOL}/nr_overcommit_hugepages")).unwrap();
        let raised: i64 = raises().lines().filter_map(raised_by).map(|(_, pages)| pages).sum();
        text.trim().parse::<i64>().unwrap() - raised
    })
    .unwrap()
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
        let claimed = run.claimed();
        let pid = run.0.id().to_string();
        let left = raises().lines().filter_map(raised_by).any(|(by, _)| by == pid);
        assert!(!left, "{args:?}: the limit is left raised");
        let after = overcommit();
        if claimed == 0 && before == after {
            return;
        }
        seen.push((claimed, before, after));
    }
    panic!("{args:?}: pages left, the limit less what it was raised by before and after: {seen:?}");
}

#[test]
fn a_benchmark_that_is_interrupted_leaves_nothing() {
    ends_clean(&["bench", "reserve", "--quick"], "INT", 2);
}

#[test]
fn a_benchmark_of_contiguous_memory_that_is_terminated_leaves_nothing() {
    ends_clean(&["bench", "contig", "--quick"], "TERM", 15);
}

/// Pages of the pool that are no surplus, less those that somebody claims.
fn unclaimed() -> i64 {
    with_pools_locked(|| {
        let count = |name| {
            let text = fs::read_to_string(format!("{POOL}/{name}")).unwrap();
            text.trim().parse::<i64>().unwrap()
        };
        let record = fs::read_to_string(RECORD).unwrap_or_default();
        let fields = record.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let claimed = fields.filter(|line| line.get(3) == Some(&"2097152"));
        let claimed: i64 = claimed.map(|line| line[4].parse::<i64>().unwrap()).sum();
        count("nr_hugepages") - count("surplus_hugepages") - claimed
    })
    .unwrap()
}

/// Kills the benchmark once it has set pages aside for populating, which is the largest claim of
/// its own; what the pool has afterwards that nobody claims, before and after.
fn killed() -> (i64, i64) {
    let before = unclaimed();
    let mut run = Running::start(&["bench", "contig", "--quick"]);
    let begin = Instant::now();
    while run.claimed() < SET_ASIDE && begin.elapsed() < PATIENCE_SET_ASIDE && !run.has_ended() {
        thread::sleep(Duration::from_millis(1));
    }
    assert!(run.claimed() >= SET_ASIDE, "{} pages claimed, of a larger set", run.claimed());
    run.0.kill().unwrap();
    run.0.wait().unwrap();
    // Others may have such pages in use for a while.
    let begin = Instant::now();
    let mut after = unclaimed();
    while run.has_claim() && begin.elapsed() < PATIENCE_SET_ASIDE {
        thread::sleep(Duration::from_millis(20));
        after = unclaimed();
    }
    assert!(!run.has_claim(), "pages are claimed for a process that was killed");
    (before, after)
}

#[test]
fn what_a_benchmark_that_is_killed_had_set_aside_is_given_back_by_the_next() {
    let Source::Hugetlb(size) = Source::HUGETLB_2M else { unreachable!() };
    if let Err(why) = SetAside::new(size, SET_ASIDE) {
        println!("skipped: {why}");
        return;
    }
    if fs::metadata(RECORD).is_err() {
        println!("skipped: no record is at {RECORD}");
        return;
    }
    let mut seen = Vec::new();
    for _ in 0..ATTEMPTS {
        let (before, after) = killed();
        if before == after {
            return;
        }
        seen.push((before, after));
    }
    panic!("pages that nobody claims, before and after: {seen:?}");
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
