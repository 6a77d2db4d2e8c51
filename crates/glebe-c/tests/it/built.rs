//! Finds the libraries of a build, and the names that the headers declare.

#[path = "../../../glebe-preload/tests/it/libraries.rs"]
mod libraries;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

pub use glebe_testing::tools::{has, run};
pub use libraries::{folder, is_built};

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the functions that the headers declare. Skips lines of `glebe.h` that begin with `#`
/// (directives), `t` (typedefs) or a space (continued lines).
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

/// Returns the functions to which `glebe_vrange.h` binds other names.
pub fn stand_ins() -> BTreeSet<String> {
    let header = fs::read_to_string(root().join("include/glebe_vrange.h")).expect("the header");
    let bound = header.split("__asm__(\"").skip(1).filter_map(|rest| rest.split_once('"'));
    bound.map(|(name, _)| name.to_owned()).collect()
}

/// Puts the shared and the static library into a folder, under the names that linker and loader
/// expect.
pub fn libraries(to: &Path) {
    fs::copy(folder().join("libglebe.so"), to.join("libglebe.so.0")).expect("it is built");
    symlink("libglebe.so.0", to.join("libglebe.so")).expect("a new folder");
    let archive = to.join("libglebe.a");
    if is_built() {
        symlink(folder().join("static/libglebe.a"), archive).expect("a new folder");
    } else {
        let script = root().join("../../scripts/static_library.sh");
        run(Command::new(script).arg(folder()).arg(archive));
    }
}
