//! Tests that the examples do not panic if their output has no reader.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::thread;

const AT_ONCE: usize = 3;

#[test]
fn no_example_panics_in_a_closed_pipe() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let own = std::env::current_exe().unwrap();
    // target/PROFILE/deps/this
    let built = own.ancestors().nth(2).unwrap().join("examples");
    let left = Mutex::new(fs::read_dir(sources).unwrap());
    let next = || left.lock().unwrap().next();
    // Most examples only wait.
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(source) = next() {
                    ends_without_a_reader(&source.unwrap().path(), &built);
                }
            });
        }
    });
}

fn ends_without_a_reader(source: &Path, built: &Path) {
    let name = source.file_stem().unwrap();
    let program = built.join(name);
    // A run of only this test builds no examples.
    let age = |path: &Path| path.metadata().and_then(|of| of.modified()).ok();
    if age(&program) < age(source) {
        return println!("skipped: {} is not built, or before its source", program.display());
    }
    let (reader, writer) = UnixStream::pair().unwrap();
    drop(reader);
    let output = Command::new(program).stdout(OwnedFd::from(writer)).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!said.contains("panicked") && output.status.code().is_some(), "{name:?}: {said}");
    assert!(said.contains("Broken pipe"), "{name:?}: {said}");
}
