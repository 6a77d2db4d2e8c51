//! Forks of programs that know nothing of the heap: beside steps of other libraries that allocate,
//! and to grandchildren.

mod built;

use built::{compile, has, preloaded, run, stdout, Scratch};

#[test]
fn steps_of_others_around_forks_allocate() {
    if !has("cc") {
        return;
    }
    let scratch = Scratch::new();
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
    let scratch = Scratch::new();
    let program = compile(&scratch, "fork.c", &[]);
    for options in ["", "huge=off,age=1"] {
        assert_eq!(stdout(&run(preloaded(&program, options).arg("twice"))), "", "{options}");
    }
}
