//! The allocator itself, as it is built beside the command.

use std::path::PathBuf;
use std::process::Command;

use super::{ok, said, LIBRARY};

/// Builds it as the tests were built, so that cargo finds most of it built.
fn built() -> PathBuf {
    let target = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().to_owned();
    let features: &[&str] = if glebe::sys::FAULTS { &["--features", "glebe/faults"] } else { &[] };
    let output = Command::new(env!("CARGO"))
        .args(["build", "--workspace", "--lib", "--message-format=json", "--target-dir"])
        .arg(target)
        .args(features)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let (messages, complaints) = said(&output);
    assert!(output.status.success(), "{complaints}");
    let is_library = |text: &&str| text.starts_with('/') && text.ends_with(LIBRARY);
    messages.split('"').rfind(is_library).expect("cargo says where it is").into()
}

#[test]
fn a_build_puts_it_where_the_command_finds_it() {
    let library = built();
    let maps = ok(Command::new(env!("CARGO_BIN_EXE_glebe"))
        .args(["run", "--malloc", "cat", super::MAPS])
        .env_remove("LD_PRELOAD"));
    let beside = PathBuf::from(env!("CARGO_BIN_EXE_glebe")).with_file_name(LIBRARY);
    assert!(maps.contains(beside.to_str().unwrap()), "{library:?}");
}
