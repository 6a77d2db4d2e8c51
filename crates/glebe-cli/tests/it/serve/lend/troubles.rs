//! Bad days: of the agent, the master, the daemon, the lender, and the command line.

use std::fs;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Output};

use glebe_testing::time::wait_until;
use glebe_testing::turn::{Turn, POOL};
use glebe_testing::Scratch;

use super::lending::{lend, lives, serving, serving_by, Lending, LONG, PATIENCE};
use crate::serve::{glebe, output, Serving};

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn an_agent_that_ends_takes_its_segments_along() {
    let Some((lending, _master)) = Lending::started() else { return };
    let agent = lending.status().expect("a lender").agent();
    lending.signal("KILL", agent);
    lending.wait("its end is seen", |it| it.number("died") == 1);
    lending.wait("a new one lends", |it| it.lent() == 4);
    assert_ne!(lending.status().expect("a lender").agent(), agent);
    assert!(lending.has_said("the agent ended: signal: 9"), "{:?}", lending.lines("lend.log"));
    lending.mode("crash");
    lending.leased("24M", "true");
    lending.wait("a mount crashes it", |it| it.number("died") >= 2);
    lending.mode("");
    lending.wait("a new one lends", |it| it.lent() == 4);
}

#[test]
fn a_refused_segment_goes_back() {
    let Some((lending, _master)) = Lending::start("refuse", LONG, LONG) else { return };
    lending.wait("it was refused twice", |it| it.number("refused") >= 2);
    let refusals = || {
        let lines = lending.lines("lend.log").into_iter();
        lines.filter(|line| line.contains("the store refuses a segment")).collect::<Vec<_>>()
    };
    assert_eq!(refusals().len(), 1, "told once");
    assert!(refusals()[0].contains("mount_segment gave -704"), "{:?}", refusals());
    lending.leased("54M", "true");
    lending.mode("");
    lending.wait("all is lent", |it| it.lent() == 4);
    assert!(lending.has_said("the store takes segments again"));
}

/// Starts a lender without a server. It never gets memory.
fn alone(mode: &str, more: &[&str]) -> (Lending, TcpListener) {
    let nothing = Serving::start(Command::new("sleep").arg("1000"), 0);
    let master = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = master.local_addr().expect("an address").port();
    (Lending::to(nothing, Scratch::new("lend"), mode, port, more), master)
}

#[test]
fn a_lender_needs_nobody_to_read_its_output() {
    let scratch = Scratch::new("lend-unread");
    fs::write(scratch.path().join("mode"), "").expect("written");
    let (reader, writer) = UnixStream::pair().expect("sockets");
    drop(reader);
    let mut command = lend(scratch.path(), 1, &[]);
    let mut lender = command.stdout(OwnedFd::from(writer)).spawn().expect("the program starts");
    let control = scratch.path().join("control");
    let mut status = glebe();
    status.args(["lend", "status", "--control"]).arg(&control);
    wait_until("it answers", PATIENCE, || {
        assert_eq!(lender.try_wait().expect("a child"), None);
        status.output().expect("glebe starts").status.success()
    });
    lender.kill().expect("a child");
    lender.wait().expect("a child");
}

#[test]
fn a_helper_that_ends_without_a_word_is_told() {
    let (lending, _master) = alone("silent", &[]);
    lending.wait("it ended twice", |it| it.number("not_set_up") >= 2);
    let told = "is not set up: the agent ended: exit status: 3 (last words)";
    assert_eq!(lending.said(told), 1, "{:?}", lending.lines("lend.log"));
    let shown = lending.status().expect("a lender");
    assert!(shown.0["master"].as_str().is_some_and(|it| it.ends_with(told)));
    assert_eq!(shown.number("died"), 0);
    lending.mode("");
    lending.wait("it is set up", |it| it.number("started") == 1);
}

#[test]
fn a_setup_that_is_too_slow_is_tried_again_before_the_rest() {
    let more = ["--rest", "600", "--rest-max", "600", "--host", "a.host"];
    let (lending, _master) = alone("slow-setup", &more);
    lending.wait("it was too slow", |it| it.number("not_set_up") == 1);
    lending.mode("");
    lending.wait("it is set up", |it| it.number("started") == 1);
    assert_eq!(lending.said("was not set up within 15s"), 1, "{:?}", lending.lines("lend.log"));
    assert_eq!(lending.said("other hosts cannot reach"), 0);
    let last = lending.lines("log").pop().unwrap_or_default();
    assert!(last.starts_with("setup a.host "), "{last}");
}

