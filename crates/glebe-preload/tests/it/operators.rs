//! Tests C++'s operators `new` and `delete`, also a program's own.

use glebe_testing::Scratch;

use crate::built::{compile, has, preloaded, run, stdout};

fn operators(options: &[&str]) {
    if !has("c++") {
        return;
    }
    let scratch = Scratch::readable("operators");
    let program = compile(&scratch, "operators.cpp", options);
    for options in ["", "pages=off"] {
        let output = run(&mut preloaded(&program, options));
        assert_eq!(stdout(&output), "operators: ok\n");
    }
}

#[test]
fn every_form_from_cpp() {
    operators(&["-std=c++17"]);
}

/// The program defines two operators, which the preloaded library's other operators must call.
#[test]
fn operators_of_the_programs_own() {
    operators(&["-std=c++17", "-DOWN", "-Wno-sized-deallocation"]);
}

#[test]
fn a_library_that_only_a_plugin_has() {
    if !has("c++") || !has("cc") {
        return;
    }
    let scratch = Scratch::readable("operators");
    compile(&scratch, "plugin.cpp", &["-std=c++17", "-shared", "-fPIC"]);
    let host = compile(&scratch, "host.c", &["-ldl"]);
    let output = run(preloaded(host, "").arg(scratch.path().join("plugin")));
    assert_eq!(stdout(&output), "plugin: ok\n");
}
