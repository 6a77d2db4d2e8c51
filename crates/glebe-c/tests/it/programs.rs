//! C and C++ programs that call all of the interface, against the shared and the static library,
//! as the caller and, where that is root, as a user without privileges.

#[path = "../../../glebe/tests/cgroup/mod.rs"]
mod cgroup;

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use glebe::units::Bytes;

use glebe_testing::Scratch;

use crate::built::{has, libraries, root, run};

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

/// Compiles a program of the tests, as `program` of the folder that it gives.
fn compiled(compiler: &str, options: &[&str], source: &str, is_static: bool) -> Scratch {
    let scratch = Scratch::readable("programs");
    let program = scratch.path().join("program");
    for library in ["libglebe.so.0", "libglebe.so", "libglebe.a"] {
        if is_static == library.ends_with(".a") {
            fs::copy(built_once().join(library), scratch.path().join(library)).unwrap();
        }
    }
    let rpath = format!("-Wl,-rpath,{}", scratch.path().display());
    run(Command::new(compiler)
        .args(["-g", "-pthread"])
        .args(WARNINGS)
        .args(options)
        .arg("-I")
        .arg(root().join("include"))
        .arg(root().join("tests").join(source))
        .arg("-L")
        .arg(scratch.path())
        .args([rpath.as_str(), "-lglebe", "-lm", "-o"])
        .arg(&program));
    scratch
}

/// Compiles a program of the tests into a folder of its own and runs it there.
fn compile_and_run(compiler: &str, standard: &str, source: &str, is_static: bool) {
    compile_with(compiler, &[standard], source, is_static);
}

/// As [`compile_and_run`], with any options.
fn compile_with(compiler: &str, options: &[&str], source: &str, is_static: bool) {
    let scratch = compiled(compiler, options, source, is_static);
    let program = scratch.path().join("program");
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

const V10: [&str; 2] = ["-include", "glebe_vrange.h"];

/// Whatever the program asks of the C library's headers, and wherever it does.
#[test]
fn a_program_of_the_patches_builds_unchanged_from_c() {
    if !has("cc") {
        return;
    }
    let all: [(&[&str], bool); 5] = [
        (&["-std=gnu89", "-Wno-long-long", V10[0], V10[1]], false),
        (&["-std=c99", "-D_DEFAULT_SOURCE", V10[0], V10[1]], false),
        (&["-std=c11", "-D_GNU_SOURCE", V10[0], V10[1]], true),
        (&["-std=gnu17", "-DDEFINES_GNU_SOURCE", "-O3", V10[0], V10[1]], false),
        (&["-std=gnu17", "-DINCLUDES_IT_LAST", "-Wredundant-decls"], false),
    ];
    for (options, is_static) in all {
        compile_with("cc", options, "v10.c", is_static);
    }
}

#[test]
fn a_program_of_the_patches_builds_unchanged_from_cpp() {
    if has("c++") {
        for standard in ["-std=c++98", "-std=c++11", "-std=c++20"] {
            let options = [standard, "-Wno-long-long", V10[0], V10[1]];
            compile_with("c++", &options, "v10.cpp", false);
        }
    }
}

/// The thread that purges is there where it was asked for, by a call or by the header.
#[test]
fn memory_that_a_process_shares_with_its_children_is_volatile() {
    if has("cc") {
        compile_with("cc", &["-std=c99"], "family.c", false);
        compile_with(
            "cc",
            &["-std=c11", "-DGLEBE_VRANGE_RECLAIM", V10[0], V10[1]],
            "family.c",
            true,
        );
    }
    if has("c++") {
        let options = ["-std=c++11", "-DGLEBE_VRANGE_RECLAIM", V10[0], V10[1]];
        compile_with("c++", &options, "v10.cpp", false);
        compile_and_run("c++", "-std=c++11", "family.cpp", false);
    }
}

/// The names of a patched kernel's headers are there where they are asked for, and nowhere else.
#[test]
fn the_names_of_the_patches_are_defined_on_request() {
    if !has("cc") {
        return;
    }
    let scratch = Scratch::readable("programs");
    let source = scratch.path().join("names.c");
    let names = "int all[] = {VRANGE_VOLATILE == 0, VRANGE_NONVOLATILE, SYS_vrange, __NR_vrange};";
    fs::write(&source, names).unwrap();
    for (define, compiles) in [("-DGLEBE_VRANGE_NAMES", true), ("-DOTHER", false)] {
        let mut command = Command::new("cc");
        command.arg("-I").arg(root().join("include")).args(V10).args([define, "-fsyntax-only"]);
        assert_eq!(command.arg(&source).output().unwrap().status.success(), compiles, "{define}");
    }
    // Sources of assembly are given the same options.
    let source = scratch.path().join("empty.S");
    fs::write(&source, "").unwrap();
    let object = scratch.path().join("empty.o");
    run(Command::new("cc").arg("-I").arg(root().join("include")).args(V10).arg("-c").args([
        source.as_os_str(),
        "-o".as_ref(),
        object.as_os_str(),
    ]));
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
fn swap_from_c() {
    if has("cc") {
        compile_and_run("cc", "-std=c99", "swap.c", false);
        compile_and_run("cc", "-std=c11", "swap.c", true);
    }
}

#[test]
fn swap_from_cpp() {
    if has("c++") {
        compile_and_run("c++", "-std=c++11", "swap.cpp", false);
    }
}

#[test]
fn shared_memory_from_c() {
    if has("cc") {
        compile_and_run("cc", "-std=c99", "shared.c", false);
        compile_and_run("cc", "-std=c11", "shared.c", true);
    }
}

#[test]
fn shared_memory_from_cpp() {
    if has("c++") {
        compile_and_run("c++", "-std=c++11", "shared.cpp", false);
    }
}

#[test]
fn reclaimers_from_c() {
    if has("cc") {
        compile_and_run("cc", "-std=c99", "reclaimer.c", false);
        compile_and_run("cc", "-std=c11", "reclaimer.c", true);
    }
}

/// Inside a group with a limit, into which the program goes by itself.
#[test]
fn reclaimers_under_pressure() {
    if !has("cc") {
        return;
    }
    let group = match cgroup::Group::make(Bytes::mib(96)) {
        Ok(group) => group,
        Err(why) => return println!("skipped: {why}"),
    };
    let scratch = compiled("cc", &["-std=c99"], "reclaimer.c", false);
    let output = run(Command::new(scratch.path().join("program")).arg(group.dir()));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "reclaimer.c under pressure: ok\n");
    print!("{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(group.kills(), 0);
}

#[test]
fn reclaimers_from_cpp() {
    if has("c++") {
        compile_and_run("c++", "-std=c++11", "reclaimer.cpp", false);
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
    let patches = root().join("include/glebe_vrange.h");
    let patches = patches.to_str().expect("a path of text");
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
        // Before and behind the C library's own declarations, which it must not contradict.
        let oldest = if language == "c" { "-std=c90" } else { "-std=c++98" };
        for standard in standards.into_iter().chain([oldest]) {
            let theirs = ["unistd.h", "signal.h"];
            for order in [[patches, theirs[0], theirs[1]], [theirs[0], theirs[1], patches]] {
                let mut command = Command::new(compiler);
                command.args([standard, "-fsyntax-only", "-x", language]).args(WARNINGS);
                command.args(order.iter().flat_map(|header| ["-include", header]));
                run(command.args(["-Wundef", "-Wredundant-decls", "/dev/null"]));
            }
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
    let scratch = Scratch::readable("programs");
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
