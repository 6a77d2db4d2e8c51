//! `glebe-bench zpool` as a user meets it: every key is there, the bytes are right, and no device
//! is left behind, however the run ends.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(30);

/// Names in the JSON that the targets are told by.
const ROWS: [&str; 5] = [
    "overhead_final_percent_tree",
    "overhead_random_delete_percent_tree",
    "overhead_final_percent",
    "overhead_random_delete_percent",
    "compaction_pages_per_s",
];
const RATIOS: [&str; 7] = [
    "overhead_worst_vs_zram_compacted",
    "store_vs_zram",
    "load_vs_zram",
    "load_vs_codec",
    "callback_32000_vs_clean",
    "insert_remove_vs_best_malloc",
    "threads_2_vs_1_cpu",
];

/// A device that is gone may come again as another run's.
static ONE_RUN: Mutex<()> = Mutex::new(());

/// Ends the program when the test does, by panic too.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// zram devices of the machine, by name.
fn devices() -> BTreeSet<String> {
    let entries = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with("zram")).collect()
}

/// Devices that process `pid` has open.
fn devices_of(pid: u32) -> BTreeSet<String> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let targets = entries.filter_map(|entry| fs::read_link(entry.path()).ok());
    let name = |path: PathBuf| Some(path.strip_prefix("/dev").ok()?.display().to_string());
    targets.filter_map(name).filter(|name| name.starts_with("zram")).collect()
}

fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("glebe-zpool-{name}-{}", std::process::id()))
}

#[test]
fn a_quick_run_has_every_key_and_all_bytes_right() {
    let _alone = ONE_RUN.lock().unwrap_or_else(PoisonError::into_inner);
    let json = scratch("json");
    let output = Command::new(env!("CARGO_BIN_EXE_glebe-bench"))
        .args(["zpool", "--quick", "--json"])
        .arg(&json)
        // No kernel's sources: any files.
        .args(["--tree", concat!(env!("CARGO_MANIFEST_DIR"), "/../crates")])
        .output()
        .expect("the program starts");
    let text = fs::read_to_string(&json).unwrap_or_default();
    let _ = fs::remove_file(&json);
    assert!(output.status.success(), "{output:?}");
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    let cases: BTreeSet<&str> = report["rows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["case"].as_str().unwrap())
        .collect();
    for case in ROWS {
        assert!(cases.contains(case), "no row {case}: {cases:?}");
    }
    for ratio in RATIOS {
        assert!(report["ratios"].get(ratio).is_some(), "no ratio {ratio}");
    }
    assert_eq!(report["checks"]["wrong_bytes"], 0);
}

#[test]
fn a_run_that_is_told_to_end_takes_its_device_with_it() {
    let _alone = ONE_RUN.lock().unwrap_or_else(PoisonError::into_inner);
    // A shell ignores SIGINT for what it runs in the background, and so would the program.
    let mut command = Command::new("env");
    command.args(["--default-signal=INT,TERM", env!("CARGO_BIN_EXE_glebe-bench"), "zpool"]);
    command.stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    let mut running = Running(command.spawn().expect("the program starts"));
    let begin = Instant::now();
    let pid = running.0.id();
    let mut own = devices_of(pid);
    while own.is_empty() && begin.elapsed() < PATIENCE {
        if !fs::exists("/sys/class/zram-control/hot_add").unwrap_or(false) {
            println!("skipped: no zram here");
            return;
        }
        thread::sleep(Duration::from_millis(1));
        own = devices_of(pid);
    }
    if own.is_empty() {
        println!("skipped: the run has no device of zram");
        return;
    }
    assert!(own.is_subset(&devices()));
    let killed = Command::new("kill").args(["-s", "TERM", &pid.to_string()]).status();
    assert!(killed.unwrap().success());
    assert_eq!(running.0.wait().unwrap().signal(), Some(15));
    let left: Vec<_> = own.intersection(&devices()).cloned().collect();
    assert!(left.is_empty(), "left behind: {left:?}");
}

#[test]
fn a_tree_that_is_not_there_is_named() {
    let none = scratch("none").display().to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_glebe-bench"));
    let output = command.args(["zpool", "--quick", "--tree", &none]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains(&none), "{output:?}");
}

#[test]
fn a_child_that_is_told_nonsense_says_so() {
    let pid = std::process::id().to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_glebe-bench"));
    let output = command.args(["child", &pid, "apart", "{}"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("between the program"), "{output:?}");
}
