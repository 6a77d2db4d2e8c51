//! Tests forks of unchanged programs: the program's own pthread_atfork handlers allocate, and
//! children fork.

use glebe_testing::Scratch;

use crate::built::{compile, has, preloaded, run, stdout};

#[test]
fn steps_of_others_around_forks_allocate() {
    if !has("cc") {
        return;
    }
    let scratch = Scratch::readable("fork");
    for options in [&[][..], &["-DFIRST"]] {
        let program = compile(&scratch, "fork.c", options);
        for step in ["prepare", "parent", "child", "none"] {
            let said = stdout(&run(preloaded(&program, "").arg(step)));
            assert_eq!(said, "", "{options:?}");
        }
    }
}

#[test]
fn a_grandchild_and_its_grandparent_have_zeros_and_what_they_wrote() {
    if !has("cc") {
        return;
    }
    let scratch = Scratch::readable("fork");
    let program = compile(&scratch, "fork.c", &[]);
    for options in ["", "huge=off,age=1"] {
        assert_eq!(stdout(&run(preloaded(&program, options).arg("twice"))), "", "{options}");
    }
}
