//! Runs C programs with the static library. Most are linked into one program, to link the library
//! only once.
//!
//! The library is one object, so a program that calls any of it contains all of it. The name of the
//! program selects the test. `glebe_vrange.h` may add code that runs before `main`, so each test
//! that includes it is linked by itself.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use glebe_testing::Scratch;

use super::{built_once, runs, By, V10, WARNINGS};
use crate::built::{has, root, run as run_it};

/// Programs that are linked together, and compiler options.
type Together = (&'static [&'static str], &'static [&'static str]);

const ALL: [Together; 3] = [
    (
        &[
            "all",
            "contig",
            "lease",
            "place",
            "reclaimer",
            "shared",
            "shared_cache",
            "swap",
            "view",
            "volatile",
            "zpool",
        ],
        &[],
    ),
    (&["family"], &["-DGLEBE_VRANGE_RECLAIM", V10[0], V10[1]]),
    (&["v10"], &["-D_GNU_SOURCE", V10[0], V10[1]]),
];

pub fn run(source: &str, by: &[By]) {
    if !has("cc") {
        return;
    }
    static PROGRAMS: [OnceLock<PathBuf>; ALL.len()] = [const { OnceLock::new() }; ALL.len()];
    let name = source.trim_end_matches(".c");
    let mut all = ALL.iter().zip(&PROGRAMS);
    let (together, program) = all.find(|((names, _), _)| names.contains(&name)).expect(name);
    let scratch = Scratch::readable("archived");
    // `cp` makes a copy that other users can run, because a file that this process writes may stay
    // open in another thread's child, and an exec would fail (ETXTBSY).
    run_it(Command::new("cp").arg(program.get_or_init(|| linked(together))).arg(scratch.path()));
    runs(&scratch.path().join("archived"), source, by);
}

fn linked((names, options): &Together) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("glebe-c-archived").join(names[0]);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let compile = |source: &Path, name: &str| {
        let mut cc = Command::new("cc");
        cc.args(["-std=c11", "-pthread", "-c"]).args(WARNINGS).args(*options);
        cc.arg("-I").arg(root().join("include")).arg("-I").arg(root().join("tests"));
        cc.arg(source).arg("-o").arg(folder.join(name).with_extension("o"));
        cc
    };
    let choice = folder.join("choice.c");
    fs::write(&choice, choice_of_main(names)).unwrap();
    run_it(&mut compile(&choice, "choice"));
    for name in *names {
        let source = root().join("tests").join(name).with_extension("c");
        run_it(compile(&source, name).arg(format!("-Dmain=main_of_{name}")));
    }
    let objects = ["choice"].iter().chain(*names);
    let program = folder.join("archived");
    run_it(
        Command::new("cc")
            .arg("-pthread")
            .args(objects.map(|name| folder.join(name).with_extension("o")))
            .arg(built_once().join("libglebe.a"))
            .args(["-lm", "-o"])
            .arg(&program),
    );
    program
}

/// Returns the code of a `main` that calls the test named by `arguments[0]`.
fn choice_of_main(names: &[&str]) -> String {
    let mut code = String::from("#include <string.h>\n");
    let mut choices = String::new();
    for name in names {
        let _ = writeln!(code, "int main_of_{name}(int count, char **arguments);");
        let _ = writeln!(
            choices,
            "    if (!strcmp(arguments[0], \"{name}\")) return main_of_{name}(count, arguments);"
        );
    }
    code + "int main(int count, char **arguments) {\n" + &choices + "    return 99;\n}\n"
}
