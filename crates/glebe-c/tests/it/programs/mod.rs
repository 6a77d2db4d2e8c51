//! Runs C and C++ programs that together call all of the interface. Programs use the shared or the
//! static library. If the caller is root, some run as a user without privileges.

mod archived;
mod leases;
use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use glebe::units::Bytes;
use glebe_testing::cgroup::Group;
use glebe_testing::time::is_long;
use glebe_testing::Scratch;

use crate::built::{has, libraries, root, run};

/// The kernel's overflow uid, which has no privileges.
const NOBODY: u32 = 65_534;
const WARNINGS: [&str; 4] = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"];

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

/// Returns a folder with the compiled `program` and the shared library; other users can read both.
fn compiled(compiler: &str, options: &[&str], source: &str) -> Scratch {
    let scratch = Scratch::readable("programs");
    let library = "libglebe.so.0";
    fs::copy(built_once().join(library), scratch.path().join(library)).unwrap();
    symlink(library, scratch.path().join("libglebe.so")).unwrap();
    let rpath = format!("-Wl,-rpath,{}", scratch.path().display());
    run(Command::new(compiler)
        .arg("-pthread")
        .args(WARNINGS)
        .args(options)
        .arg("-I")
        .arg(root().join("include"))
        .arg(root().join("tests").join(source))
        .arg("-L")
        .arg(scratch.path())
        .args([rpath.as_str(), "-lglebe", "-lm", "-o"])
        .arg(scratch.path().join("program")));
    scratch
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum By {
    Caller,
    /// A user without privileges, if the caller is root.
    Other,
}

const BOTH: &[By] = &[By::Caller, By::Other];

/// Returns `by`, or both users if `GLEBE_LONG` is set.
fn of_several(by: By) -> &'static [By] {
    match by {
        _ if is_long() => BOTH,
        By::Caller => &BOTH[..1],
        By::Other => &BOTH[1..],
    }
}

fn runs(program: &Path, source: &str, by: &[By]) {
    let is_root = glebe::internal::sys::processes::process::effective_user() == 0;
    // If several programs are linked into one, this name selects the test.
    let name = source.split('.').next().expect("a name");
    let ends_well = |command: &mut Command| {
        let output = run(command.arg0(name).current_dir("/"));
        assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{source}: ok\n"));
    };
    for user in by {
        let mut command = Command::new(program);
        if *user == By::Other && is_root {
            command.uid(NOBODY).gid(NOBODY);
        } else if *user == By::Other {
            println!("skipped: {source} as another user (the caller is not root)");
        }
        // Without root, the program runs once, as the caller.
        if *user == By::Caller || is_root || by.len() == 1 {
            ends_well(&mut command);
        }
    }
    if source == "place.c" && by.contains(&By::Caller) {
        // Without restartable sequences, the program's reserves have counted writers.
        ends_well(Command::new(program).env("GLIBC_TUNABLES", "glibc.pthread.rseq=0"));
    }
}

fn compile_and_run(compiler: &str, options: &[&str], source: &str, by: &[By]) {
    if has(compiler) {
        let scratch = compiled(compiler, options, source);
        runs(&scratch.path().join("program"), source, by);
    }
}

/// Tests the shared library as the user who runs the tests, and the static library as another user
/// ([`By::Other`]). With `GLEBE_LONG`, both users test both libraries.
fn from_c(source: &str) {
    compile_and_run("cc", &["-std=c99"], source, of_several(By::Caller));
    archived::run(source, of_several(By::Other));
}

fn from_cpp(source: &str) {
    compile_and_run("c++", &["-std=c++11"], source, BOTH);
}

#[test]
fn all_of_it_from_c() {
    compile_and_run("cc", &["-std=c99"], "all.c", of_several(By::Caller));
}

#[test]
fn all_of_it_from_c_with_the_static_library() {
    archived::run("all.c", of_several(By::Other));
}

#[test]
fn volatile_memory_from_c() {
    from_c("volatile.c");
}

