//! The command line of `glebe-bench`.

use std::process::{Command, Output};

fn glebe(args: &[&str]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_glebe-bench")).args(args).output();
    output.expect("the program starts")
}

#[test]
fn benchmarks_are_listed_and_others_refused() {
    let list = glebe(&["list"]);
    assert_eq!(list.stdout, b"reserve\nvolatile\nzpool\nvmap\ncontig\ngpu\n", "{list:?}");
    for wrong in [
        &["no-such"][..],
        &["volatile", "--background", "true"],
        &["reserve", "--largest-mib", "9"],
    ] {
        assert_eq!(glebe(wrong).status.code(), Some(2), "{wrong:?}");
    }
    assert_eq!(glebe(&["reserve", "--dir", "/nonexistent"]).status.code(), Some(1));
}
