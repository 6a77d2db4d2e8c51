//! Tests that the process of `glebe run` becomes the program: process number, exit status, signals
//! and descriptors.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use rustix::process::{kill_process, Pid, Signal};

use super::{as_nobody, ok, said, Place, MAPS};

#[test]
fn the_exit_status_is_the_program_s() {
    let Some(place) = Place::with_library() else { return };
    for status in [0, 1, 2, 42, 125, 127, 255] {
        let exit = format!("exit {status}");
        let output = place.malloc("sh", &["-c", &exit]).output().unwrap();
        assert_eq!(output.status.code(), Some(status));
        assert!(output.stderr.is_empty(), "{output:?}");
    }
    let output = place.malloc("sh", &["-c", "kill -ABRT $$"]).output().unwrap();
    assert_eq!(output.status.signal(), Some(Signal::ABORT.as_raw()), "{output:?}");
}

#[test]
fn a_signal_reaches_the_program_since_it_is_this_process() {
    let Some(place) = Place::with_library() else { return };
    let script = "trap 'echo got; exit 7' USR1; echo $$; while :; do sleep 0.01; done";
    let mut child = place.malloc("sh", &["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), child.id().to_string());
    kill_process(Pid::from_child(&child), Signal::USR1).unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "got");
    assert_eq!(child.wait().unwrap().code(), Some(7));
}

#[test]
fn the_program_sees_its_own_name_and_arguments() {
    let Some(place) = Place::with_library() else { return };
    assert_eq!(ok(&mut place.malloc("cat", &["/proc/self/cmdline"])), "cat\0/proc/self/cmdline\0");
    // Flags after the program belong to the program, and so does a second `--`.
    let flags = ["--malloc", "printf", "%s,", "--stats", "--", "--malloc"].map(OsStr::new);
    assert_eq!(ok(&mut place.command(&flags)), "--stats,--,--malloc,");
    assert_eq!(ok(&mut place.malloc("printf", &["%s,", "--", "--lib"])), "--,--lib,");
}

#[test]
fn input_folder_and_descriptors_are_the_caller_s() {
    let Some(place) = Place::with_library() else { return };
    let mut child = place.malloc("cat", &[]);
    let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"through").unwrap();
    assert_eq!(child.wait_with_output().unwrap().stdout, b"through");
    let folder = ok(&mut place.malloc("pwd", &["-P"]));
    assert_eq!(folder.trim(), std::fs::canonicalize(place.0.path()).unwrap().to_str().unwrap());
    // `glebe run` adds no descriptor to those that it inherits.
    let mut bare = Command::new("ls");
    assert_eq!(ok(&mut place.malloc("ls", &["/proc/self/fd"])), ok(bare.arg("/proc/self/fd")));
}

/// Returns the bits of `line` in `/proc/self/status` of a program. A shell runs `caller`, then
/// starts the program by `glebe run`.
fn signals(place: &Place, caller: &str, line: &str) -> u64 {
    let glebe = "exec \"$0\" run --malloc -- cat /proc/self/status";
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!("{caller}{glebe}")).arg(place.path("bin/glebe"));
    let status = ok(&mut shell);
    let bits = status.lines().find_map(|of| of.strip_prefix(line)).expect(line);
    u64::from_str_radix(bits.trim(), 16).unwrap()
}

#[test]
fn ignored_signals_stay_ignored_and_no_others_are() {
    let Some(place) = Place::with_library() else { return };
    let bit = |signal: Signal| 1_u64 << (signal.as_raw() - 1);
    let both = bit(Signal::PIPE) | bit(Signal::USR1);
    // The caller of this test may already ignore USR1.
    let default = signals(&place, "", "SigIgn:") & both;
    assert_eq!(default & bit(Signal::PIPE), 0);
    assert_eq!(signals(&place, "trap '' PIPE; ", "SigIgn:") & both, default | bit(Signal::PIPE));
    assert_eq!(signals(&place, "trap '' USR1; ", "SigIgn:") & both, bit(Signal::USR1));
}

#[test]
fn a_user_without_privileges_can_run_programs() {
    let Some(place) = Place::with_library() else { return };
    let mut command = place.malloc("cat", &[MAPS]);
    let Some(command) = as_nobody(&mut command) else { return };
    assert!(ok(command).contains(place.library().to_str().unwrap()));
    let mut command = place.malloc("id", &["-u"]);
    let output = as_nobody(&mut command).expect("as before").output().unwrap();
    assert_eq!(said(&output).0.trim(), super::NOBODY.to_string(), "{output:?}");
}
