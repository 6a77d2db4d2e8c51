//! Tests hard conditions (signals, forks, limits, few files, locked memory, denied calls), and the
//! statistics under them. `days.c` has the scenarios, called days.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use glebe::units::Bytes;

use glebe_testing::time::{is_long, slowed};
use glebe_testing::Scratch;

use crate::built::{compile, compiled, preloaded, root, run, stdout};

pub const MIB: u64 = 1 << 20;
const SKIPPED: i32 = 77;

pub struct Said(pub HashMap<String, u64>);

impl Said {
    fn of(output: &Output) -> Self {
        assert!(output.status.success(), "{output:?}");
        let value = |line: &str| {
            let (name, value) = line.split_once('=')?;
            Some((name.to_owned(), value.parse().ok()?))
        };
        Self(stdout(output).lines().filter_map(value).collect())
    }

    pub fn get(&self, name: &str) -> u64 {
        *self.0.get(name).unwrap_or_else(|| panic!("no {name}: {:?}", self.0))
    }

    pub fn are(&self, expected: &[(&str, u64)]) {
        expected.iter().for_each(|(name, value)| assert_eq!(self.get(name), *value, "{name}"));
    }

    pub fn is_about(&self, name: &str, expected: u64) {
        let (found, room) = (self.get(name), expected / 20 + 4 * MIB);
        assert!(found.abs_diff(expected) <= room, "{name}: {found}, not {expected}: {:?}", self.0);
    }
}

pub fn program() -> Option<PathBuf> {
    compiled("days.c", &[])
}

/// Returns a command that runs a day (a scenario of `days.c`) in a shell, after the shell command
/// `first`.
fn day(program: &Path, first: &str, options: &str, day: &[&str]) -> Command {
    let mut command = preloaded("sh", options);
    let most = slowed(Duration::from_secs(150)).as_secs();
    let all = format!("{first}\nexec timeout -s KILL {most} \"$0\" \"$@\"");
    command.args(["-c", &all]).arg(program).args(day);
    command
}

pub fn said(program: &Path, first: &str, options: &str, name: &[&str]) -> Said {
    Said::of(&day(program, first, options, name).output().unwrap())
}

fn group(limit: Bytes) -> Option<(glebe_testing::cgroup::Group, String)> {
    match glebe_testing::cgroup::Group::make(limit) {
        Ok(group) => {
            let enter = format!("echo 0 > {}", group.dir().join("cgroup.procs").display());
            Some((group, enter))
        }
        Err(why) => {
            println!("skipped: {why}");
            None
        }
    }
}

#[test]
fn a_handler_asks_and_forks_whatever_its_thread_does() {
    let Some(program) = program() else { return };
    for name in ["ticks", "ticks-restart", "fork"] {
        said(&program, "", "", &[name]).are(&[("keeper", 1)]);
    }
    // With this margin memory is always short, so frees give memory back.
    let Some((group, enter)) = group(Bytes::mib(320)) else { return };
    said(&program, &enter, "margin=64G", &["ticks"]);
    assert_eq!(group.kills(), 0);
}

#[test]
fn large_objects_are_the_heaps_own_and_are_used_again() {
    let Some(program) = program() else { return };
    for mib in ["300", "900", "1100", "2100", "7000"] {
        said(&program, "", "", &["large", mib]);
    }
    let available = glebe::internal::sys::machine::meminfo::available().unwrap();
    if available < Bytes::gib(3) {
        return println!("skipped: {available} available, up to 1100 MiB are filled");
    }
    let said = said(&program, "", "", &["large-filled"]);
    assert!(said.get("turn2") < said.get("turn0") / 4, "faults at each use: {:?}", said.0);
}

#[test]
fn many_threads_cancelled_ones_and_locked_memory() {
    let Some(program) = program() else { return };
    said(&program, "", "", &["threads"]);
    said(&program, "", "", &["cancel"]);
    for first in ["", "ulimit -l 64"] {
        said_or_skipped(&program, first, "addresses=1G", "lock", "memory may not be locked here");
    }
}

/// Threads of the parent hold mimalloc's locks at the fork, because `slow.c` delays each unlock.
#[test]
fn a_forked_child_starts_threads() {
    let Some(program) = program() else { return };
    let scratch = Scratch::readable("days");
    let slow = compile(&scratch, "slow.c", &["-shared", "-fPIC"]);
    let both = format!("{}:{}", crate::built::library().display(), slow.display());
    for options in ["", "pages=off"] {
        let mut command = day(&program, "", options, &["children"]);
        let said = Said::of(&command.env("LD_PRELOAD", &both).output().unwrap());
        assert!(said.get("slow_unlocks") > 0, "{options}: {:?}", said.0);
    }
}

#[test]
fn a_thread_is_there_whatever_starts_it_and_however_much_it_has_of_its_own() {
    let Some(program) = program() else { return };
    let scratch = Scratch::readable("days");
    let looks = said(&program, "", "", &["vfork"]).get("looks");
    assert!(looks > 0, "the thread is said to be there, and is not");
    let large = compile(&scratch, "days.c", &["-DOWN_VARIABLES=1000000"]);
    said(&large, "", "", &[]).are(&[("keeper", 1)]);
}

#[test]
fn after_chroot_the_group_stays_known() {
    let Some(program) = program() else { return };
    let Some((group, enter)) = group(Bytes::mib(600)) else { return };
    let output = day(&program, &enter, "", &["chroot"]).output().unwrap();
    if output.status.code() == Some(SKIPPED) {
        return println!("skipped: no right to chroot");
    }
    Said::of(&output).are(&[("group", 1)]);
    assert_eq!(group.kills(), 0);
}