#[test]
fn volatile_memory_from_cpp() {
    from_cpp("volatile.cpp");
}

const V10: [&str; 2] = ["-include", "glebe_vrange.h"];

/// The program may define any feature macros, anywhere.
#[test]
fn a_program_of_the_patches_builds_unchanged_from_c() {
    let all: [&[&str]; 4] = [
        &["-std=gnu89", "-Wno-long-long", V10[0], V10[1]],
        &["-std=c99", "-D_DEFAULT_SOURCE", V10[0], V10[1]],
        &["-std=gnu17", "-DDEFINES_GNU_SOURCE", "-O3", V10[0], V10[1]],
        &["-std=gnu17", "-DINCLUDES_IT_LAST", "-Wredundant-decls"],
    ];
    for options in all {
        compile_and_run("cc", options, "v10.c", of_several(By::Caller));
    }
    archived::run("v10.c", of_several(By::Other));
}

#[test]
fn a_program_of_the_patches_builds_unchanged_from_cpp() {
    for (standard, by) in [
        ("-std=c++98", of_several(By::Caller)),
        ("-std=c++11", of_several(By::Other)),
        ("-std=c++20", of_several(By::Caller)),
    ] {
        let options = [standard, "-Wno-long-long", V10[0], V10[1]];
        compile_and_run("c++", &options, "v10.cpp", by);
    }
}

/// A call, or the macro `GLEBE_VRANGE_RECLAIM`, starts the thread that purges.
#[test]
fn memory_that_a_process_shares_with_its_children_is_volatile() {
    from_c("family.c");
    let options = ["-std=c++11", "-DGLEBE_VRANGE_RECLAIM", V10[0], V10[1]];
    compile_and_run("c++", &options, "v10.cpp", of_several(By::Caller));
    from_cpp("family.cpp");
}

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
    // Assembly sources get the same options.
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
    from_c("contig.c");
}

#[test]
fn contiguous_memory_from_cpp() {
    from_cpp("contig.cpp");
}

#[test]
fn places_from_c() {
    from_c("place.c");
}

#[test]
fn places_from_cpp() {
    from_cpp("place.cpp");
}

#[test]
fn views_of_files_from_c() {
    from_c("view.c");
}

#[test]
fn object_pools_from_c() {
    from_c("zpool.c");
}

#[test]
fn object_pools_from_cpp() {
    from_cpp("zpool.cpp");
}

#[test]
fn object_pools_on_a_reserve_from_c() {
    compile_and_run("cc", &["-std=c99"], "lent.c", BOTH);
}

#[test]
fn object_pools_on_a_reserve_from_cpp() {
    from_cpp("lent.cpp");
}

#[test]
fn swap_from_c() {
    from_c("swap.c");
}

#[test]
fn swap_from_cpp() {
    from_cpp("swap.cpp");
}

#[test]
fn shared_memory_from_c() {
    from_c("shared.c");
}

#[test]
fn shared_memory_from_cpp() {
    from_cpp("shared.cpp");
}

#[test]
fn reclaimers_from_c() {
    from_c("reclaimer.c");
}

/// The program moves itself into a cgroup with a memory limit.
#[test]
fn reclaimers_under_pressure() {
    if !has("cc") {
        return;
    }
    let group = match Group::make(Bytes::mib(96)) {
        Ok(group) => group,
        Err(why) => return println!("skipped: {why}"),
    };
    let scratch = compiled("cc", &["-std=c99"], "reclaimer.c");
    let output = run(Command::new(scratch.path().join("program")).arg(group.dir()));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "reclaimer.c under pressure: ok\n");
    print!("{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(group.kills(), 0);
}

#[test]
fn reclaimers_from_cpp() {
    from_cpp("reclaimer.cpp");
}

#[test]
fn all_of_it_from_cpp() {
    from_cpp("all.cpp");
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
        // The header must agree with the C library's declarations, before or after them.
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
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains(" KiB in one piece at 0x"), "{output:?}");
}