#[test]
fn a_second_first_answer_changes_nothing() {
    let Some((lending, _master)) = Lending::started() else { return };
    lending.mode("twice");
    let is_said = || lending.lines("log").iter().any(|line| line == "twice");
    lending.wait("it is said again", |_| is_said());
    lending.mode("");
    lending.leased("24M", "true");
    let shown = lending.status().expect("a lender");
    assert_eq!(["unmounted", "killed", "started"].map(|it| shown.number(it)), [1, 0, 1]);
}

#[test]
fn a_lease_is_not_longer_than_its_segment() {
    let (_turn, scratch) = (Turn::alone(POOL), Scratch::new("lend"));
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 490; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_glebe")]);
    let few = ["-m", "512", "-c", "16", "-t", "1", "--lease-connections", "8"];
    let Some(server) = serving_by(command, &scratch, LONG, &few) else { return };
    let master = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = master.local_addr().expect("an address").port();
    let lending = Lending::to(server, scratch, "", port, &["--segment", "6M"]);
    let told = "has bricks of 4 MiB; give a --segment that is a multiple of it, not 6 MiB";
    lending.wait("it is told", |it| it.0["daemon"] == told);
    assert_eq!(lending.said(told), 1, "{:?}", lending.lines("lend.log"));
    let shown = lending.status().expect("a lender");
    assert_eq!([shown.number("mounted"), shown.number("no_memory")], [0, 0]);
    assert!(lending.leases().is_empty());
}

#[test]
fn another_version_is_told() {
    let Some((lending, _master)) = Lending::start("version", LONG, LONG) else { return };
    lending.wait("it was refused twice", |it| it.number("not_set_up") >= 2);
    let lines = lending.lines("lend.log").into_iter();
    let told: Vec<String> = lines.filter(|line| line.contains("Version mismatch")).collect();
    assert_eq!(told.len(), 1, "{told:?}");
    let shown = lending.status().expect("a lender");
    assert!(shown.0["master"].as_str().is_some_and(|it| it.contains("Version mismatch: server=9")));
    assert_eq!(shown.0["master_up"], false);
    assert!(lending.leases().is_empty());
    lending.mode("");
    lending.wait("all is lent", |it| it.lent() == 4);
}

#[test]
fn a_lost_master_is_told_and_its_return_too() {
    let Some((lending, master)) = Lending::started() else { return };
    lending.mode("dead");
    lending.wait("it is lost", |it| it.number("master_lost") == 1 && it.0["master_up"] == false);
    assert!(lending.has_said("is lost: is_exist gave -900: the master does not answer"));
    lending.mode("");
    lending.wait("it is back", |it| it.0["master_up"] == true);
    assert!(lending.has_said("answers again"));
    let address = master.local_addr().expect("an address");
    drop(master);
    lending.signal("KILL", lending.status().expect("a lender").agent());
    lending.wait("nobody listens", |it| {
        it.0["master"].as_str().is_some_and(|it| it.contains("is unreachable"))
    });
    let told = lending.lines("lend.log").iter().filter(|it| it.contains("is unreachable")).count();
    assert_eq!(told, 1);
    let _master = TcpListener::bind(address).expect("the port again");
    lending.wait("all is lent", |it| it.lent() == 4);
}

#[test]
fn a_daemon_may_end_and_come_back() {
    let Some((mut lending, _master)) = Lending::started() else { return };
    lending.server.signal("TERM");
    lending.server.ends_well();
    lending.wait("it is lost", |it| it.0["daemon_up"] == false && it.lent() == 0);
    assert_eq!(lending.status().expect("a lender").number("daemon_lost"), 4);
    let Some(server) = serving(&lending.scratch, LONG) else { return };
    lending.server = server;
    lending.wait("all is lent", |it| it.lent() == 4 && it.0["daemon_up"] == true);
    assert!(lending.has_said("the daemon answers again"));
    assert_eq!(lending.status().expect("a lender").number("killed"), 0);
}

