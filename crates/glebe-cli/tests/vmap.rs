//! `glebe bench vmap` as a user meets it, with too few samples to compare.

use std::process::{Command, Output};

fn glebe(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_glebe")).args(args).output().unwrap()
}

#[test]
fn every_case_has_a_row_and_every_answer_is_the_lowest() {
    let output = glebe(&["bench", "vmap", "--quick"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    for row in ["fix_align_alloc_1e3", "adversary_1e4", "vm_map_ram", "bytes_per_extent_1e4"] {
        assert!(text.lines().any(|line| line.starts_with(row)), "{row} in {text}");
    }
    let lowest = |line: &&str| line.starts_with("churn_1e4") && line.contains("exact: ");
    assert!(text.lines().filter(lowest).count() >= 3, "{text}");
    for name in [
        "vs_rbtree_churn_1e4_classes",
        "vs_list_window_1e3_plain",
        "vs_best_exact_crate_fix_size_alloc_1e4_classes",
        "growth_1e3_to_1e4",
        "adversary_cost",
        "threads_2_vs_1_cpu",
        "view_cost",
    ] {
        assert!(text.contains(&format!("  {name} ")), "{name} in {text}");
    }
    // All that were measured say whether they are exact, and all that were not say why.
    for who in ["range-alloc", "offset-allocator", "vm-allocator", "rlsf", "red-black tree"] {
        let told = |line: &str| line.ends_with("compared") || line.contains("not the lowest");
        let told = |line: &&str| line.contains(who) && (told(line) || line.contains("applicable"));
        // Both searches of the red-black tree.
        let rows = if who == "red-black tree" { 44 } else { 22 };
        assert_eq!(text.lines().filter(told).count(), rows, "{who} in {text}");
    }
    for fit in ["FL", "LE", "RE", "NE"] {
        let counted =
            |line: &&str| line.contains(&format!("  {fit}  ")) && line.contains("answers");
        assert_eq!(text.lines().filter(counted).count(), 22, "{fit} in {text}");
    }
}

#[test]
fn the_kernel_tests_cases_run_by_its_modes() {
    let output =
        glebe(&["bench", "vmap", "--mode=stress", "--threads=3", "--repeat=2", "--loops=100"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let summaries: Vec<_> = text.lines().filter(|line| line.starts_with("Summary: ")).collect();
    assert_eq!(summaries.len(), 3 * 8, "{text}");
    let first = "Summary: fix_size_alloc passed: 2 failed: 0 xfailed: 0 repeat: 2 loops: 100 avg: ";
    assert!(summaries[0].starts_with(first), "{text}");
    // Alignments beyond the space are supposed to fail.
    let last =
        "Summary: align_shift_alloc passed: 0 failed: 0 xfailed: 2 repeat: 2 loops: 64 avg: ";
    assert!(summaries[6].starts_with(last), "{text}");
    for worker in 0..3 {
        assert!(text.contains(&format!("All test took worker{worker}=")), "{text}");
    }
    assert!(text.contains("pcpu_alloc") && text.contains("not applicable"), "{text}");

    assert!(summaries[7].starts_with("Summary: vm_map_ram passed: 2 failed: 0 "), "{text}");

    let output = glebe(&["bench", "vmap", "--mode=smoke", "--loops=10", "--mask=9", "--sharded"]);
    let text = String::from_utf8_lossy(&output.stdout);
    let names: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("Summary: ")).collect();
    assert_eq!(names.len(), 2, "{text}");
    assert!(names[0].starts_with("fix_size_alloc passed: 10 "), "{text}");
    assert!(names[1].starts_with("random_size_alloc passed: 10 "), "{text}");
}

#[test]
fn options_of_other_benchmarks_are_refused() {
    for args in [
        ["bench", "vmap", "--age"],
        ["bench", "vmap", "--dir=/tmp"],
        ["bench", "vmap", "--loops=10"],
        ["bench", "zpool", "--mode=smoke"],
    ] {
        assert!(!glebe(&args).status.success(), "{args:?}");
    }
}
