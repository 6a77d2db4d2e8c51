//! A walk that does not come to its end: it panics while every call fails, or is killed.
//!
//! What it had added to the pool has gone from the record of claims, and the pool has what it had.
//! Where it panics nobody else is needed for that.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use glebe::contig::{with_pools_locked, Contig, Source};
use glebe::sys::fault::{arm, disarm, Fault, Lasting};
use glebe::units::Bytes;

use super::foreign::ForeignPages;
use super::pool::Machine;
use super::{with_fault, Outcome};

const MARK: &str = "GLEBE_FAULTS_CUT_SHORT";
const HOLDER: &str = "held by ";
const RECORD: &str = "/run/lock/glebe-hugetlb.claims";
/// How long a process may take to see that another has ended, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Panic,
    Kill,
}

fn grown() -> Result<Contig, glebe::contig::Error> {
    // More than the foreign pages, so that the pool is grown.
    Contig::options().source(Source::HUGETLB_2M).map(Bytes::mib(16))
}

/// Whether this process was to be cut short; one that was killed does not return.
pub fn was_child() -> bool {
    let Some(how) = env::var_os(MARK) else { return false };
    let how = if how == "panic" { End::Panic } else { End::Kill };
    let foreign = ForeignPages::add(4).expect("pages for a child");
    println!("{HOLDER}{}", foreign.holder());
    let fault = |nth| Fault { nth, choice: 0, lasting: Lasting::EveryCall };
    arm(fault(u64::MAX));
    drop(grown().unwrap());
    let calls = disarm().calls;
    let life = || -> Outcome {
        let _held = grown()?;
        if how == End::Kill {
            let pid = std::process::id().to_string();
            Command::new("kill").args(["-KILL", &pid]).status()?;
            thread::sleep(PATIENCE);
        }
        arm(fault(1));
        panic!("as a walk that fails")
    };
    let _ = with_fault(&life, fault(calls * 2));
    true
}

fn is_claimed(pid: &str) -> bool {
    let text = fs::read_to_string(RECORD).unwrap_or_default();
    text.lines().any(|line| line.split(' ').next() == Some(pid))
}

/// Cuts a walk short; what it left, if anything.
fn cut_short(how: &str) {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--nocapture", "--test-threads=1"]).env(MARK, how);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let holder = lines
        .map_while(Result::ok)
        .find_map(|line| line.split_once(HOLDER).map(|(_, pid)| pid.to_owned()))
        .expect("a walk that says who holds pages for it");
    let pid = child.id().to_string();
    assert!(!child.wait().unwrap().success(), "{how}: it came to its end");
    let begin = Instant::now();
    while is_claimed(&holder) {
        assert!(begin.elapsed() < PATIENCE, "{how}: claims of {holder} are left");
        thread::yield_now();
    }
    if how == "kill" {
        // The holder may have looked before the kernel had ended it.
        with_pools_locked(|| ()).unwrap();
    }
    assert!(!is_claimed(&pid), "{how}: claims of {pid} are left");
}

pub fn a_walk_that_is_cut_short_leaves_nothing() {
    let Some(machine) = Machine::privileged() else { return };
    for how in ["panic", "kill"] {
        machine.base_is_kept(|| cut_short(how));
    }
}
