//! Tests the flags with the real allocator.

use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::libraries;

use super::{cc, ok, said, Place, LIBRARY, MAPS};

/// C program that prints its process number. It ends by `exit`, where the allocator prints its
/// report. A shell would not do, because it may end by `_exit`.
const PROGRAM: &str = r#"
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int count, char **arguments) {
    const char *told = count > 1 ? arguments[1] : "";
    if (!strcmp(told, "signal")) raise(SIGUSR2);
    if (!strcmp(told, "start") && fork() == 0) execl(arguments[0], arguments[0], NULL);
    wait(NULL);
    if (chdir("/")) return 1;
    return printf("%d\n", getpid()) < 2;
}
"#;

fn run(flags: &[&str], told: &str) -> Option<(Place, String, String)> {
    let place = Place::new();
    let program = place.path("program");
    if !cc(PROGRAM, &program, &[]) {
        return None;
    }
    let mut command = place.command(&["--malloc", "--lib"].map(OsStr::new));
    let output =
        command.arg(libraries::folder()).args(flags).arg("--").arg(program).arg(told).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{flags:?}: {output:?}");
    let (out, err) = said(&output);
    Some((place, out, err))
}

#[test]
fn a_build_puts_it_where_the_command_finds_it() {
    let beside = PathBuf::from(env!("CARGO_BIN_EXE_glebe")).with_file_name(LIBRARY);
    assert_eq!(beside.parent(), Some(libraries::folder()));
    let mut command = Command::new(env!("CARGO_BIN_EXE_glebe"));
    let maps = ok(command.args(["run", "--malloc", "cat", MAPS]).env_remove("LD_PRELOAD"));
    assert!(maps.contains(beside.to_str().unwrap()));
}

#[test]
fn statistics_are_printed_at_exit_and_only_if_asked_for() {
    let Some((_, _, err)) = run(&[], "") else { return };
    assert_eq!(err, "");
    let (_, out, err) = run(&["--stats"], "").unwrap();
    let head = format!("glebe-malloc: process {}, at exit\n", out.trim());
    assert!(err.starts_with(&(head + "In memory: ")) && err.contains(" MiB"), "{err}");
    let (_, out, err) = run(&["--stats"], "start").unwrap();
    assert_eq!((out.lines().count(), err.matches("at exit").count()), (2, 1), "{out}{err}");
    let (_, _, err) = run(&["--stats=openmetrics"], "").unwrap();
    assert!(err.starts_with("# ") && err.ends_with("# EOF\n"), "{err}");
}

#[test]
fn a_file_for_each_process_has_its_statistics() {
    // The file's path is relative to a folder that the program leaves.
    let Some((place, out, err)) = run(&["--stats=json:%p.json"], "start") else { return };
    let pids: Vec<&str> = out.lines().collect();
    assert!(pids.len() == 2 && err.is_empty(), "{out}{err}");
    for pid in pids {
        let text = fs::read_to_string(place.path(format!("{pid}.json"))).unwrap();
        let stats: Value = serde_json::from_str(&text).unwrap();
        assert!(stats["rss_bytes"].as_u64() > Some(0), "{text}");
    }
}

#[test]
fn a_signal_prints_them_while_the_program_goes_on() {
    let Some((_, out, err)) = run(&["--signal", "usr2"], "signal") else { return };
    let head = format!("glebe-malloc: process {}, on a signal\n", out.trim());
    assert!(err.starts_with(&head) && !err.contains("at exit"), "{err}");
    let (_, _, err) = run(&["--signal=USR2", "--stats"], "signal").unwrap();
    let at = |what: &str| err.find(what).unwrap_or_else(|| panic!("{what} in {err}"));
    assert!(at(", on a signal\n") < at(", at exit\n"));
}

#[test]
fn every_option_that_the_flags_make_is_known_to_the_allocator() {
    let flags = ["--option=thread=off", "--option", "age=5", "--option=huge=off", "--stats=text"];
    for signal in ["HUP", "USR1", "WINCH", "RTMIN", "SIGRTMIN+29"] {
        let flags = [&flags[..], &["--signal", signal]].concat();
        let Some((_, _, err)) = run(&flags, "") else { return };
        assert!(!err.contains("GLEBE_MALLOC"), "{signal}: {err}");
    }
    let (_, _, err) = run(&["--option", "colour=red"], "").unwrap();
    assert!(err.contains("GLEBE_MALLOC") && err.contains("colour=red"), "{err}");
}
