//! `glebe-bench vmap` as a user meets it, with too few samples to compare.

use std::process::Command;

#[test]
fn every_case_has_a_row_and_every_answer_is_the_lowest() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_glebe-bench"));
    let output = command.args(["vmap", "--quick"]).output().expect("the program starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let view = "view_of_1024_scattered_pages";
    for row in ["fix_align_alloc_1e3", "adversary_1e4", view, "bytes_per_extent_1e4"] {
        assert!(text.lines().any(|line| line.starts_with(row)), "{row} in {text}");
    }
    for name in [
        "vs_rbtree_churn_1e4_classes",
        "vs_list_window_1e3_plain",
        "vs_best_exact_crate_fix_size_alloc_1e4_classes",
        "growth_1e3_to_1e4",
        "adversary_cost",
        "threads_2_vs_1_cpu",
        "view_cost",
    ] {
        assert!(text.lines().any(|line| line.starts_with(&format!("{name} "))), "{name} in {text}");
    }
    // Eleven cases with two numbers of blocks: all answers that were given were compared.
    for (who, exact) in [("glebe  ", 22), ("linked list", 22), ("vm-allocator", 20)] {
        let told = |line: &&str| line.contains(who) && line.contains("exact: ");
        assert_eq!(text.lines().filter(told).count(), exact, "{who} in {text}");
    }
    let absent = |line: &&str| line.contains("vm-allocator") && line.contains("no windows");
    assert_eq!(text.lines().filter(absent).count(), 2, "{text}");
}