fn said_or_skipped(
    program: &Path,
    first: &str,
    options: &str,
    name: &str,
    why: &str,
) -> Option<Said> {
    let output = day(program, first, options, &[name]).output().unwrap();
    if output.status.code() == Some(SKIPPED) {
        println!("skipped: {why}");
        return None;
    }
    Some(Said::of(&output))
}

#[test]
fn a_thread_that_goes_first_lets_the_keeper_end_its_calls() {
    let Some(program) = program() else { return };
    said_or_skipped(&program, "", "", "first", "no right to SCHED_FIFO");
}

#[test]
fn without_mappings_all_goes_on_and_the_thread_starts_once_there_is_one() {
    let Some(program) = program() else { return };
    let said = said_or_skipped(&program, "", "", "mappings", "no limit on mappings was met");
    said.iter().for_each(|said| said.are(&[("keeper", 1)]));
}

#[test]
fn the_keeper_needs_no_lock_that_a_caller_may_hold() {
    let Some(program) = program() else { return };
    said(&program, "", "", &["locked"]).are(&[("keeper", 1)]);
}

/// If programs that preload different copies of the library start each other, a process has two
/// copies. The first copy serves objects.
#[test]
fn two_copies_of_the_library_in_one_process() {
    let Some(program) = program() else { return };
    let scratch = Scratch::readable("days");
    let other = scratch.path().join("libglebe_malloc_of_old.so");
    fs::copy(crate::built::library(), &other).unwrap();
    let both = format!("{}:{}", crate::built::library().display(), other.display());
    let few = if is_long() { "1000" } else { "200" };
    for name in [&[""][..], &["threads", few], &["cancel"]] {
        let mut command = day(&program, "", "stats", name);
        let output = command.env("LD_PRELOAD", &both).output().unwrap();
        Said::of(&output).are(&[("keeper", 1)]);
    }
}

#[test]
fn without_proc_and_sys_it_works_and_sees_the_machine() {
    let Some(program) = program() else { return };
    let hidden = "mount -t tmpfs none /sys && mount -t tmpfs none /proc";
    let hides = |then: &str| {
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", &format!("{hidden} && {then}")]).arg(&program);
        command
    };
    if !hides("true").output().is_ok_and(|output| output.status.success()) {
        return println!("skipped: no right to mounts of its own");
    }
    let library = crate::built::library().display();
    let said = Said::of(&hides(&format!("LD_PRELOAD={library} exec \"$0\"")).output().unwrap());
    said.are(&[("keeper", 1), ("gauge", 1), ("group", 0), ("rss_bytes", 0), ("audit", 1)]);
    assert!(said.get("marked_bytes") > 40 * MIB, "{:?}", said.0);
}

#[test]
fn a_program_that_limits_its_own_addresses_says_before_how_many() {
    let Some(program) = program() else { return };
    let said = said(&program, "", "addresses=1G", &["limit"]);
    said.are(&[("address_bytes", 1024 * MIB)]);
}

#[test]
fn few_files_do_not_blind_the_keeper() {
    let Some(program) = program() else { return };
    said(&program, "ulimit -n 8", "", &[]).are(&[("gauge", 1)]);
    let Some((group, enter)) = group(Bytes::mib(300)) else { return };
    let said = said(&program, &format!("{enter}\nulimit -n 8"), "", &[]);
    said.are(&[("gauge", 1), ("group", 1)]);
    assert_eq!(group.kills(), 0);
}

#[test]
fn a_limit_that_sinks_takes_what_is_free() {
    let Some(program) = program() else { return };
    let Some((group, enter)) = group(Bytes::mib(600)) else { return };
    let mut command = day(&program, &enter, "", &["shrink"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    group.set_limit(Bytes::new(120 * MIB)).unwrap();
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    Said::of(&child.wait_with_output().unwrap());
    assert_eq!(group.kills(), 0);
}

/// Each thread with few objects must touch few pages, because huge pages for all would fill the
/// limit.
#[test]
fn a_burst_of_threads_fits_a_small_limit() {
    let Some(program) = compiled("burst.c", &[]) else { return };
    for options in ["", "pages=off", "margin=32M", "thread=off,huge=off"] {
        let Some((group, enter)) = group(Bytes::mib(100)) else { return };
        let output = day(&program, &enter, options, &[]).output().unwrap();
        assert!(output.status.success(), "{options:?}: {output:?}");
        assert_eq!(group.kills(), 0, "{options:?}");
    }
}

#[test]
fn what_calls_that_are_denied_leave_is_told() {
    let Some(program) = program() else { return };
    let scratch = Scratch::readable("days");
    let denied = scratch.path().join("denied");
    let source = root().join("../../scripts/programs/denied.c");
    run(Command::new("cc").arg("-o").arg(&denied).arg(source));
    said(&program, "", "", &[]).are(&[("own_files", 1), ("audit", 1), ("gauge", 1)]);
    let hides = Command::new(&denied).arg("--hides").output().unwrap();
    for error in ["EPERM", "ENOSYS"] {
        let mut command = preloaded(&denied, "");
        let said = Said::of(&command.arg(error).arg(&program).output().unwrap());
        said.are(&[("own_files", 0), ("audit", 0), ("gauge", 1), ("keeper", 1)]);
        said.are(&[("volatile_resident_bytes", 0)]);
        if hides.status.success() {
            said.are(&[("group", 0)]);
        } else {
            println!("skipped: {}", crate::built::stderr(&hides));
        }
    }
}
