//! Tests reports at exit and on a signal, and complaints about options.

use std::fs;
use std::os::unix::fs::{symlink, PermissionsExt};
use std::path::Path;
use std::process::Output;

use glebe_testing::{openmetrics, Scratch};

use crate::built::{compiled, preloaded, stderr, stdout};
use pages::stats::{Stats, ROWS};

fn ends(program: &Path, options: &str, arguments: &[&str]) -> Output {
    let output = preloaded(program, options).args(arguments).output().unwrap();
    let expected = if arguments.first() == Some(&"_exit") { 0 } else { 5 };
    assert_eq!(output.status.code(), Some(expected), "{options} {arguments:?}: {output:?}");
    output
}

fn program() -> Option<std::path::PathBuf> {
    compiled("report.c", &["-Wno-unused-result"])
}

fn reports(text: &str) -> usize {
    let heads = text.lines().filter(|line| line.starts_with("glebe-malloc: process ")).count();
    for row in Stats::default().rows() {
        let start = format!("{} ", row.name.strip_suffix("_bytes").unwrap_or(row.name));
        let lines = text.lines().filter(|line| line.starts_with(&start)).count();
        assert_eq!(lines, heads, "{text}");
    }
    heads
}

#[test]
fn without_options_nothing_is_said() {
    let Some(program) = program() else { return };
    for options in ["", "thread=off,huge=off", "pages=off", "format=json", "age=5,margin=8M"] {
        assert_eq!(stderr(&ends(&program, options, &[])), "", "{options}");
    }
}

#[test]
fn what_is_not_understood_is_said_in_a_line_each() {
    let Some(program) = program() else { return };
    let said = stderr(&ends(&program, "huge=off,foo,age=x,\u{1b}[2J", &[]));
    let known = "is not known; known are stats, stats=PATH, pid=N, signal=NAME, \
        format=text|json|openmetrics, thread=off, huge=off, pages=off, age=MS, margin=SIZE, \
        addresses=SIZE";
    let expected = format!(
        "glebe-malloc: GLEBE_MALLOC: \"foo\" {known}\n\
         glebe-malloc: GLEBE_MALLOC: \"age=x\" needs MS from 1 to 60000\n\
         glebe-malloc: GLEBE_MALLOC: \"?[2J\" {known}\n"
    );
    assert_eq!(said, expected);
    let said = stderr(&ends(&program, &"stats,".repeat(1000), &[]));
    assert!(said.ends_with("\" is longer than 4000 bytes and not looked at\n"), "{said}");
    assert_eq!(said.lines().count(), 1);
}

#[test]
fn the_last_report_is_written_to_the_standard_error_output() {
    let Some(program) = program() else { return };
    let output = ends(&program, "stats", &[]);
    assert_eq!((reports(&stderr(&output)), stdout(&output).as_str()), (1, "end\n"));
    // Many programs close standard error at their end.
    assert_eq!(reports(&stderr(&ends(&program, "stats", &["close"]))), 1);
    // `_exit` skips the report. A forked child writes its own.
    assert_eq!(reports(&stderr(&ends(&program, "stats", &["_exit"]))), 0);
    assert_eq!(reports(&stderr(&ends(&program, "stats", &["fork"]))), 2);
    // No process has number 0, so none writes a report.
    assert_eq!(reports(&stderr(&ends(&program, "stats,pid=0", &["fork"]))), 0);
}

#[test]
fn another_file_in_its_place_is_left_alone() {
    let Some(program) = program() else { return };
    let scratch = Scratch::readable("r");
    let other = scratch.path().join("other");
    let output = ends(&program, "stats", &["replace", other.to_str().unwrap()]);
    assert_eq!((stderr(&output).as_str(), fs::read(&other).unwrap().len()), ("", 0));
}

#[test]
fn a_file_is_each_processs_own() {
    let Some(program) = program() else { return };
    let scratch = Scratch::readable("r");
    let at = |name: &str| scratch.path().join(name);
    let options = format!("format=json,stats={}", at("%%-%p.json").display());
    let output = ends(&program, &options, &["fork"]);
    let said = stdout(&output);
    let pids: Vec<_> = said.lines().next().unwrap().split(' ').collect();
    assert_eq!(pids.len(), 2);
    for pid in pids {
        let path = at(&format!("%-{pid}.json"));
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("{\"live_bytes\":") && text.ends_with("}\n"), "{text}");
        assert_eq!(text.split(',').count(), ROWS);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
    assert_eq!(stderr(&output), "");
}

#[test]
fn a_link_in_its_place_is_not_followed() {
    let Some(program) = program() else { return };
    let scratch = Scratch::readable("r");
    let at = |name: &str| scratch.path().join(name);
    fs::write(at("precious"), "text").unwrap();
    symlink(at("precious"), at("link")).unwrap();
    for (place, error) in [(at("link"), 40), (at("none/report"), 2), (scratch.path().into(), 21)] {
        let output = ends(&program, &format!("stats={}", place.display()), &[]);
        let expected =
            format!("glebe-malloc: no report in \"{}\": error {error}\n", place.display());
        assert_eq!(stderr(&output), expected);
    }
    assert_eq!(fs::read_to_string(at("precious")).unwrap(), "text");
}

#[test]
fn openmetrics_is_what_a_strict_reader_takes() {
    let Some(program) = program() else { return };
    let text = stderr(&ends(&program, "stats,format=openmetrics", &[]));
    let families = openmetrics::parse(&text).unwrap();
    assert_eq!(families.len(), ROWS);
    let rss = families.iter().find(|family| family.name == "glebe_malloc_rss_bytes").unwrap();
    assert!(rss.samples[0].value > 100_000.0);
}

#[test]
fn a_signal_has_a_report_written_at_any_moment() {
    let Some(program) = program() else { return };
    let said = stderr(&ends(&program, "signal=USR2", &["signal"]));
    let count = reports(&said);
    assert!((1..=50).contains(&count), "{count} reports");
    assert!(said.contains(", on a signal\n"));
    let output = ends(&program, "signal=USR2", &["own"]);
    assert_eq!((stdout(&output).as_str(), stderr(&output).as_str()), ("heard 1\nend\n", ""));
}

#[test]
fn a_report_that_cannot_be_written_changes_no_status() {
    let Some(program) = program() else { return };
    for how in ["", "signal"] {
        let options = "stats,signal=USR2";
        assert_eq!(stdout(&ends(&program, options, &["pipe", how])), "end\n");
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let status = preloaded(&program, options).arg(how).stderr(full).status().unwrap();
        assert_eq!(status.code(), Some(5), "{how}");
    }
}

#[test]
fn a_path_is_of_the_last_directory() {
    let Some(program) = program() else { return };
    let scratch = Scratch::readable("r");
    ends(&program, "stats=last", &["move", scratch.path().to_str().unwrap()]);
    assert_eq!(reports(&fs::read_to_string(scratch.path().join("last")).unwrap()), 1);
}
