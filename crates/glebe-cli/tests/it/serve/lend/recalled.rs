//! Recalls, in good and bad cases.

use std::collections::HashSet;
use std::process::{Command, Stdio};

use super::lending::{lives, Lending, LONG};
use crate::serve::{glebe, Serving};

#[test]
fn segments_are_lent_recalled_and_lent_again_at_new_addresses() {
    let Some((mut lending, _master)) = Lending::started() else { return };
    assert_eq!(lending.leases(), ["lend"; 4]);
    let setup = &lending.lines("log")[1];
    assert!(setup.starts_with("setup 127.0.0.1 P2PHANDSHAKE 0 tcp 127.0.0.1:"), "{setup}");
    // Of 54 MiB, 22 are free: one segment has to leave.
    for nth in 1..=3 {
        assert_eq!(lending.leased("24M", "echo $GLEBE_LEASE_BYTES"), "25165824\n");
        lending.wait("it was recalled", |it| it.number("recalled") == nth);
        lending.wait("it is lent again", |it| it.lent() == 4);
    }
    let shown = lending.status().expect("a lender");
    assert_eq!(["unmounted", "killed"].map(|it| shown.number(it)), [3, 0]);
    assert_eq!([shown.number("recall_count"), shown.number("unmount_count")], [3, 3]);
    assert!(
        lending.has_said("ms after its recall, unmounted; lent for "),
        "{:?}",
        lending.lines("lend.log")
    );
    let log = lending.lines("log");
    let mounts: Vec<&str> = log.iter().filter_map(|line| line.strip_prefix("mount ")).collect();
    let different: HashSet<&str> = mounts.iter().copied().collect();
    assert_eq!((mounts.len(), different.len()), (7, 7), "{log:?}");
    lending.signal("TERM", lending.lender.id());
    assert_eq!(lending.ended(), Some(0));
    assert!(!lives(shown.agent()));
    assert_eq!(lending.lines("log").iter().filter(|it| it.starts_with("unmount ")).count(), 7);
    assert!(lending.leases().is_empty());
}

#[test]
fn more_requests_push_nobody_out() {
    let Some((lending, _master)) = Lending::started() else { return };
    let revocable = |size: &str| {
        let at = lending.at("leases");
        let args = ["lease", "--socket", &at, "--wait", "0", "--revocable", size, "--", "true"];
        glebe().args(args).output().expect("glebe starts").status.success()
    };
    assert!(revocable("16M") && !revocable("24M"), "22 MiB are free");
    let shown = lending.status().expect("a lender");
    assert_eq!([shown.number("recalled"), shown.lent()], [0, 4]);
}

/// Keeps a lease that needs segments, and looks at the agent before it ends.
fn after_kill(mode: &str, patience: &str, why: &str) {
    let Some((lending, _master)) = Lending::started_with(LONG, patience) else { return };
    let agent = lending.status().expect("a lender").agent();
    assert!(lives(agent));
    lending.mode(mode);
    let look = format!("cat /proc/{agent}/stat 2>/dev/null | cut -d' ' -f3");
    let state = lending.leased("24M", &look);
    assert!(["", "Z\n", "X\n"].contains(&state.as_str()), "{state:?}");
    lending.mode("");
    lending.wait("a new agent lends", |it| it.lent() == 4);
    let shown = lending.status().expect("a lender");
    assert_eq!([shown.number("killed"), shown.number("died"), shown.number("started")], [1, 0, 2]);
    assert_ne!(shown.agent(), agent);
    assert!(lending.has_said(why), "{:?}", lending.lines("lend.log"));
}

#[test]
fn a_hung_agent_is_killed_before_memory_is_given() {
    after_kill("hang", "3000", "the agent is killed: no answer to an unmount in time");
}

#[test]
fn an_agent_without_a_master_is_killed_before_memory_is_given() {
    after_kill("dead", LONG, "unmount_segment gave -900: the master does not answer");
}

#[test]
fn an_agent_that_keeps_a_mapping_is_killed_before_memory_is_given() {
    after_kill("leak", LONG, "unmount_segment gave 0, but the memory is still mapped");
}

/// Traces a thread until its own end. Its process ends only then.
const TRACER: &str = "import ctypes, sys, time
SEIZE = 0x4206
print(ctypes.CDLL(None).ptrace(SEIZE, int(sys.argv[1]), None, None), flush=True)
time.sleep(1000)";

#[test]
fn memory_is_cut_from_an_agent_that_is_slow_to_end() {
    let Some((lending, _master)) = Lending::started_with(LONG, "200") else { return };
    let thread = lending
        .lines("log")
        .into_iter()
        .find_map(|line| line.strip_prefix("thread ").map(str::to_owned));
    let mut tracer = Command::new("python3");
    tracer.args(["-c", TRACER, &thread.expect("a thread")]).stdout(Stdio::piped());
    let mut tracer = Serving::start(&mut tracer, 1);
    if tracer.said != ["0"] {
        return println!("skipped: this user may not trace a process");
    }
    let agent = lending.status().expect("a lender").agent();
    lending.mode("hang");
    lending.leased("24M", "true");
    assert!(lending.has_said("cut from the agent, which is slow to end"));
    let shown = lending.status().expect("a lender");
    assert_eq!([shown.number("killed"), shown.number("started")], [1, 1]);
    assert_eq!((shown.agent(), shown.number("kill_count")), (agent, 0));
    lending.mode("");
    let _ = tracer.child.kill();
    lending.wait("a new agent lends", |it| it.lent() == 4 && it.number("started") == 2);
    drop(tracer);
}

#[test]
fn an_agent_that_hangs_longer_than_the_notice_loses_its_memory() {
    let Some((lending, _master)) = Lending::started_with("1", LONG) else { return };
    lending.mode("hang");
    lending.leased("24M", "true");
    lending.mode("");
    lending.wait("a new agent lends", |it| it.lent() == 4);
    assert_eq!(lending.status().expect("a lender").number("killed"), 1);
}
