//! Tests the calls for C and their header.

use std::fs;
use std::process::Command;

use glebe_testing::Scratch;

use crate::built::{compile, has, preloaded, root, run, stdout};
use pages::stats::Stats;

#[test]
fn a_program_calls_what_is_there() {
    if !has("cc") {
        return;
    }
    let scratch = Scratch::readable("calls");
    // A weak function can be null only in a position-independent program.
    let program = compile(&scratch, "calls.c", &["-std=c99", "-fPIE", "-pie"]);
    let output = run(Command::new(&program).arg("none"));
    assert_eq!(stdout(&output), "calls: ok\n");
    for (options, has) in
        [("", "heap"), ("thread=off", "heap"), ("huge=off", "heap"), ("pages=off", "alone")]
    {
        let output = run(preloaded(&program, options).arg(has));
        assert_eq!(stdout(&output), "calls: ok\n", "{options}");
    }
}

#[test]
fn the_header_has_the_members_of_the_table() {
    let header = fs::read_to_string(root().join("include/glebe_malloc.h")).unwrap();
    let mut expected = String::new();
    for row in Stats::default().rows() {
        expected += &format!("    /* {} */\n    uint64_t {};\n", row.what, row.name);
    }
    let start = header.find("/* out: 1 */\n").unwrap() + "/* out: 1 */\n".len();
    let end = start + header[start..].find("};").unwrap();
    assert_eq!(&header[start..end], expected);
}

#[test]
fn the_header_compiles_alone_in_every_standard() {
    let header = root().join("include/glebe_malloc.h");
    for (compiler, language, standards) in [
        ("cc", "c", ["-std=c99", "-std=c11", "-std=gnu17"]),
        ("c++", "c++", ["-std=c++11", "-std=c++17", "-std=c++20"]),
    ] {
        if !has(compiler) {
            continue;
        }
        for standard in standards {
            let mut command = Command::new(compiler);
            command.args([standard, "-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]);
            run(command.args(["-x", language]).arg(&header));
        }
    }
}
