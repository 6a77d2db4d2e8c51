//! Tests that extreme sizes on the command line give an answer or an error message.

use std::process::Command;

/// The largest 64-bit number; the largest size that the command takes; one byte less, which the
/// command must round up; 0.
const SIZES: &[&str] = &["18446744073709551615", "1048576T", "1152921504606846975", "0"];

const COMMANDS: &[&str] = &[
    "demo --quick --size {}",
    "contig explain {}",
    "contig reserve {} --dry-run",
    "contig release {} --dry-run",
    "bank add {} --dry-run",
    "zpool classes --short --page {}",
    "zpool classes --short --step {}",
    "zpool classes --short --min {}",
    "zpool classes --short --chain {}",
    #[cfg(feature = "serve")]
    "serve --memcached -l 127.0.0.1:0 -m {}",
    // The most that -m takes.
    #[cfg(feature = "serve")]
    "serve --memcached -l 127.0.0.1:0 -m 67108864",
    #[cfg(feature = "serve")]
    "serve --memcached -l 127.0.0.1:0 -m 8 -I {}",
];

#[test]
fn each_size_is_answered_or_refused() {
    for words in COMMANDS {
        for size in SIZES {
            let words = words.replace("{}", size);
            let mut command = Command::new("timeout");
            command.arg("120").arg(env!("CARGO_BIN_EXE_glebe")).args(words.split(' '));
            let output = command.output().expect("the program starts");
            let error = String::from_utf8(output.stderr).expect("text");
            assert!(!error.contains("panicked"), "{words}: {error}");
            match output.status.code() {
                Some(0) => assert!(!output.stdout.is_empty(), "{words}"),
                Some(1 | 2) => assert!(!error.is_empty(), "{words}"),
                status => panic!("{words}: {status:?}: {error}"),
            }
        }
    }
}
