//! Recalls, in good and bad cases.

use std::collections::HashSet;
use std::process::{Command, Stdio};

use super::lending::{lives, Lending, LONG};
use crate::serve::{glebe, wait_until_stopped, Serving};

#[test]
fn segments_are_lent_recalled_and_lent_again_at_new_addresses() {
    let Some((mut lending, _master)) = Lending::started() else { return };
    assert_eq!(lending.leases(), ["lend"; 4]);
    assert_eq!(lending.said("other hosts cannot reach 127.0.0.1; give --host"), 1);
    let setup = &lending.lines("log")[1];
    assert!(setup.starts_with("setup 127.0.0.1 P2PHANDSHAKE 0 tcp 127.0.0.1:"), "{setup}");
    // 22 of 54 MiB are free, so one segment has to leave.
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

#[test]
fn a_segment_is_recalled_while_it_is_mounted() {
    let Some((lending, _master)) = Lending::start("slow-mount", LONG, LONG) else { return };
    lending.wait("all are mounted", |it| it.words("is being mounted") == 4);
    let mut leasing = lending.leasing("24M");
    lending.wait("one is recalled", |it| it.number("recalled") == 1);
    assert_eq!(lending.leases(), ["lend"; 4], "the agent may have it mapped");
    lending.mode("");
    assert!(leasing.wait().expect("a child").success());
    lending.wait("all is lent", |it| it.lent() == 4 && it.number("mounted") == 5);
    let shown = lending.status().expect("a lender");
    assert_eq!(["unmounted", "killed"].map(|it| shown.number(it)), [1, 0]);
}

#[test]
fn a_late_answer_of_the_master_delays_no_recall() {
    let Some((lending, _master)) = Lending::started() else { return };
    lending.mode("slow-check");
    let is_asked = || lending.lines("log").iter().any(|line| line == "check");
    lending.wait("the master is asked", |_| is_asked());
    lending.leased("24M", "true");
    let shown = lending.status().expect("a lender");
    assert_eq!(["unmounted", "killed"].map(|it| shown.number(it)), [1, 0]);
    lending.mode("");
    lending.wait("all is lent", |it| it.lent() == 4);
}

#[test]
fn memory_that_was_taken_ends_the_agent() {
    let Some((lending, _master)) = Lending::started_with("1", LONG) else { return };
    lending.signal("STOP", lending.lender.id());
    wait_until_stopped(lending.lender.id());
    lending.leased("24M", "true");
    lending.signal("CONT", lending.lender.id());
    lending.wait("the agent is killed", |it| it.number("killed") == 1);
    assert!(lending.has_said("the daemon took memory before the agent had unmounted it"));
    lending.wait("a new agent lends", |it| it.lent() == 4);
    assert_eq!(lending.status().expect("a lender").number("recalled"), 1);
}

#[test]
fn a_recall_counts_while_the_lender_stops() {
    // A busy machine may let the lender run late, but not by half of this notice.
    let Some((mut lending, _master)) = Lending::started_with("4000", LONG) else { return };
    lending.mode("hang");
    lending.signal("TERM", lending.lender.id());
    lending.wait("all leave", |it| it.words("is being unmounted") == 4);
    lending.leased("24M", "true");
    assert_eq!(lending.ended(), Some(0));
    let why = "the agent is killed: no answer to an unmount in time";
    assert!(lending.has_said(why), "{:?}", lending.lines("lend.log"));
}

/// Traces a thread until its own end. Its process ends only then.
const TRACER: &str = "import ctypes, sys, time
SEIZE = 0x4206
print(ctypes.CDLL(None).ptrace(SEIZE, int(sys.argv[1]), None, None), flush=True)
time.sleep(1000)";

/// Keeps the agent from its end. Prints that this user may not.
fn traced(lending: &Lending) -> Option<Serving> {
    let thread = lending
        .lines("log")
        .into_iter()
        .find_map(|line| line.strip_prefix("thread ").map(str::to_owned));
    let mut tracer = Command::new("python3");
    tracer.args(["-c", TRACER, &thread.expect("a thread")]).stdout(Stdio::piped());
    let tracer = Serving::start(&mut tracer, 1);
    let may = tracer.said == ["0"];
    if !may {
        println!("skipped: this user may not trace a process");
    }
    may.then_some(tracer)
}

#[test]
fn memory_waits_for_the_end_of_a_killed_agent() {
    let Some((lending, _master)) = Lending::started() else { return };
    let Some(mut tracer) = traced(&lending) else { return };
    lending.mode("dead");
    let mut leasing = lending.leasing("24M");
    lending.wait("the agent is killed", |it| {
        it.number("killed") == 1 && it.words("waits for the agent's end") == 4
    });
    assert_eq!(lending.leases(), ["lend"; 4]);
    assert!(leasing.try_wait().expect("a child").is_none(), "its memory is not free");
    lending.mode("");
    let _ = tracer.child.kill();
    assert!(leasing.wait().expect("a child").success());
    assert_eq!(lending.said("after the agent's end"), 1, "{:?}", lending.lines("lend.log"));
}

#[test]
fn memory_is_cut_from_an_agent_that_is_slow_to_end() {
    let Some((lending, _master)) = Lending::started_with(LONG, "200") else { return };
    let Some(mut tracer) = traced(&lending) else { return };
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
