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
    let lowest = |line: &&str| line.starts_with("churn_1e4") && line.ends_with("exact");
    assert!(text.lines().filter(lowest).count() >= 3, "{text}");
    assert!(text.contains("vs_rbtree_churn_1e4_classes"), "{text}");
}

#[test]
fn options_of_other_benchmarks_are_refused() {
    for args in [["bench", "vmap", "--age"], ["bench", "vmap", "--dir=/tmp"]] {
        assert!(!glebe(&args).status.success(), "{args:?}");
    }
}
