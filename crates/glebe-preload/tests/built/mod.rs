//! The library, built once a test program, and programs that run with it in front.
#![allow(dead_code)] // Each test program uses a part.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::OnceLock;

/// The folder of the crate.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A folder that everybody may read, removed with what is in it when dropped.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("glebe-preload-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Whether a tool is there; says that a test is skipped where it is not.
pub fn has(tool: &str) -> bool {
    let found = Command::new(tool)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !found {
        println!("skipped: no {tool} on this machine");
    }
    found
}

/// Runs a command that must succeed.
pub fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// What cargo is to build, so that it finds most built: the packages and features that the tests
/// have been built of.
fn packages() -> &'static [&'static str] {
    if glebe::sys::FAULTS {
        &["--workspace", "--features", "glebe/faults"]
    } else {
        &["--workspace"]
    }
}

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
