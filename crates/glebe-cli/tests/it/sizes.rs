//! Tests that every size on the command line, however large, gives an answer or a clear refusal.

use std::process::Command;

/// The largest number of a word, powers of two whose rounding up overflows, and the largest size
/// that the command takes.
const SIZES: &[&str] = &["18446744073709551615", "9223372036854775808", "1048576T", "0"];

const COMMANDS: &[&str] = &[
    "demo --quick --size {}",
    "contig explain {}",
    "contig reserve {} --dry-run",
    "contig release {} --dry-run",
    "bank add {} --dry-run",
    "reclaim --once {} /nowhere",
    "reclaim --margin {} --once 1M /nowhere",
    "reclaim --quota {} /nowhere",
    "recall --control /nowhere {}",
    "zpool classes --short --page {}",
    "zpool classes --short --step {}",
    "zpool classes --short --min {}",
    "zpool classes --short --chain {}",
    #[cfg(feature = "serve")]
    "serve --memcached -l 127.0.0.1:0 -m {}",
    #[cfg(feature = "serve")]
    "serve --memcached -l 127.0.0.1:0 -m 8 -I {}",
];

#[test]
fn each_size_is_answered_or_refused() {
    for words in COMMANDS {
        for size in SIZES {
            let words = words.replace("{}", size);
            let mut command = Command::new(env!("CARGO_BIN_EXE_glebe"));
            let output = command.args(words.split(' ')).output().expect("the program starts");
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
