//! Tests the unit of systemd: the page shows it, what it forbids, and that the server needs none of
//! that.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use glebe_testing::tools::{has, run};
use glebe_testing::Scratch;

use super::{dialogue, Serving};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn unit() -> String {
    fs::read_to_string(root().join("systemd/glebe-serve.service")).expect("the unit")
}

#[test]
fn the_page_shows_the_unit() {
    let page = fs::read_to_string(root().join("docs/serve.md")).expect("the page");
    assert!(page.contains(&format!("```ini\n{}```", unit())), "docs/serve.md has another unit");
}

#[test]
fn of_two_units_with_one_folder_the_later_stops_the_other() {
    let leases = fs::read_to_string(root().join("systemd/glebe.service")).expect("the unit");
    let folder = "RuntimeDirectory=glebe-serve";
    assert!([&leases, &unit()].iter().all(|text| text.lines().any(|line| line == folder)));
    let has = |key: &str| {
        let mut values = leases.lines().filter_map(|line| line.strip_prefix(key));
        values.any(|value| value.split(' ').any(|name| name == "glebe-serve.service"))
    };
    // Without an order, the stop could remove the folder that the start has just made.
    assert!(has("Conflicts=") && has("After="), "{leases}");
}

#[test]
fn the_unit_exposes_little() {
    if !has("systemd-analyze") {
        return;
    }
    // A threshold of 20 is an exposure of 2.0.
    let unit = root().join("systemd/glebe-serve.service");
    let mut command = Command::new("systemd-analyze");
    command.args(["security", "--offline=yes", "--threshold=20", "--no-pager"]);
    run(command.arg(unit));
}

/// Returns the system calls of a set of systemd's.
fn allowed(set: &str) -> BTreeSet<String> {
    let mut command = Command::new("systemd-analyze");
    let out = run(command.args(["syscall-filter", "--no-pager", set])).stdout;
    let text = String::from_utf8(out).expect("text");
    let mut calls = BTreeSet::new();
    for word in text.lines().map(str::trim).filter(|word| !word.starts_with('#')) {
        match word.starts_with('@') && word != set {
            true => calls.extend(allowed(word)),
            false => drop(calls.insert(word.to_owned())),
        }
    }
    calls
}

/// Returns the system calls that a server makes, and the lines that its kernel refused.
fn calls(options: &[&str]) -> BTreeSet<String> {
    let scratch = Scratch::new("strace");
    let trace = scratch.path().join("trace");
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "-o"]).arg(&trace).arg(env!("CARGO_BIN_EXE_glebe"));
    command.args(["serve", "--no-stats", "-l", "127.0.0.1:0", "-t", "2"]).args(options);
    let mut serving = Serving::start(&mut command, 2);
    let mut stream = serving.connect();
    dialogue(&mut stream, "set k 0 0 1\nx\nget k\n", "STORED\nVALUE k 0 1\nx\nEND\n");
    let value = "x".repeat(100_000);
    for n in 0..20 {
        dialogue(&mut stream, &format!("set k{n} 0 0 100000\n{value}\n"), "STORED\n");
    }
    dialogue(&mut stream, "shutdown\n", "");
    serving.ends_well();
    let text = fs::read_to_string(&trace).expect("a trace");
    let name = |line: &str| {
        let call = line.split_once(' ')?.1.trim_start();
        let name = call.strip_prefix("<... ").unwrap_or(call);
        let end = name.find(|byte: char| !byte.is_ascii_alphanumeric() && byte != '_')?;
        (end > 0).then(|| name[..end].to_owned())
    };
    text.lines().filter_map(name).collect()
}

#[test]
fn the_server_makes_no_call_that_the_unit_forbids() {
    if !has("systemd-analyze") || !has("strace") {
        return;
    }
    let unit = unit();
    let set = unit.lines().find_map(|row| row.strip_prefix("SystemCallFilter=")).expect("a set");
    let allowed = allowed(set);
    assert!(allowed.contains("mmap") && allowed.len() > 100, "{allowed:?}");
    let made = calls(&["-A"]);
    assert!(made.contains("mmap") && made.contains("epoll_wait"), "{made:?}");
    let forbidden: Vec<&String> = made.difference(&allowed).collect();
    // The server does without these where they are refused: a test of each is elsewhere.
    let optional = ["userfaultfd", "io_uring_setup", "io_uring_register", "io_uring_enter"];
    let needed: Vec<&&String> =
        forbidden.iter().filter(|call| !optional.contains(&call.as_str())).collect();
    assert!(needed.is_empty(), "{needed:?}");
}
