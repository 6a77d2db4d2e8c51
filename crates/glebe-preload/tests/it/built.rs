//! The allocator, and programs that run with it in front.

#[path = "libraries.rs"]
mod libraries;
#[path = "../../../glebe/tests/tools/mod.rs"]
mod tools;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use glebe_testing::Scratch;

pub use tools::{has, root, run};

/// Returns the allocator's path.
pub fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| libraries::folder().join("libglebe_malloc.so"))
}

/// Compiles a program of the tests, or a library (`-shared` among the options), into `folder`.
pub fn compile(folder: &Scratch, source: &str, options: &[&str]) -> PathBuf {
    let compiler = if source.ends_with(".cpp") { "c++" } else { "cc" };
    let name = source.split('.').next().expect("a name");
    let program = folder.path().join(name);
    run(Command::new(compiler)
        .args(["-g", "-O1", "-pthread", "-fno-builtin", "-Wall", "-Wextra", "-Werror"])
        .arg(root().join("tests").join(source))
        .arg("-I")
        .arg(root().join("include"))
        .args(options)
        .arg("-o")
        .arg(&program));
    program
}

/// A program with the library in front, and these options.
pub fn preloaded(program: impl AsRef<Path>, options: &str) -> Command {
    let mut command = Command::new(program.as_ref());
    command.env("LD_PRELOAD", library()).env("GLEBE_MALLOC", options).current_dir("/");
    command
}

/// What it printed, as text.
pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What it complained of, as text.
pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
