//! Exit statuses and outputs: 2 for a wrong command line, 1 for an output that cannot be written,
//! 0 for one that nobody reads to its end.

#[path = "../../glebe/tests/scratch/mod.rs"]
mod scratch;

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};

use scratch::Scratch;

fn glebe(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_glebe"));
    command.args(args).current_dir("/");
    command
}

fn run(args: &[&str]) -> Output {
    glebe(args).output().expect("the program starts")
}

/// Commands that end soon and print something.
const PRINTING: [&[&str]; 13] = [
    &["--version"],
    &["--help"],
    &["stress", "--help"],
    &["help", "contig", "explain"],
    &["probe"],
    &["probe", "--json"],
    &["contig", "status"],
    &["contig", "explain", "4K"],
    &["zpool", "classes"],
    &["stats", "--describe"],
    &["bench", "--list"],
    &["completions", "bash"],
    &["contig", "reserve", "2G", "--page", "1G", "--at-boot"],
];

#[test]
fn a_wrong_command_line_is_status_2_and_a_reason() {
    let wrong: [&[&str]; 26] = [
        &[],
        &["no-such"],
        &["--no-such"],
        &["contig"],
        &["contig", "explain"],
        &["contig", "explain", "1.5"],
        &["contig", "explain", "9999999T"],
        &["contig", "explain", "1M", "--certificate", "x"],
        &["contig", "reserve", "1M", "--page", "3M"],
        &["contig", "release", "some"],
        &["contig", "release", "1M", "--page", "3M"],
        &["stress", "--engine", "tag"],
        &["stress", "objects", "--counted"],
        &["stress", "objects", "--dir", "/"],
        &["stress", "--signal-hz", "0"],
        &["bench", "no-such"],
        &["bench", "volatile", "--age"],
        &["bench", "reserve", "--mode", "smoke"],
        &["bench", "reserve", "--tree", "/"],
        &["bench", "vmap", "--dir", "/"],
        &["bench", "vmap", "--largest", "1G"],
        &["zpool", "classes", "--page", "5000"],
        &["zpool", "classes", "--chain", "0"],
        &["demo", "--size", "0"],
        &["stats", "--watch", "0"],
        &["stats", "--watch", "--openmetrics"],
    ];
    for args in wrong {
        let output = run(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {output:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{args:?}: {output:?}");
    }
}

#[test]
fn what_cannot_be_written_is_status_1() {
    let Ok(full) = File::options().write(true).open("/dev/full") else {
        println!("skipped: /dev/full cannot be opened");
        return;
    };
    for args in PRINTING {
        let output = glebe(args).stdout(full.try_clone().unwrap()).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}: {output:?}");
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.starts_with("glebe: ") && stderr.lines().count() == 1, "{args:?}: {stderr}");
    }
}

#[test]
fn what_nobody_reads_is_no_failure() {
    for args in PRINTING {
        let (reader, writer) = UnixStream::pair().unwrap();
        drop(reader);
        let output = glebe(args).stdout(OwnedFd::from(writer)).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{args:?}: {output:?}");
    }
}

#[test]
fn sizes_have_fractions_and_terabytes() {
    let line = |size: &str| {
        let output = run(&["contig", "explain", size]);
        String::from_utf8(output.stdout).unwrap().lines().next().unwrap_or_default().to_owned()
    };
    assert!(line("1.5K").starts_with("one run of 1.5 KiB: "), "{}", line("1.5K"));
    assert_eq!(line("1000T"), "one run of 1000 TiB: no");
    assert_eq!(line("1048576T"), "one run of 1 EiB: no");
}

#[test]
fn a_demo_says_first_that_it_can_write_no_picture_and_runs() {
    let scratch = Scratch::new("demo");
    // Root may write a folder that is read-only, but none that is a file's.
    let file = scratch.0.join("file");
    fs::write(&file, "").unwrap();
    let named = file.join("demo.svg");
    let output = run(&["demo", "--quick", "--svg", named.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stdout.is_empty(), "it did not begin: {output:?}");
    // The default lies in the current folder; /proc takes no files.
    let mut demo = glebe(&["demo", "--quick", "--size", "16M"]);
    demo.current_dir("/proc").stdout(Stdio::piped()).stderr(Stdio::null());
    let mut running = demo.spawn().unwrap();
    let mut lines = BufReader::new(running.stdout.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    assert!(first.starts_with("no picture: "), "{first}");
    assert!(!lines.next().unwrap().unwrap().is_empty(), "it runs");
    // That is enough: told to end, it gives back what it took.
    let id = running.id().to_string();
    assert!(Command::new("kill").args(["-s", "TERM", &id]).status().unwrap().success());
    assert_eq!(running.wait().unwrap().signal(), Some(15));
}
