//! The two libraries, built once a test program.
#![allow(dead_code)] // Each test program uses a part.

#[path = "../../../glebe/tests/tools/mod.rs"]
mod tools;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

pub use tools::*;

/// The target folder that the test itself was built in.
pub fn target() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("a folder of cargo's")
}

/// The names of the functions that the headers declare: in `glebe.h`, those that a declaration,
/// which is no comment and no type, begins with or goes on with at the start of a line.
pub fn functions() -> BTreeSet<String> {
    let header = fs::read_to_string(root().join("include/glebe.h")).expect("the header");
    let mut code = String::new();
    for (n, part) in header.split("/*").enumerate() {
        code += if n == 0 { part } else { part.split_once("*/").expect("a comment that ends").1 };
    }
    let starts = code.lines().filter(|line| !line.starts_with(['#', ' ', 't']));
    let names = starts.filter_map(|line| line.split_once('(')?.0.rsplit([' ', '*']).next());
    let names = names.filter(|name| name.starts_with("glebe_")).map(str::to_owned);
    names.chain(stand_ins()).collect()
}

/// The names of the functions that `glebe_vrange.h` binds others to.
pub fn stand_ins() -> BTreeSet<String> {
    let header = fs::read_to_string(root().join("include/glebe_vrange.h")).expect("the header");
    let bound = header.split("__asm__(\"").skip(1).filter_map(|rest| rest.split_once('"'));
    bound.map(|(name, _)| name.to_owned()).collect()
}

/// Builds the shared and the static library, and puts them into `folder` under the names that
/// linker and loader look for.
pub fn libraries(folder: &Path) {
    let output = run(Command::new(env!("CARGO"))
        .arg("build")
        .args(packages())
        .args(["--lib", "--message-format=json", "--target-dir"])
        .arg(target())
        .current_dir(root()));
    let messages = String::from_utf8(output.stdout).expect("JSON");
    let shared = messages
        .split('"')
        .rfind(|text| text.starts_with('/') && text.ends_with("/libglebe.so"))
        .expect("cargo says where the library is");
    fs::copy(shared, folder.join("libglebe.so.0")).unwrap();
    symlink("libglebe.so.0", folder.join("libglebe.so")).unwrap();
    run(Command::new(root().join("../../scripts/static_library.sh"))
        .arg(Path::new(shared).parent().expect("a folder"))
        .arg(folder.join("libglebe.a")));
}
