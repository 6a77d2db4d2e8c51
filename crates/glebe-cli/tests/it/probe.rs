//! Tests `glebe probe`: text, JSON, a closed pipe, a full disk, no privileges.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output};

use serde_json::Value;

use crate::reachable::{Reachable, NOBODY};

fn glebe() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_glebe"));
    command.arg("probe");
    command
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
    serde_json::from_slice(&output.stdout).expect("valid JSON")
}

fn rows(value: &Value) -> &[Value] {
    value["mechanisms"].as_array().expect("an array of rows")
}

fn states(value: &Value) -> Vec<(String, String)> {
    let text = |row: &Value, field: &str| row[field].as_str().expect("a string").to_owned();
    rows(value).iter().map(|row| (text(row, "key"), text(row, "state"))).collect()
}

fn state<'a>(value: &'a Value, key: &str) -> &'a str {
    let row = rows(value).iter().find(|row| row["key"] == key);
    row.unwrap_or_else(|| panic!("no row {key}"))["state"].as_str().expect("a string")
}

#[test]
fn json_and_text_list_the_same_rows() {
    let value = json(&glebe().arg("--json").output().unwrap());
    let states = states(&value);
    let keys: BTreeSet<&String> = states.iter().map(|(key, _)| key).collect();
    assert_eq!(keys.len(), states.len(), "a key twice");
    for row in rows(&value) {
        let empty = |field: &str| row[field].as_str().expect("a string").is_empty();
        let plain = row["state"] == "yes";
        assert_eq!((empty("reason"), empty("remedy")), (plain, plain), "{row}");
    }
    assert!(value["page_size_bytes"].as_u64().unwrap().is_power_of_two());

    let output = glebe().output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let (uses, mechanisms) = text.split_once("\nLinux ").expect("a line between the two lists");
    assert_eq!(uses.lines().count(), value["uses"].as_array().unwrap().len(), "{uses}");
    assert!(uses.starts_with("reserve  "), "{uses}");
    let listed: Vec<(String, String)> = mechanisms
        .lines()
        .skip(1)
        .filter(|line| !line.starts_with(' '))
        .map(|line| {
            let mut words = line.split_whitespace().map(str::to_owned);
            (words.next().unwrap(), words.next().unwrap())
        })
        .collect();
    assert_eq!(listed, states);
    // Only a line with one word beside its label, such as a path, may be wider than 100 characters.
    for line in text.lines().filter(|line| line.chars().count() > 100) {
        let words = line.split_whitespace().filter(|word| !["why:", "how:"].contains(word));
        assert_eq!(words.count(), 1, "{line}");
    }
}

#[test]
fn a_closed_pipe_is_no_failure() {
    for arg in [None, Some("--json")] {
        // The reader is closed before the program starts, so that the program's first write fails.
        let (reader, writer) = UnixStream::pair().unwrap();
        drop(reader);
        let output = glebe().args(arg).stdout(OwnedFd::from(writer)).output().unwrap();
        assert!(output.status.success(), "{arg:?}: {output:?}");
        assert!(output.stderr.is_empty(), "{arg:?}: {output:?}");
    }
}

#[test]
fn output_that_fails_is_a_failure() {
    let Ok(full) = File::options().write(true).open("/dev/full") else {
        println!("skipped: /dev/full cannot be opened");
        return;
    };
    for arg in [None, Some("--json")] {
        let output = glebe().args(arg).stdout(full.try_clone().unwrap()).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{arg:?}");
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.starts_with("glebe: ") && stderr.lines().count() == 1, "{stderr}");
    }
}

#[test]
fn without_privilege_the_same_rows_and_fewer_yes() {
    let root = json(&glebe().arg("--json").output().unwrap());
    let copy = Reachable::new();
    let tried = Command::new(copy.program())
        .args(["probe", "--json"])
        .uid(NOBODY)
        .gid(NOBODY)
        .current_dir("/")
        .output();
    let nobody = match tried {
        Ok(output) => json(&output),
        Err(error) => {
            println!("skipped: cannot run as uid {NOBODY}: {error}");
            return;
        }
    };
    let keys = |value| states(value).into_iter().map(|(key, _)| key).collect::<Vec<_>>();
    assert_eq!(keys(&root), keys(&nobody));
    assert_eq!(state(&nobody, "capabilities"), "no");
    assert_eq!(state(&nobody, "pagemap.pfn"), "no");
    // Mechanisms that need no privilege keep their state.
    for key in ["pagemap.scan", "madv.free", "uffd.user", "uffd.sigbus", "membarrier.rseq"] {
        assert_eq!(state(&nobody, key), state(&root, key), "{key}");
    }
    let rank = |state: &str| ["no", "partly", "yes"].iter().position(|s| *s == state).unwrap();
    for ((key, with), (_, without)) in states(&root).iter().zip(states(&nobody)) {
        assert!(rank(with) >= rank(&without), "{key}: {with} as root, {without} without");
    }
}
