//! Compiles the tests' programs, and preloads the allocator into programs.

#[path = "libraries.rs"]
mod libraries;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, OnceLock, PoisonError};

use glebe_testing::Scratch;

pub use glebe_testing::tools::{has, run};

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| libraries::folder().join("libglebe_malloc.so"))
}

pub fn compile(folder: &Scratch, source: &str, options: &[&str]) -> PathBuf {
    let name = source.split('.').next().expect("a name");
    let program = folder.path().join(name);
    compile_to(&program, source, options);
    program
}

fn compile_to(program: &Path, source: &str, options: &[&str]) {
    let compiler = if source.ends_with(".cpp") { "c++" } else { "cc" };
    run(Command::new(compiler)
        .args(["-O1", "-pthread", "-fno-builtin", "-Wall", "-Wextra", "-Werror"])
        .arg(root().join("tests").join(source))
        .arg("-I")
        .arg(root().join("include"))
        .args(options)
        .arg("-o")
        .arg(program));
}

/// Compiles a C program of the tests into the target folder, once per process. Returns `None`
/// without a compiler.
pub fn compiled(source: &'static str, options: &[&str]) -> Option<PathBuf> {
    static ALL: Mutex<BTreeMap<&str, PathBuf>> = Mutex::new(BTreeMap::new());
    if !has("cc") {
        return None;
    }
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    let program = all.entry(source).or_insert_with(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("glebe-preload");
        fs::create_dir_all(&folder).expect("a folder of cargo's");
        let fresh = folder.join(std::process::id().to_string());
        compile_to(&fresh, source, options);
        // Another process may be running the same file, so a rename replaces it.
        let program = folder.join(source.trim_end_matches(".c"));
        fs::rename(&fresh, &program).expect("both are in one folder");
        program
    });
    Some(program.clone())
}

pub fn preloaded(program: impl AsRef<Path>, options: &str) -> Command {
    let mut command = Command::new(program.as_ref());
    command.env("LD_PRELOAD", library()).env("GLEBE_MALLOC", options).current_dir("/");
    command
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
