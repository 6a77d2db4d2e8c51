//! Tests that the examples do not panic if their output has no reader.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::thread;

const AT_ONCE: usize = 3;

#[test]
fn no_example_panics_in_a_closed_pipe() {
    let own = std::env::current_exe().unwrap();
    // target/PROFILE/deps/this
    let built = own.ancestors().nth(2).unwrap().join("examples");
    let left = Mutex::new(sources());
    let next = || left.lock().unwrap().pop();
    // Runs several examples at once, because most only wait.
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(source) = next() {
                    ends_without_a_reader(&source, &built);
                }
            });
        }
    });
}

fn sources() -> Vec<PathBuf> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let folders = fs::read_dir(crates).unwrap().map(|each| each.unwrap().path().join("examples"));
    let files = folders.filter_map(|folder| fs::read_dir(folder).ok()).flatten();
    let sources = files.map(|file| file.unwrap().path());
    let sources: Vec<_> =
        sources.filter(|path| path.extension().is_some_and(|x| x == "rs")).collect();
    assert!(sources.len() > 10, "{sources:?}");
    sources
}

fn ends_without_a_reader(source: &Path, built: &Path) {
    let name = source.file_stem().unwrap();
    let program = built.join(name);
    // Skips missing or old examples, because a run of only this test builds none.
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
