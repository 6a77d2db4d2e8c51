//! Tests the supervisor's processes: exit status, signals, orphans, SIGKILL.

use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use glebe_testing::time::wait_until;
use rustix::process::{kill_process, test_kill_process, Pid, Signal};

use super::{flags, ran, Lender, Origin, NOBODY};

fn started(command: &mut Command) -> (Child, Lines<BufReader<ChildStdout>>) {
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("glebe starts");
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    (child, lines)
}

fn shell(lender: &Lender, script: &str) -> Command {
    let mut command = lender.glebe();
    command.args(["run", &flags(""), "--", "sh", "-c", script]).arg(lender.asks());
    command.stdin(Stdio::null());
    command
}

#[test]
fn status_and_signals_are_the_program_s() {
    let Some(lender) = Lender::new(Origin::Pool(NOBODY)) else { return };
    for (script, wanted) in [("exit 0", 0), ("exit 42", 42), ("kill -9 $$", 137), ("\"$0\" m2", 7)]
    {
        let (_, wrong, status) = ran(&mut shell(&lender, script));
        assert_eq!(status, Some(wanted), "{script}: {wrong}");
    }
    let (said, wrong, status) = ran(lender.glebe().args(["run", &flags(""), "--", "/tmp"]));
    assert_eq!((said.as_str(), status), ("", Some(126)), "{wrong}");
    let traps =
        "for s in HUP INT QUIT TERM USR1 USR2; do trap \"echo $s\" $s; done; trap 'exit 5' ALRM";
    let script = format!("{traps}; echo $$; while :; do sleep 0.01; done");
    let (mut child, mut lines) = started(&mut shell(&lender, &script));
    let mut line = || lines.next().unwrap().unwrap();
    let program = line();
    assert_ne!(program, child.id().to_string());
    for (signal, name) in [
        (Signal::HUP, "HUP"),
        (Signal::INT, "INT"),
        (Signal::QUIT, "QUIT"),
        (Signal::TERM, "TERM"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
    ] {
        kill_process(Pid::from_child(&child), signal).unwrap();
        assert_eq!(line(), name);
    }
    kill_process(Pid::from_child(&child), Signal::ALARM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(5));
}

#[test]
fn a_program_inherits_which_signals_are_ignored_and_none_is_blocked() {
    let Some(lender) = Lender::new(Origin::Pool(NOBODY)) else { return };
    let mut command = Command::new("sh");
    let script = "trap '' HUP PIPE; exec \"$0\" run \"$1\" -- cat /proc/self/status";
    command.args(["-c", script]).arg(lender.program.program()).arg(flags(""));
    let (said, wrong, status) = ran(&mut command);
    assert_eq!(status, Some(0), "{wrong}");
    let bits = |line: &str| {
        let line = said.lines().find_map(|of| of.strip_prefix(line)).expect(line);
        u64::from_str_radix(line.trim(), 16).unwrap()
    };
    let both = 1_u64 << (Signal::HUP.as_raw() - 1) | 1 << (Signal::PIPE.as_raw() - 1);
    assert_eq!((bits("SigBlk:"), bits("SigIgn:") & both), (0, both));
}

#[test]
fn leases_last_until_the_last_orphan_ends() {
    let Some(lender) = Lender::new(Origin::Pool(NOBODY)) else { return };
    let (mut child, mut lines) = started(&mut lender.run("", &["m2", "o4", "m2"]));
    let mut line = || lines.next().unwrap().unwrap();
    assert_eq!([line(), line()], ["m2", "waits"]);
    let list = || ran(lender.glebe().args(["leases", "--json"])).0;
    assert!(list().contains("\"bytes\":2097152"), "{}", list());
    assert!(child.try_wait().unwrap().is_none(), "the supervisor waits for the orphan");
    drop(child.stdin.take());
    assert_eq!([line(), line()], ["o4", "m2"]);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(3), "the program's status, not the orphan's");
    let wrong = String::from_utf8_lossy(&output.stderr);
    // The program's own pages are free since its end.
    assert!(wrong.starts_with("glebe: 8 MiB of huge pages leased in 3 calls"), "{wrong}");
    lender.has_all_back();
}

#[test]
fn a_signal_after_the_program_s_end_leaves_the_orphans() {
    let Some(lender) = Lender::new(Origin::Pool(NOBODY)) else { return };
    let (mut child, mut lines) = started(&mut lender.run("", &["o4"]));
    assert_eq!(lines.next().unwrap().unwrap(), "waits");
    let input = child.stdin.take();
    wait_until("the end of the supervisor", Duration::from_secs(20), || {
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        child.try_wait().unwrap().is_some()
    });
    assert_eq!(child.wait().unwrap().code(), Some(3));
    drop(input);
    assert_eq!(lines.next().unwrap().unwrap(), "o4: Function not implemented");
    lender.has_all_back();
}

#[test]
fn sigkill_of_the_supervisor_kills_the_program_and_frees_its_pages() {
    for origin in [Origin::Surplus, Origin::Pool(NOBODY)] {
        let Some(lender) = Lender::new(origin) else { return };
        let script = "echo $$; exec \"$0\" m16 w";
        let (mut child, mut lines) = started(&mut shell(&lender, script));
        let mut line = || lines.next().unwrap().unwrap();
        let program = Pid::from_raw(line().parse().unwrap()).unwrap();
        assert_eq!([line(), line()], ["m16", "waits"]);
        let input = child.stdin.take();
        child.kill().unwrap();
        child.wait().unwrap();
        wait_until("the program's end", Duration::from_secs(20), || {
            test_kill_process(program).is_err()
        });
        drop(input);
        lender.has_all_back();
    }
}
