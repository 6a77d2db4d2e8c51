//! Tests refusals, the last line, and the ends of programs.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use glebed::Settings;

use crate::running::{Running, BRICK};

const BRICKS: u64 = 24;

/// Returns the library's lines.
fn lines(said: &[u8]) -> Vec<String> {
    let said = String::from_utf8_lossy(said);
    said.lines().filter_map(|line| line.strip_prefix("glebe: traps (")).map(str::to_owned).collect()
}

#[test]
fn the_last_line_tells_what_was_leased() {
    let Some(running) = Running::new("traps.c", BRICKS, Settings::default()) else { return };
    let output = running.command("zeroed", "").output().unwrap();
    let said = lines(&output.stderr);
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].ends_with("): leased 16 MiB at most, in 3 mappings"), "{said:?}");
    // Nothing is told of a process that asked for nothing, unless the user started it.
    let mut child = running.command("nothing", "").stderr(Stdio::piped()).spawn().unwrap();
    assert!(child.wait().unwrap().success());
    let output = running.command("nothing", "verbose").output().unwrap();
    assert_eq!(lines(&output.stderr), Vec::<String>::new());
    let mut shell = Command::new("sh");
    let of_shell = running.command("nothing", "");
    shell.args(["-c", "GLEBE_HUGE=main=$$ exec \"$0\" nothing"]).arg(of_shell.get_program());
    shell.envs(of_shell.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let said = lines(&shell.output().unwrap().stderr);
    assert!(said.len() == 1 && said[0].ends_with("asked for no huge pages"), "{said:?}");
}

#[test]
fn a_refused_request_goes_to_the_kernel_and_is_told() {
    let Some(running) = Running::new("traps.c", BRICKS, Settings::default()) else { return };
    let said = running.holds("refused", "verbose");
    let refused = said.lines().find(|line| line.contains(": refused 2147483648 KiB, private: "));
    assert!(refused.is_some_and(|line| line.ends_with("; the kernel refuses too")), "{said}");
    let last = said.lines().last().unwrap_or_default();
    let told = "leased 8 MiB in 1 mapping; refused 1, the last 2 TiB: ";
    assert!(last.contains(told), "{last}");
}

#[test]
fn a_quota_limits_a_process() {
    let Some(running) = Running::new("traps.c", BRICKS, Settings::default()) else { return };
    let quota = format!("quota={}", 8 * BRICK);
    assert!(running.holds("zeroed", &quota).contains(": leased 16 MiB at most, in 3 mappings"));
    let less = format!("quota={},required", 7 * BRICK);
    let output = running.command("zeroed", &less).output().unwrap();
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    let said = lines(&output.stderr);
    let told = "16384 KiB of huge pages cannot be had: the quota is 14 MiB, and 0 B are leased";
    assert!(said.len() == 1 && said[0].ends_with(told), "{said:?}");
}

#[test]
fn without_a_daemon_the_kernel_gets_the_requests() {
    let Some(running) = Running::new("traps.c", BRICKS, Settings::default()) else { return };
    let nobody = running.scratch().join("nobody");
    let output = running.command("refused", "").env("GLEBE_LEASES", &nobody).output().unwrap();
    let said = lines(&output.stderr);
    assert!(said[0].contains("leased nothing; refused 2"), "{said:?}");
    assert!(said[0].contains("no daemon answers at"), "{said:?}");
    let mut required = running.command("zeroed", "required");
    let output = required.env("GLEBE_LEASES", &nobody).output().unwrap();
    assert_eq!(output.status.code(), Some(125), "{output:?}");
}

#[test]
fn unknown_words_are_told() {
    let Some(running) = Running::new("traps.c", BRICKS, Settings::default()) else { return };
    let said = running.holds("zeroed", "quota=1G,thing");
    assert!(said.contains("GLEBE_HUGE has unknown words: quota=1G,thing"), "{said}");
}

#[test]
fn a_killed_program_leaves_nothing_behind() {
    let Some(running) = Running::new("traps.c", BRICKS, Settings::default()) else { return };
    let mut held = running.command("held", "").stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(held.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "held\n");
    let rows = running.client().list().unwrap();
    let all: Vec<_> = rows.iter().map(|row| (row.bytes, row.name.as_str())).collect();
    assert_eq!(all, vec![(8 * BRICK, "traps"); 2]);
    held.kill().unwrap();
    held.wait().unwrap();
    running.wait_until_all_is_back();
    running.holds("zeroed", "");
}
