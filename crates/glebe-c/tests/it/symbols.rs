//! Tests that both libraries export exactly the functions of the headers.
//!
//! A static Rust library contains zstd, LZ4 and Rust's standard library. A program with its own
//! zstd must get its own, in any link order.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use glebe_testing::Scratch;

use crate::built::{functions, has, libraries, root, run};

fn built_once() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("glebe-c-symbols");
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        libraries(&folder);
        folder
    })
}

fn names(arguments: &[&str], library: &str) -> BTreeSet<String> {
    let output = run(Command::new("nm").args(arguments).arg(built_once().join(library)));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().filter_map(|line| line.split(' ').nth(2)).map(str::to_owned).collect()
}

fn are_the_functions(exported: &BTreeSet<String>, library: &str) {
    let declared = functions();
    let foreign: Vec<_> = exported.difference(&declared).take(9).collect();
    let lacking: Vec<_> = declared.difference(exported).collect();
    assert!(
        foreign.is_empty() && lacking.is_empty(),
        "{library} exports {} names, {} are declared; foreign: {foreign:?}, lacking: {lacking:?}",
        exported.len(),
        declared.len()
    );
}

#[test]
fn the_shared_library_exports_the_functions_of_the_header() {
    if has("nm") {
        are_the_functions(&names(&["-D", "--defined-only"], "libglebe.so.0"), "libglebe.so.0");
    }
}

#[test]
fn the_static_library_exports_the_functions_of_the_header() {
    if has("nm") {
        are_the_functions(&names(&["-g", "--defined-only"], "libglebe.a"), "libglebe.a");
    }
}

/// The program's own zstd and LZ4, which count calls. glebe never calls them.
const OWN: &str = "
int own_calls;
#define OWN(name) int name(void) { return ++own_calls; }
OWN(ZSTD_compress2) OWN(ZSTD_createCCtx) OWN(ZSTD_getErrorName) OWN(ZSTD_compressBound)
OWN(ZSTD_decompressDCtx) OWN(LZ4_compress_default) OWN(LZ4_compress_fast_extState)
OWN(LZ4_decompress_safe) OWN(rust_eh_personality)
";

const PROGRAM: &str = "
#include <string.h>
#include \"all.h\"

int ZSTD_compress2(void);
int ZSTD_getErrorName(void);
int LZ4_compress_default(void);
extern int own_calls;

static void with_codec(uint64_t codec) {
    static unsigned char in[2000], back[2000];
    glebe_zpool_options options;
    glebe_zpool_stats stats;
    glebe_zpool pool = {0};
    glebe_zobject object = {0};
    size_t len = 0, n;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.codec = codec;
    for (n = 0; n < sizeof in; n++) in[n] = (unsigned char)(n / 40);
    OK(glebe_zpool_new(&options, &pool));
    OK(glebe_zpool_insert(pool, in, sizeof in, &object));
    OK(glebe_zpool_read(pool, object, back, sizeof back, &len));
    CHECK(len == sizeof in && memcmp(in, back, len) == 0);
    stats.size = sizeof stats;
    OK(glebe_zpool_get_stats(pool, &stats));
    CHECK(stats.stored_bytes < sizeof in / 2);
    OK(glebe_zpool_free(pool));
}

int main(void) {
    with_codec(GLEBE_CODEC_ZSTD);
    with_codec(GLEBE_CODEC_LZ4);
    CHECK(own_calls == 0);
    CHECK(ZSTD_compress2() == 1 && ZSTD_getErrorName() == 2 && LZ4_compress_default() == 3);
    puts(\"own: ok\");
    return 0;
}
";

#[test]
fn a_program_with_a_zstd_of_its_own_gets_that_one_in_either_order() {
    if !has("cc") || !has("ar") {
        return;
    }
    let scratch = Scratch::readable("symbols");
    let at = |name: &str| scratch.path().join(name);
    fs::write(at("own.c"), OWN).unwrap();
    fs::write(at("program.c"), PROGRAM).unwrap();
    let cc = || {
        let mut cc = Command::new("cc");
        cc.current_dir(scratch.path()).arg("-I").arg(root().join("include"));
        cc.arg("-I").arg(root().join("tests"));
        cc
    };
    run(cc().args(["-c", "-fPIC", "-fno-builtin", "own.c"]));
    run(cc().args(["-c", "program.c"]));
    run(Command::new("ar").current_dir(scratch.path()).args(["rcs", "libown.a", "own.o"]));
    run(cc().args(["-shared", "own.o", "-o", "libown.so"]));
    let mut linked = 0;
    for glebe in ["-l:libglebe.a", "-l:libglebe.so"] {
        for own in ["-l:libown.a", "-l:libown.so"] {
            for order in [[glebe, own], [own, glebe]] {
                let mut link = cc();
                link.args(["program.o", "-L.", "-L"]).arg(built_once()).args(order);
                link.args(["-lm", "-o", "program"]);
                run(&mut link);
                let mut path = scratch.path().as_os_str().to_owned();
                path.push(":");
                path.push(built_once());
                let output = run(Command::new(at("program")).env("LD_LIBRARY_PATH", path));
                assert_eq!(output.stdout, b"own: ok\n", "{order:?}");
                linked += 1;
            }
        }
    }
    assert_eq!(linked, 8);
}
