//! `glebe zpool` as a user meets it: the classes of the kernel, and parameters out of limits.

use std::process::{Command, Output};

fn glebe(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_glebe"));
    command.arg("zpool").args(args).output().expect("the program starts")
}

/// Lines of the table, head and sum left out, and the sum.
fn table(args: &[&str]) -> (Vec<Vec<String>>, String) {
    let output = glebe(args);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    let sum = lines.pop().expect("a sum").to_owned();
    let head: Vec<&str> = lines.remove(0).split_whitespace().collect();
    let columns = ["class", "size", "objs_per_zspage", "pages_per_zspage", "tail", "tail_percent"];
    assert_eq!(head, columns);
    let words = |line: &&str| line.split_whitespace().map(str::to_owned).collect();
    (lines.iter().map(words).collect(), sum)
}

#[test]
fn the_classes_of_the_kernel_are_printed() {
    let (rows, sum) = table(&["classes", "--page", "4K"]);
    assert_eq!(rows.len(), 119);
    assert_eq!(sum, "119 classes; objects above 3632 B take a page each");
    assert_eq!(rows[30], ["30", "512", "8", "1", "0", "0.00"]);
    assert_eq!(rows[118], ["254", "4096", "1", "1", "0", "0.00"]);
    assert_eq!(rows[117], ["225", "3632", "9", "8", "80", "0.24"]);
}

#[test]
fn every_parameter_changes_the_table() {
    let count = |args: &[&str]| table(&[&["classes", "--page", "4K"], args].concat()).0.len();
    assert_eq!(count(&["--chain", "4"]), 69);
    assert_eq!(count(&["--no-merge"]), 255);
    assert_eq!(count(&["--step", "32"]), 77);
    assert_eq!(count(&["--min", "2048"]), 23);
    assert_eq!(count(&["--min", "4096"]), 1);
    assert_eq!(table(&["classes", "--page", "16K", "--chain", "4"]).0.len(), 70);
    assert_eq!(table(&["classes", "--page", "64K"]).0.len(), 123);
}

#[test]
fn what_makes_no_table_is_refused_with_value_and_limit() {
    let refused = [
        (&["--chain", "17"], "17", "16"),
        (&["--chain", "0"], "0", "16"),
        (&["--step", "24"], "24", "power of two"),
        (&["--page", "5000"], "5000", "power of two"),
        (&["--page", "1M"], "1 MiB", "64 KiB"),
        (&["--min", "8K"], "8192", "page"),
    ];
    for (args, value, limit) in refused {
        let output = glebe(&[&["classes"], &args[..]].concat());
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        assert!(output.stdout.is_empty(), "{args:?}");
        assert!(text.contains(value) && text.contains(limit), "{args:?}: {text}");
    }
    assert_eq!(glebe(&[]).status.code(), Some(2));
    assert_eq!(glebe(&["no-such"]).status.code(), Some(2));
}
