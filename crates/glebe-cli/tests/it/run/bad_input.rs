//! Tests that wrong command lines have status 2 and a helpful message.

use std::ffi::OsStr;

use super::{refused, said, Place};

#[test]
fn a_door_is_needed_and_flags_say_which() {
    let place = Place::new();
    let run = |flags: &[&str]| {
        let flags: Vec<&OsStr> = flags.iter().map(OsStr::new).collect();
        refused(&mut place.command(&flags), 2)
    };
    for flags in [&["--", "true"][..], &["--lib", "/x", "--", "true"]] {
        assert!(run(flags).contains("nothing is asked for: say --malloc or --contig"));
    }
    for flags in [&["--stats"][..], &["--stats=json"], &["--signal=USR2"], &["--option", "age=1"]] {
        let name = flags[0].split('=').next().unwrap();
        let line = run(&[flags, &["--", "true"]].concat());
        assert!(line.contains(&format!("{name} needs --malloc")), "{line}");
    }
    for (flag, about) in [
        ("--option=a,b", "without a comma"),
        ("--option==x", "NAME=VALUE"),
        ("--stats=", "give text, json, openmetrics, or a file"),
        ("--stats=a,b", "has a comma"),
    ] {
        let line = run(&["--malloc", flag, "--", "true"]);
        assert!(line.contains(about) && line.contains(&flag[..8]), "{line}");
    }
}

#[test]
fn what_the_command_line_cannot_be_is_told_with_its_usage() {
    let place = Place::new();
    let cases: [(&[&str], &str); 5] = [
        (&["--malloc"], "<PROGRAM>"),
        (&["--malloc", "--"], "<PROGRAM>"),
        (&["--malloc", "--no-such", "true"], "--no-such"),
        (&["--malloc", "--signal", "KILL", "--", "true"], "give HUP, USR1, USR2, WINCH, or RTMIN"),
        (&["--malloc", "--malloc", "--", "true"], "multiple times"),
    ];
    for (flags, about) in cases {
        let flags: Vec<&OsStr> = flags.iter().map(OsStr::new).collect();
        let output = place.command(&flags).output().unwrap();
        let (out, err) = said(&output);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(out.is_empty() && err.contains(about), "{flags:?}: {err}");
    }
}
