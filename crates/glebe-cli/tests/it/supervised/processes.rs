//! Tests the supervisor's processes: exit status, signals, orphans, SIGKILL.

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use glebe::internal::sys::processes::seccomp;
use glebe_testing::time::wait_until;
use glebe_testing::{tools, Scratch};
use rustix::process::{kill_process, Pid, Signal};

use super::{flags, ran, started, Lender, Origin, NOBODY};

fn shell(lender: &Lender, script: &str) -> Command {
    let mut command = lender.glebe();
    command.arg("run").args(flags("")).args(["--", "sh", "-c", script]).arg(lender.asks());
    command.stdin(Stdio::null());
    command
}

/// Returns a supervised program without a daemon, or prints why not.
fn without_daemon(words: &[&str]) -> Option<Command> {
    if let Some(lack) = seccomp::lack() {
        println!("skipped: {lack}");
        return None;
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_glebe"));
    command.arg("run").args(flags("")).arg("--").args(words).stdin(Stdio::null());
    command.env("GLEBE_LEASES", "/nonexistent/leases");
    Some(command)
}

#[test]
fn the_exit_status_is_the_program_s() {
    for (script, wanted) in [("exit 0", 0), ("exit 42", 42), ("kill -9 $$", 137)] {
        let Some(mut command) = without_daemon(&["sh", "-c", script]) else { return };
        let wrong = "glebe: no call asked for huge pages\n".to_owned();
        assert_eq!(ran(&mut command), (String::new(), wrong, Some(wanted)), "{script}");
    }
    let run = |program: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_glebe"));
        ran(command.arg("run").args(flags("")).args(["--", program]))
    };
    let scratch = Scratch::new("not-executed");
    let file = scratch.path().join("file");
    std::fs::write(&file, "#!/nonexistent/interpreter\n").unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).unwrap();
    let (_, wrong, status) = run(file.to_str().unwrap());
    assert_eq!(status, Some(127), "{wrong}");
    assert!(wrong.starts_with("glebe: execve(") && wrong.lines().count() == 1, "{wrong}");
    assert_eq!((run("/nonexistent").2, run("/tmp").2), (Some(127), Some(126)));
}

#[test]
fn signals_reach_the_program() {
    let traps = "for s in HUP INT QUIT TERM USR1 USR2; do trap \"echo $s\" $s; done";
    let script = format!("{traps}; trap 'exit 5' ALRM; echo $$; while :; do sleep 0.01; done");
    let Some(command) = without_daemon(&["sh", "-c", &script]) else { return };
    // A shell cannot trap what was ignored when it started, as it is under nohup.
    let mut env = Command::new("env");
    env.arg("--default-signal").arg(command.get_program()).args(command.get_args());
    env.env("GLEBE_LEASES", "/nonexistent/leases");
    let (mut child, mut lines) = started(&mut env);
    let mut line = || lines.next().unwrap().unwrap();
    assert_ne!(line(), child.id().to_string());
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

/// Runs a shell under a supervisor in a terminal of Python, and returns what was said. Returns
/// `None` if the test is skipped.
fn in_terminal(python: &str, script: &str) -> Option<String> {
    if !tools::has("python3") {
        return None;
    }
    let command = without_daemon(&["sh", "-c", script])?;
    let file = format!("{}/tests/it/supervised/{python}", env!("CARGO_MANIFEST_DIR"));
    let mut python = Command::new("python3");
    python.arg(file).arg(command.get_program()).args(command.get_args());
    let (said, wrong, status) = ran(python.env("GLEBE_LEASES", "/nonexistent/leases"));
    assert_eq!(status, Some(0), "{said}{wrong}");
    Some(said)
}

#[test]
fn a_terminal_s_signal_reaches_the_program_once() {
    let script = "trap 'echo got' INT; trap 'exit 3' USR1; echo up; while :; do sleep 0.01; done";
    let Some(said) = in_terminal("terminal.py", script) else { return };
    assert_eq!(said.matches("got").count(), 1, "{said}");
}

#[test]
fn a_terminal_s_hang_up_reaches_the_program() {
    // The kernel sends the signal to the leader of the session alone, which is the supervisor.
    in_terminal("hang_up.py", "trap 'exit 3' HUP; echo up; while :; do sleep 0.01; done");
}

#[test]
fn a_program_inherits_which_signals_are_ignored_and_none_is_blocked() {
    // Shells unblock signals, so the program is no shell.
    let Some(command) = without_daemon(&["cat", "/proc/self/status"]) else { return };
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' HUP PIPE; exec \"$0\" \"$@\""]);
    let (said, wrong, status) = ran(shell.arg(command.get_program()).args(command.get_args()));
    assert_eq!(status, Some(0), "{wrong}");
    let bits = |line: &str| {
        let line = said.lines().find_map(|of| of.strip_prefix(line)).expect(line);
        u64::from_str_radix(line.trim(), 16).unwrap()
    };
    let both = 1_u64 << (Signal::HUP.as_raw() - 1) | 1 << (Signal::PIPE.as_raw() - 1);
    assert_eq!((bits("SigBlk:"), bits("SigIgn:") & both), (0, both));
}

#[test]
fn a_supervised_program_cannot_be_supervised_again() {
    let program = env!("CARGO_BIN_EXE_glebe");
    let script = format!("{program} run {} -- true", flags("").join(" "));
    let Some(mut command) = without_daemon(&["sh", "-c", &script]) else { return };
    let (_, wrong, status) = ran(&mut command);
    assert_eq!(status, Some(125), "{wrong}");
    assert!(wrong.contains("another glebe holds its calls already"), "{wrong}");
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

/// Returns true for a zombie too, because its new parent may reap it late.
fn has_ended(process: Pid) -> bool {
    let path = format!("/proc/{process}/stat");
    let Ok(stat) = std::fs::read_to_string(path) else { return true };
    stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('Z'))
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
        wait_until("the program's end", Duration::from_secs(20), || has_ended(program));
        drop(input);
        lender.has_all_back();
    }
}
