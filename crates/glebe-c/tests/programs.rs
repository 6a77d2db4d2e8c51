//! C and C++ programs that call all of the interface, against the shared and the static library,
//! as the caller and, where that is root, as a user without privileges.

mod built;

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use built::{has, libraries, root, run, Scratch};

/// An id with no privilege: the kernel's overflow uid.
const NOBODY: u32 = 65_534;
const WARNINGS: [&str; 4] = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"];

/// A folder with the libraries, for all tests of this program.
fn built_once() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("glebe-c-libraries");
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        libraries(&folder);
        folder
    })
}

/// Compiles a program of the tests into `scratch` and runs it there.
fn compile_and_run(compiler: &str, standard: &str, source: &str, is_static: bool) {
    let scratch = Scratch::new();
    let program = scratch.path().join("program");
    for library in ["libglebe.so.0", "libglebe.so", "libglebe.a"] {
        if is_static == library.ends_with(".a") {
            fs::copy(built_once().join(library), scratch.path().join(library)).unwrap();
        }
    }
    let rpath = format!("-Wl,-rpath,{}", scratch.path().display());
    run(Command::new(compiler)
        .args([standard, "-g", "-pthread"])
        .args(WARNINGS)
        .arg("-I")
        .arg(root().join("include"))
        .arg(root().join("tests").join(source))
        .arg("-L")
        .arg(scratch.path())
        .args([rpath.as_str(), "-lglebe", "-lm", "-o"])
        .arg(&program));
    let runs = |command: &mut Command| {
        let output = run(command.current_dir("/"));
        assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{source}: ok\n"));
    };
    runs(&mut Command::new(&program));
    if source == "place.c" {
        // Its reserves have counted writers, and say why.
        runs(Command::new(&program).env("GLIBC_TUNABLES", "glibc.pthread.rseq=0"));
    }
    if glebe::sys::process::effective_user() != 0 {
        println!("skipped: {source} as another user (the caller is not root)");
        return;
    }
    runs(Command::new(&program).uid(NOBODY).gid(NOBODY));
}

#[test]
fn all_of_it_from_c() {
    if has("cc") {
        compile_and_run("cc", "-std=c99", "all.c", false);
    }
}

#[test]
fn all_of_it_from_c_with_the_static_library() {
    if has("cc") {
        compile_and_run("cc", "-std=c11", "all.c", true);
    }
}

#[test]
fn volatile_memory_from_c() {
    if has("cc") {
        compile_and_run("cc", "-std=c99", "volatile.c", false);
        compile_and_run("cc", "-std=c11", "volatile.c", true);
    }
}

#[test]
fn volatile_memory_from_cpp() {
    if has("c++") {
        compile_and_run("c++", "-std=c++11", "volatile.cpp", false);
    }
}

#[test]
fn contiguous_memory_from_c() {
    if has("cc") {
        compile_and_run("cc", "-std=c99", "contig.c", false);
        compile_and_run("cc", "-std=c11", "contig.c", true);
    }
}

#[test]
fn contiguous_memory_from_cpp() {
    if has("c++") {
        compile_and_run("c++", "-std=c++11", "contig.cpp", false);
    }
}

#[test]
fn places_from_c() {
    if has("cc") {
        compile_and_run("cc", "-std=c99", "place.c", false);
        compile_and_run("cc", "-std=c11", "place.c", true);
    }
}

#[test]
fn places_from_cpp() {
    if has("c++") {
        compile_and_run("c++", "-std=c++11", "place.cpp", false);
    }
}

#[test]
fn views_of_files_from_c() {
    if has("cc") {
        compile_and_run("cc", "-std=c99", "view.c", false);
        compile_and_run("cc", "-std=c11", "view.c", true);
    }
}

#[test]
fn object_pools_from_c() {
    if has("cc") {
        compile_and_run("cc", "-std=c99", "zpool.c", false);
        compile_and_run("cc", "-std=c11", "zpool.c", true);
    }
}

#[test]
fn object_pools_from_cpp() {
    if has("c++") {
        compile_and_run("c++", "-std=c++11", "zpool.cpp", false);
    }
}

#[test]
fn object_pools_on_a_reserve_from_c() {
    if has("cc") {
        compile_and_run("cc", "-std=c99", "lent.c", false);
    }
}

#[test]
fn object_pools_on_a_reserve_from_cpp() {
    if has("c++") {
        compile_and_run("c++", "-std=c++11", "lent.cpp", false);
    }
}

#[test]
fn all_of_it_from_cpp() {
    if has("c++") {
        compile_and_run("c++", "-std=c++11", "all.cpp", false);
    }
}

#[test]
fn the_header_compiles_alone_in_every_standard() {
    let header = root().join("include/glebe.h");
    let cases = [
        ("cc", "c", ["-std=c99", "-std=c11", "-std=gnu17"]),
        ("c++", "c++", ["-std=c++11", "-std=c++17", "-std=c++20"]),
    ];
    for (compiler, language, standards) in cases {
        if !has(compiler) {
            continue;
        }
        for standard in standards {
            let mut command = Command::new(compiler);
            command.args([standard, "-fsyntax-only", "-x", language]).args(WARNINGS);
            run(command.args(["-Wconversion", "-Wundef"]).arg(&header));
        }
    }
}

#[test]
fn the_readmes_program_works() {
    if !has("cc") {
        return;
    }
    let readme = fs::read_to_string(root().join("../../README.md")).unwrap();
    let code = readme.split_once("```c\n").unwrap().1.split_once("```").unwrap().0;
    let scratch = Scratch::new();
    let (source, program) = (scratch.path().join("readme.c"), scratch.path().join("program"));
    fs::write(&source, code).unwrap();
    run(Command::new("cc")
        .arg("-std=c11")
        .args(WARNINGS)
        .arg("-I")
        .arg(root().join("include"))
        .arg(&source)
        .arg("-L")
        .arg(built_once())
        .args(["-lglebe", "-o"])
        .arg(&program));
    let output = run(Command::new(&program).env("LD_LIBRARY_PATH", built_once()));
    assert!(output.stdout.starts_with(b"a page at 0x"), "{output:?}");
}
