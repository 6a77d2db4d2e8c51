//! `glebe-bench zpool` as a user meets it: every key is there, and the bytes are right.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

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

#[test]
fn a_quick_run_has_every_key_and_all_bytes_right() {
    let dir = tempfile::tempdir().unwrap();
    let json = dir.path().join("json");
    let output = Command::new(env!("CARGO_BIN_EXE_glebe-bench"))
        .args(["zpool", "--quick", "--json"])
        .arg(&json)
        // No kernel's sources: any files.
        .args(["--tree", concat!(env!("CARGO_MANIFEST_DIR"), "/../crates")])
        .output()
        .expect("the program starts");
    let text = fs::read_to_string(&json).unwrap_or_default();
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
fn a_tree_that_is_not_there_is_named() {
    let none = "/nonexistent/tree";
    let mut command = Command::new(env!("CARGO_BIN_EXE_glebe-bench"));
    let output = command.args(["zpool", "--quick", "--tree", none]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains(none), "{output:?}");
}
