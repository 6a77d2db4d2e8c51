//! `glebe-bench stress` and its command line as a user meets them, as short as they can be.

use std::process::{Command, Output};

fn glebe(args: &[&str]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_glebe-bench")).args(args).output();
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
    let list = glebe(&["list"]);
    assert_eq!(list.stdout, b"reserve\nvolatile\nzpool\nvmap\ncontig\ngpu\n", "{list:?}");
    for wrong in [
        &["no-such"][..],
        &["volatile", "--background", "true"],
        &["reserve", "--largest-mib", "9"],
        &["stress", "--signal-hz", "0"],
    ] {
        assert_eq!(glebe(wrong).status.code(), Some(2), "{wrong:?}");
    }
    assert_eq!(glebe(&["reserve", "--dir", "/nonexistent"]).status.code(), Some(1));
}