#[test]
fn a_daemon_may_end_during_a_mount() {
    let Some((mut lending, _master)) = Lending::start("slow-mount", LONG, LONG) else { return };
    lending.wait("all are mounted", |it| it.words("is being mounted") == 4);
    lending.server.signal("TERM");
    lending.server.ends_well();
    lending.wait("it is lost", |it| it.0["daemon_up"] == false);
    lending.mode("");
    lending.wait("nothing is mounted", |it| it.number("unmounted") == 4);
    assert_eq!(lending.status().expect("a lender").number("daemon_lost"), 4);
}

#[test]
fn a_killed_lender_leaves_nothing() {
    let Some((mut lending, _master)) = Lending::started() else { return };
    let agent = lending.status().expect("a lender").agent();
    assert!(lives(agent));
    // A hung agent does not see the end of its standard input.
    lending.mode("hang");
    let mut waiting = lending.leasing("24M");
    lending.wait("the agent hangs", |it| it.0.to_string().contains("is being unmounted"));
    let _ = lending.lender.kill();
    let _ = lending.ended();
    glebe_testing::time::wait_until("the agent's end", super::lending::PATIENCE, || !lives(agent));
    glebe_testing::time::wait_until("its leases' end", super::lending::PATIENCE, || {
        lending.leases().is_empty()
    });
    assert!(waiting.wait().expect("a child").success());
    lending.leased("54M", "true");
}

#[test]
fn a_status_has_three_forms() {
    let Some((lending, _master)) = Lending::started() else { return };
    let control = lending.at("control");
    let shown = |more: &[&str]| {
        let output = output(&[&["lend", "status", "--control", &control], more].concat());
        assert!(output.status.success(), "{}", said(&output));
        String::from_utf8(output.stdout).expect("text")
    };
    let table = shown(&[]);
    for line in ["lent      32 MiB of 32 MiB\n", "recalls   0, 0 of them", "      3  lent for "] {
        assert!(table.contains(line), "{line:?} in {table}");
    }
    let text = shown(&["--openmetrics"]);
    for line in ["glebe_lend_mounted_total 4\n", "glebe_lend_lent_bytes 33554432\n"] {
        assert!(text.contains(line), "{line:?} in {text}");
    }
    assert!(text.contains("glebe_lend_master_up 1\n") && text.ends_with("# EOF\n"), "{text}");
    let second = lend(lending.scratch.path(), 1, &[]).status().expect("the program starts");
    assert_eq!(second.code(), Some(1));
    assert!(lending.has_said("another lender answers at"));
}

#[test]
fn a_wrong_command_line_is_told() {
    let told = |args: &[&str], status: i32, what: &str| {
        let all = [&["lend", "--mooncake", "127.0.0.1:1"], args].concat();
        let output = output(&all);
        assert_eq!(output.status.code(), Some(status), "{args:?}");
        assert!(said(&output).contains(what), "{what:?} in {}", said(&output));
    };
    told(&["--share", "100M"], 2, "a share of 100 MiB, less than a segment of 256 MiB");
    told(&["--share", "1G", "--segment", "3M"], 2, "it must be a multiple of 2 MiB");
    told(&["--share", "1G", "--segment", "2M"], 2, "at most 128");
    told(&["--share", "1G", "--rest", "0"], 2, "from 0.1 to 86400");
    told(&[], 2, "--share");
    told(&["--share", "1G", "--python", "/no/python"], 1, "--python names another one");
    let none = output(&["lend", "status", "--control", "/no/such"]);
    assert!(!none.status.success() && said(&none).contains("/no/such"), "{}", said(&none));
}

#[test]
fn a_package_that_cannot_be_imported_is_told() {
    let (_turn, scratch) = (Turn::shared(POOL), Scratch::new("lend"));
    let run = |text: Option<&str>| {
        let dir = scratch.path().join("mooncake");
        fs::create_dir_all(&dir).expect("a folder");
        fs::write(dir.join("__init__.py"), "").expect("written");
        if let Some(text) = text {
            fs::write(dir.join("store.py"), text).expect("written");
        }
        let mut command = glebe();
        command.args(["lend", "--mooncake", "127.0.0.1:1", "--share", "1G"]);
        let output = command.env("PYTHONPATH", scratch.path()).output().expect("glebe starts");
        assert_eq!(output.status.code(), Some(1));
        said(&output)
    };
    let missing = run(None);
    assert!(missing.contains("pip install mooncake-transfer-engine-non-cuda"), "{missing}");
    let library = "raise ImportError('libibverbs.so.1: cannot open shared object file')";
    assert!(run(Some(library)).contains("Debian: libibverbs1"));
}
