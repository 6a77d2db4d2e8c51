//! Tests exit statuses: 2 for a wrong command line, 1 for an unwritable output, 0 for a closed
//! pipe. Also tests the demo.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Output};

use glebe_testing::Scratch;

fn glebe(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_glebe"));
    command.args(args).current_dir("/");
    command
}

fn run(args: &[&str]) -> Output {
    glebe(args).output().expect("the program starts")
}

const PRINTING: [&[&str]; 12] = [
    &["--version"],
    &["--help"],
    &["demo", "--help"],
    &["help", "contig", "explain"],
    &["probe"],
    &["probe", "--json"],
    &["contig", "status"],
    &["contig", "explain", "4K"],
    &["zpool", "classes"],
    &["stats", "--describe"],
    &["completions", "bash"],
    &["contig", "reserve", "2G", "--page", "1G", "--at-boot"],
];

#[test]
fn a_wrong_command_line_is_status_2_and_a_reason() {
    let wrong: [&[&str]; 18] = [
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
        &["bench"],
        &["stress"],
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
    assert!(line("1.5K").starts_with("yes: 1.5 KiB in one piece"), "{}", line("1.5K"));
    assert_eq!(line("1000T"), "no: 1000 TiB in one piece cannot be had now");
    assert_eq!(line("1048576T"), "no: 1 EiB in one piece cannot be had now");
}

#[test]
fn a_demo_shows_a_reserve_at_work_and_keeps_the_figures() {
    let scratch = Scratch::new("demo");
    // The files fill the reserve, so that requests recall pages.
    for index in 0..16 {
        fs::write(scratch.path().join(format!("file-{index}")), vec![index as u8; 1 << 20])
            .unwrap();
    }
    let json = scratch.path().join("demo.json");
    let (dir, path) = (scratch.path().to_str().unwrap(), json.to_str().unwrap());
    let output = run(&["demo", "--quick", "--size", "16M", "--json", path, dir]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && !text.contains("WRONG"), "{output:?}");
    let report: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    let rows = report["rows"].as_array().unwrap();
    for who in ["glebe", "plain"] {
        let is = |row: &&serde_json::Value| row["case"] == "recall_1" && row["who"] == who;
        let row = rows.iter().find(is).unwrap_or_else(|| panic!("{who}: {report}"));
        assert!(row["runs"] == 8 && row["median"].as_f64().unwrap() > 0.0, "{row}");
    }
    assert_eq!(report["map"].as_array().unwrap().len(), 8);
    let number = |line: &str| -> u64 {
        let rest = text.lines().find_map(|text| text.strip_prefix(line)).expect(line);
        rest.split(' ').next().and_then(|number| number.parse().ok()).expect(line)
    };
    assert!(number("cache     ") > 4096 && number("pages     ") > 0, "{text}");
    assert!(text.starts_with("A program sets memory aside once."), "{text}");
    // Each step says what it does, how far it is, and how long it took.
    for (begin, end) in [("1 of 3 ", "most:"), ("2 of 3 ", "100 %"), ("3 of 3 ", " 7 8")] {
        let step = text.lines().find(|line| line.starts_with(begin)).expect(begin);
        let (done, took) = step.rsplit_once(" (").expect(step);
        assert!(done.ends_with(end) && took.ends_with(" s)"), "{step}");
    }
    assert!(text.contains("        reserve   16 MiB of "), "{text}");
    let result = text.lines().last().expect("a result");
    assert!(result.contains(": glebe, in ") && result.contains("; the kernel, "), "{result}");
    assert!(result.ends_with("No request of glebe failed, no byte was wrong."), "{result}");
}

#[test]
fn a_demo_that_cannot_do_what_it_is_told_says_so_first() {
    let output = run(&["demo", "--quick", "--json", "/dev/null/x"]);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{output:?}");
    let output = run(&["demo", "--quick", "--size", "2M", "/nonexistent"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}
