//! Finds the libraries that tests load. Several packages share this file.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

const BUILT: &str = "GLEBE_BUILT";

/// Returns true if `make build` made the libraries. Tests then must not run cargo.
#[allow(dead_code)] // Only the tests of `make install` call this.
pub fn is_built() -> bool {
    std::env::var_os(BUILT).is_some()
}

/// Returns the folder of the C libraries and the allocator. Without `GLEBE_BUILT`, cargo builds
/// them.
pub fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| std::env::var_os(BUILT).map_or_else(build, PathBuf::from))
}

fn build() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("a folder of cargo's");
    let mut build = Command::new(env!("CARGO"));
    // Selects glebe-cli, as `make build` does, because cargo unifies features over the selection.
    build.args(["build", "-p", "glebe-c", "-p", "glebe-cli", "-p", "glebe-preload"]);
    build.args(["-p", "glebe-huge", "--lib"]);
    build.args(["--message-format=json", "--target-dir"]).arg(target);
    build.args(glebe::internal::sys::FAULTS.then_some("--features=glebe/faults"));
    build.args((!cfg!(debug_assertions)).then_some("--release"));
    build.current_dir(env!("CARGO_MANIFEST_DIR")).stderr(Stdio::inherit());
    let output = build.output().expect("cargo starts");
    assert!(output.status.success(), "{build:?}: {}", output.status);
    let messages = String::from_utf8(output.stdout).expect("JSON");
    let is_library = |text: &&str| text.starts_with('/') && text.ends_with("/libglebe_malloc.so");
    let library = messages.split('"').rfind(is_library).expect("cargo says where it is");
    Path::new(library).parent().expect("a folder").to_owned()
}
