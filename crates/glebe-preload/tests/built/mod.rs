//! The library, built once a test program, and programs that run with it in front.
#![allow(dead_code)] // Each test program uses a part.

#[path = "../../../glebe/tests/tools/mod.rs"]
mod tools;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

pub use tools::*;

/// The library: built with the tests' own profile, and copied to where no later build replaces it.
pub fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("a folder of cargo's");
        let mut build = Command::new(env!("CARGO"));
        build.arg("build").args(packages()).args(["--lib", "--message-format=json"]);
        if !cfg!(debug_assertions) {
            build.arg("--release");
        }
        let output = run(build.arg("--target-dir").arg(target).current_dir(root()));
        let messages = String::from_utf8(output.stdout).expect("JSON");
        let built = messages
            .split('"')
            .rfind(|text| text.starts_with('/') && text.ends_with("/libglebe_malloc.so"))
            .expect("cargo says where the library is");
        let program = std::env::current_exe().unwrap();
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("glebe-preload");
        fs::create_dir_all(&folder).unwrap();
        let name = format!("{}.so", program.file_name().unwrap().to_string_lossy());
        let copy = folder.join(name);
        let fresh = folder.join(format!("{}", std::process::id()));
        fs::copy(built, &fresh).unwrap();
        fs::rename(&fresh, &copy).unwrap();
        copy
    })
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
