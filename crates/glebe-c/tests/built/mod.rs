//! The two libraries, built once a test program, and tools that a machine may lack.
#![allow(dead_code)] // Each test program uses a part.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{symlink, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// The folder of the crate.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The target folder that the test itself was built in.
pub fn target() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("a folder of cargo's")
}

/// A folder that everybody may read, removed with what is in it when dropped.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("glebe-c-{}-{number}", std::process::id());
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
pub fn packages() -> &'static [&'static str] {
    if glebe::sys::FAULTS {
        &["--workspace", "--features", "glebe/faults"]
    } else {
        &["--workspace"]
    }
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
