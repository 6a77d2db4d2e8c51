//! `glebe-bench contig` as a user meets it: every key is there for root and for others, and the
//! child that fragments memory keeps to what it was told.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// An id with no privilege: the kernel's overflow uid.
const NOBODY: u32 = 65_534;

/// Names in the JSON that the targets are told by.
const RATIOS: [&str; 7] = [
    "random_read_vs_memalign",
    "stream_vs_memalign",
    "populate_vs_zeroing_cpu",
    "populate_threads_2_vs_1_cpu",
    "longest_run_vs_optimum",
    "required_on_demand",
    "default_run_vs_longest",
];
const CASES: [&str; 13] = [
    "random_read_64m",
    "stride_4160_64m",
    "stream_copy_64m",
    "obtain_64m",
    "direct_read_65536",
    "register_4m",
    "map_2m",
    "map_128m",
    "mapped_longest",
    "required_8m",
    "page_cache_lost",
    "given_back_ms",
    "evacuate_128m",
];
const CHECKS: [&str; 3] = ["verify_disagreements", "required_failures", "wrong_bytes"];

fn quick(program: &Path, json: &Path, uid: Option<u32>) -> serde_json::Value {
    let mut command = Command::new(program);
    command.args(["contig", "--quick", "--json"]).arg(json);
    if let Some(uid) = uid {
        command.uid(uid).gid(uid).current_dir("/");
    }
    let output = command.output().expect("the program starts");
    let text = fs::read_to_string(json).unwrap_or_default();
    let _ = fs::remove_file(json);
    assert!(output.status.success(), "{output:?}");
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    for ratio in RATIOS {
        assert!(report["ratios"].get(ratio).is_some(), "no ratio {ratio}");
    }
    let rows = report["rows"].as_array().unwrap();
    for case in CASES {
        // Of some nothing can be had: then a row says why.
        assert!(rows.iter().any(|row| row["case"] == case), "no row {case}: {rows:?}");
    }
    for check in CHECKS {
        let count = &report["checks"][check];
        assert!(*count == 0 || count.is_null(), "{check}: {count}");
    }
    for what in ["random_read_vs_memalign", "stream_vs_memalign"] {
        assert!(report["ratios"][what].as_f64().is_some_and(|ratio| ratio > 0.0), "{what}");
    }
    report
}

#[test]
fn a_quick_run_has_every_key_for_root_and_for_others() {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_glebe-bench"));
    quick(program, &dir.path().join("own.json"), None);
    let able = Command::new("true").uid(NOBODY).gid(NOBODY).status();
    if let Err(why) = able {
        return println!("skipped: no other user can be had: {why}");
    }
    // A copy where everybody can reach it.
    let copy = dir.path().join("glebe-bench");
    fs::copy(program, &copy).unwrap();
    let report = quick(&copy, &dir.path().join("other.json"), Some(NOBODY));
    // Frames are hidden from others: nothing was compared, which is no 0.
    assert!(report["checks"]["verify_disagreements"].is_null(), "{report}");
}

#[test]
fn the_fragmenter_takes_what_it_was_told_holds_half_and_ends_with_its_parents_interest() {
    let most = 8 << 20;
    let pid = std::process::id().to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_glebe-bench"));
    command.args(["child", &pid, "fragment", &most.to_string()]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = lines.next().unwrap().unwrap();
    let held: u64 = line.strip_prefix("held ").unwrap().parse().unwrap();
    let resident = fs::read_to_string(format!("/proc/{}/statm", child.id())).unwrap();
    let resident: u64 = resident.split(' ').nth(1).unwrap().parse().unwrap();
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    if held == 0 {
        return println!("skipped: the machine has too little left");
    }
    assert_eq!(held, most / 2);
    let page = glebe::sys::page_size().bytes().get();
    assert!(resident * page >= most / 2 && resident * page < most + (16 << 20), "{resident} pages");
}

#[test]
fn a_busy_child_tells_what_it_saw_since_it_was_asked_last() {
    let (most, pid) = (8 << 20, std::process::id().to_string());
    let mut command = Command::new(env!("CARGO_BIN_EXE_glebe-bench"));
    command.args(["child", &pid, "busy", &most.to_string()]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let held = lines.by_ref().find_map(|line| line.strip_prefix("held ")?.parse::<u64>().ok());
    let mut asks = child.stdin.take().unwrap();
    let mut told = Vec::new();
    for _ in 0..2 {
        std::thread::sleep(std::time::Duration::from_millis(20));
        if held != Some(0) {
            asks.write_all(b"\n").unwrap();
            told.extend(lines.next());
        }
    }
    drop(asks);
    assert!(child.wait().unwrap().success());
    if held == Some(0) {
        return println!("skipped: the machine has too little left");
    }
    assert_eq!((held, told.len()), (Some(most), 2), "{told:?}");
    let worst = |line: &String| line.strip_prefix("0 ")?.parse::<u64>().ok();
    assert!(told.iter().all(|line| worst(line).is_some()), "{told:?}");
}

#[test]
fn a_largest_memory_is_kept_to() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_glebe-bench"));
    let output = command.args(["contig", "--quick", "--largest-mib", "2"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(text.contains("left out: --largest-mib and free memory allow 2 MiB"), "{text}");
}
