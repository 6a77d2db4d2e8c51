//! Tests the exported names, and that functions keep to their manual pages at extreme arguments.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;

use glebe_testing::Scratch;

use crate::built::{compile, has, library, preloaded, root, run, stdout};

/// The kernel's overflow uid.
const NOBODY: u32 = 65_534;

#[test]
fn the_edges_of_the_manual_pages() {
    if !has("cc") {
        return;
    }
    let scratch = Scratch::readable("names");
    let program = compile(&scratch, "edges.c", &["-Wno-use-after-free"]);
    let expected = fs::read_to_string(root().join("tests/edges.txt")).unwrap();
    for options in ["", "pages=off", "huge=off", "thread=off"] {
        let got = stdout(&run(&mut preloaded(&program, options)));
        for (got, expected) in got.lines().zip(expected.lines()) {
            assert_eq!(got, expected, "with {options:?}");
        }
        assert_eq!(got.lines().count(), expected.lines().count(), "with {options:?}");
    }
    if glebe::internal::sys::processes::process::effective_user() != 0 {
        return println!("skipped: the edges as another user (the caller is not root)");
    }
    // The other user may be unable to read the original, but can read the copy.
    let copy = scratch.path().join("library.so");
    fs::copy(library(), &copy).unwrap();
    let mut command = preloaded(&program, "");
    command.env("LD_PRELOAD", copy).uid(NOBODY).gid(NOBODY);
    assert_eq!(stdout(&run(&mut command)), expected);
}

/// Starts of the lines in which the C library's allocator may differ, because it does less than its
/// manual page says, or did so in older versions.
const ITS_OWN: [&str; 9] = [
    "posix(MOST + 1, 10) == ENOMEM: ",
    "posix(64, MOST + 1) == ENOMEM: ",
    "posix(64, ALL) == ENOMEM: ",
    "aligned_alloc(0, 10): ",
    "aligned_alloc(3, 10): ",
    "__libc_",
    "C23: ",
    "sized(malloc(100), 100): ",
    "both(aligned_alloc(64, 128), 64, 128): ",
];

#[test]
fn the_c_librarys_own_allocator_has_the_same_edges() {
    if !has("cc") {
        return;
    }
    let scratch = Scratch::readable("names");
    let program = compile(&scratch, "edges.c", &["-Wno-use-after-free"]);
    let expected = fs::read_to_string(root().join("tests/edges.txt")).unwrap();
    let got = stdout(&run(&mut Command::new(program)));
    let common = |text: &str| -> Vec<String> {
        let is_common = |line: &&str| !ITS_OWN.iter().any(|own| line.starts_with(own));
        text.lines().filter(is_common).map(str::to_owned).collect()
    };
    assert_eq!(common(&got), common(&expected));
}

#[test]
fn nothing_else_is_exported() {
    if !has("nm") {
        return;
    }
    let output = run(Command::new("nm").args(["-D", "--defined-only"]).arg(library()));
    let text = stdout(&output);
    let names: BTreeSet<_> = text.lines().filter_map(|line| line.split(' ').nth(2)).collect();
    let expected = fs::read_to_string(root().join("tests/names.txt")).unwrap();
    let expected: BTreeSet<_> = expected.lines().collect();
    assert_eq!(names, expected);
}

/// If the library were loaded later, it would serve only some calls.
#[test]
fn a_program_cannot_load_it_later() {
    let code = "import ctypes, sys; ctypes.CDLL(sys.argv[1])";
    if !has("python3") {
        return;
    }
    let output = Command::new("python3").args(["-c", code]).arg(library()).output().unwrap();
    assert!(!output.status.success());
    let said = crate::built::stderr(&output);
    assert!(said.contains("cannot be dlopen"), "{said}");
}
