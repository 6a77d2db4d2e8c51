//! The examples end, and do not panic, where nobody reads what they print.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

#[test]
fn no_example_panics_in_a_closed_pipe() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let own = std::env::current_exe().unwrap();
    // target/PROFILE/deps/this
    let built = own.ancestors().nth(2).unwrap().join("examples");
    for source in fs::read_dir(sources).unwrap() {
        let source = source.unwrap().path();
        let name = source.file_stem().unwrap().to_owned();
        let program = built.join(&name);
        // A run of this test alone builds no examples.
        let age = |path: &Path| path.metadata().and_then(|of| of.modified()).ok();
        if age(&program) < age(&source) {
            println!("skipped: {} is not built, or before its source", program.display());
            continue;
        }
        let (reader, writer) = UnixStream::pair().unwrap();
        drop(reader);
        let output = Command::new(program).stdout(OwnedFd::from(writer)).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!said.contains("panicked") && output.status.code().is_some(), "{name:?}: {said}");
        // It did print something.
        assert!(said.contains("Broken pipe"), "{name:?}: {said}");
    }
}
