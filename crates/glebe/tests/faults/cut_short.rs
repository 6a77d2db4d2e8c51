//! Tests that a fault test leaves the hugetlb pool unchanged if a panic or a kill ends the test
//! early.

use std::env;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use glebe::contig::{Contig, Source};
use glebe::internal::sys::fault::{arm, disarm, Fault, Lasting};
use glebe::units::Bytes;
use glebe_testing::process::child_of;
use glebe_testing::time::slowed;

use crate::foreign::ForeignPages;
use crate::hugetlb::Turn;
use crate::walk::with_fault;
use crate::Outcome;

const MARK: &str = "GLEBE_FAULTS_CUT_SHORT";
const TEST: &str = "cut_short::a_walk_that_is_cut_short_leaves_nothing";
const PATIENCE: Duration = Duration::from_secs(30);

fn grown() -> Result<Contig, glebe::contig::Error> {
    // More than the free foreign pages, so the pool must grow.
    Contig::options().source(Source::HUGETLB_2M).build(Bytes::mib(16))
}

fn end(is_kill: bool) {
    let fault = |nth| Fault { nth, choice: 0, lasting: Lasting::EveryCall };
    arm(fault(u64::MAX));
    drop(grown().unwrap());
    let calls = disarm().calls;
    let life = || -> Outcome {
        let _held = grown()?;
        if is_kill {
            let pid = std::process::id().to_string();
            Command::new("kill").args(["-KILL", &pid]).status()?;
            thread::sleep(slowed(PATIENCE));
        }
        arm(fault(1));
        panic!("as a walk that fails")
    };
    let _ = with_fault(&life, fault(calls * 2));
}

fn cut_short(how: &str) {
    let mut command = child_of(TEST);
    command.env(MARK, how).stdout(Stdio::null()).stderr(Stdio::null());
    let status = command.status().unwrap();
    assert!(!status.success(), "{how}: it came to its end");
}

#[test]
fn a_walk_that_is_cut_short_leaves_nothing() {
    glebe_testing::alone!();
    if let Some(how) = env::var_os(MARK) {
        return end(how == "kill");
    }
    let Some(turn) = Turn::take() else { return };
    let Some(_foreign) = ForeignPages::add(4) else { return };
    for how in ["panic", "kill"] {
        turn.machine.base_is_kept(|| cut_short(how));
    }
}
