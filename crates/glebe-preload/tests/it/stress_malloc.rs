//! Runs a program that checks all its blocks, with each option, and with short memory.
//! `GLEBE_STRESS_SECONDS` sets the time, and `GLEBE_STRESS_SEED` repeats a failure.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use glebe::units::Bytes;

use glebe_testing::time::{is_long, storm};

use crate::built::{compiled, preloaded, run, stderr, stdout};

fn seconds() -> f64 {
    let usual = Duration::from_millis(if is_long() { 9000 } else { 4500 });
    storm(usual).as_secs_f64()
}

fn seed() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = since.map_or(1, |since| since.as_nanos() as u64);
    let given = std::env::var("GLEBE_STRESS_SEED").ok();
    given.map_or(now % 1_000_000, |seed| seed.parse().expect("GLEBE_STRESS_SEED is a number"))
}

/// Returns the bytes marked or given back, from the reports.
fn went(reports: &str) -> u64 {
    let is_wanted = |name: &str| ["\"marked_bytes\"", "\"given_back_bytes\""].contains(&name);
    let members = reports.split(['{', ',', '}']).filter_map(|member| member.split_once(':'));
    let values = members.filter(|(name, _)| is_wanted(name)).map(|(_, value)| value.parse::<u64>());
    values.map(|value| value.expect("a number")).sum()
}

fn stress(command: &mut Command, what: &str, seconds: f64, threads: u32, mib_of_each: u32) {
    let arguments = [format!("{seconds}"), seed().to_string(), threads.to_string()];
    let begin = Instant::now();
    let output = run(command.args(arguments).arg(mib_of_each.to_string()));
    let said = stdout(&output);
    println!("{what:?}, {:.1} s: {said}", begin.elapsed().as_secs_f64());
    let numbers: Vec<u64> = said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    assert_eq!(numbers.len(), 4, "{said}");
    let reports = stderr(&output);
    assert!(went(&reports) > 0 || what == "pages=off", "{what}: {reports}");
    assert!(numbers[1] > 0 || threads == 1, "{what}: {said}");
    // Each kind of event must happen, even on a slow machine.
    assert!(numbers[0] > 0 && numbers[2] > 0 && numbers[3] > 0, "{what}: {said}");
}

#[test]
fn every_block_is_as_it_was_left() {
    let Some(program) = compiled("stress.c", &[]) else { return };
    let all = ["", "age=1", "huge=off", "thread=off", "pages=off", "age=1,huge=off"];
    for options in all {
        let mut command = preloaded(&program, &format!("stats,format=json,{options}"));
        stress(&mut command, options, seconds() / 9.0, 4, 40);
    }
}

/// The threads fit in the limit only because they give memory back.
#[test]
fn every_block_is_as_it_was_left_where_memory_is_short() {
    let Some(program) = compiled("stress.c", &[]) else { return };
    for options in ["", "age=1", "huge=off"] {
        let group = match glebe_testing::cgroup::Group::make(Bytes::mib(320)) {
            Ok(group) => group,
            Err(why) => return println!("skipped: {why}"),
        };
        let mut command = preloaded(&program, &format!("stats,format=json,{options}"));
        // SAFETY: the closure writes a file between fork and exec.
        #[allow(unsafe_code)]
        unsafe {
            let dir = group.dir().to_owned();
            command.pre_exec(move || enter(&dir));
        }
        stress(&mut command, &format!("{options} in 320 MiB"), seconds() / 9.0, 3, 24);
        assert_eq!(group.kills(), 0, "{options}");
    }
}

#[test]
fn what_is_used_again_while_it_is_given_back() {
    let Some(program) = compiled("churn.c", &[]) else { return };
    for options in ["", "age=1", "huge=off"] {
        let mut command = preloaded(&program, options);
        let output = run(command.arg(format!("{}", seconds() / 6.0)).arg("3"));
        print!("{options:?}: {}", stdout(&output));
    }
}

fn enter(dir: &Path) -> std::io::Result<()> {
    std::fs::write(dir.join("cgroup.procs"), "0")
}
