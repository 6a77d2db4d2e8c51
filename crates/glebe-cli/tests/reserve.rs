//! `glebe stress`, `glebe bench` and `glebe demo` as a user meets them, as short as they can be.

use std::process::{Command, Output};

fn glebe(args: &[&str]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_glebe")).args(args).output();
    output.expect("the program starts")
}

#[test]
fn a_second_of_stress_finds_nothing_wrong_in_either_way_of_keeping_writers_out() {
    for args in [&["stress", "--seconds", "1"][..], &["stress", "--seconds", "1", "--counted"]] {
        let output = glebe(args);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{output:?}");
        assert!(text.contains("stray bytes    0\n") && !text.contains("WRONG"), "{text}");
    }
}

#[test]
fn a_second_of_stress_of_objects_and_of_a_reserve_holds_under_signals() {
    for what in ["objects", "reserve"] {
        let output = glebe(&["stress", what, "--seconds", "1", "--signal-hz", "1000"]);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && !text.contains("WRONG"), "{output:?}");
        let signals =
            text.lines().find_map(|line| line.strip_prefix("signals")?.trim().parse().ok());
        assert!(signals.is_some_and(|came: u64| came > 100), "{text}");
    }
}

#[test]
fn benchmarks_are_listed_and_others_refused() {
    let list = glebe(&["bench", "--list"]);
    assert!(list.status.success() && list.stdout.starts_with(b"reserve  "), "{list:?}");
    let other = glebe(&["bench", "no-such"]);
    assert!(!other.status.success() && !other.stderr.is_empty(), "{other:?}");
}

#[test]
fn a_demo_without_files_or_with_no_size_is_refused() {
    let output = glebe(&["demo", "--quick", "--size", "2M", "/nonexistent"]);
    assert!(!output.status.success() && !output.stderr.is_empty(), "{output:?}");
    let output = glebe(&["demo", "--size", "0"]);
    assert!(!output.status.success() && !output.stderr.is_empty(), "{output:?}");
}
