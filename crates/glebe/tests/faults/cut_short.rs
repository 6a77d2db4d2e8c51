//! A walk that does not come to its end: it panics while every call fails, or is killed.
//!
//! The pool has what it had.

use std::env;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use glebe::contig::{Contig, Source};
use glebe::sys::fault::{arm, disarm, Fault, Lasting};
use glebe::units::Bytes;

use super::foreign::ForeignPages;
use super::pool::Machine;
use super::{with_fault, Outcome};

const MARK: &str = "GLEBE_FAULTS_CUT_SHORT";
/// Longer than a kill takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Panic,
    Kill,
}

fn grown() -> Result<Contig, glebe::contig::Error> {
    // More than the foreign pages, so that the pool is grown.
    Contig::options().source(Source::HUGETLB_2M).build(Bytes::mib(16))
}

/// Whether this process was to be cut short; one that was killed does not return.
pub fn was_child() -> bool {
    let Some(how) = env::var_os(MARK) else { return false };
    let how = if how == "panic" { End::Panic } else { End::Kill };
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

/// Cuts a walk short.
fn cut_short(how: &str) {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--nocapture", "--test-threads=1"]).env(MARK, how);
    let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
    assert!(!status.success(), "{how}: it came to its end");
}

pub fn a_walk_that_is_cut_short_leaves_nothing() {
    let Some(machine) = Machine::privileged() else { return };
    let Some(_foreign) = ForeignPages::add(4) else { return };
    for how in ["panic", "kill"] {
        machine.base_is_kept(|| cut_short(how));
    }
}
