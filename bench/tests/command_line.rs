//! The command line of `glebe-bench` as a user meets it.

use std::process::{Command, Output};

fn bench(args: &[&str]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_glebe-bench")).args(args).output();
    output.expect("the program starts")
}

#[test]
fn benchmarks_are_listed_and_others_refused() {
    let list = bench(&["list"]);
    assert_eq!(list.stdout, b"reserve\nvolatile\nzpool\nvmap\ncontig\ngpu\n", "{list:?}");
    let help = bench(&["--help"]).stdout;
    assert!(!String::from_utf8_lossy(&help).contains("child"), "that is for children alone");
    for wrong in
        [&["no-such"][..], &["volatile", "--background", "true"], &["vmap", "--largest-mib", "9"]]
    {
        assert_eq!(bench(wrong).status.code(), Some(2), "{wrong:?}");
    }
    assert_eq!(bench(&["reserve", "--dir", "/nonexistent"]).status.code(), Some(1));
}

#[test]
fn a_child_has_a_parent_and_a_task_that_makes_sense() {
    let pid = std::process::id().to_string();
    for (words, said) in [
        (&["child", "1", "inside", "/nonexistent", "{}"][..], "the parent is gone"),
        (&["child", "1", "fragment", "8388608"], "the parent is gone"),
        (&["child", &pid, "no-such"], "no task"),
        (&["child", &pid, "apart", "{}"], "between the program"),
    ] {
        let output = bench(words);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
        assert!(error.contains(said), "{words:?}: {error}");
    }
}
