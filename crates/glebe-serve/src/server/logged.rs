//! Logs to standard error what `-v`, `-vv` and `-vvv` ask for, and `verbosity` changes.
//!
//! | level | lines |
//! |---|---|
//! | 1 | refused and ended connections with the reason, failed logins and handshakes |
//! | 2 | also connections, commands (`<`) and the first line of answers (`>`), as memcached |
//! | 3 | also the states of connections |

use std::fmt::Arguments;
use std::io::Write;
use std::sync::atomic::{AtomicU8, Ordering};

/// The greatest level that a client can set, as in memcached.
const CLIENT_MAX: u32 = 2;

#[derive(Debug)]
pub(super) struct Verbosity(AtomicU8);

impl Verbosity {
    pub(super) fn new(level: u8) -> Self {
        Self(AtomicU8::new(level))
    }

    #[inline]
    pub(super) fn level(&self) -> u8 {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets the level for a client.
    pub(super) fn set(&self, level: u32) {
        self.0.store(level.min(CLIENT_MAX) as u8, Ordering::Relaxed);
    }

    /// Logs what an operator should know.
    #[inline]
    pub(super) fn warn(&self, what: Arguments<'_>) {
        if self.level() > 0 {
            log(format_args!("glebe serve: {what}"));
        }
    }

    /// Logs what a connection does.
    #[inline]
    pub(super) fn trace(&self, what: Arguments<'_>) {
        if self.level() > 1 {
            log(what);
        }
    }

    /// Logs a state.
    #[inline]
    pub(super) fn detail(&self, what: Arguments<'_>) {
        if self.level() > 2 {
            log(what);
        }
    }
}

/// Writes a line. A log that nobody reads ends no thread.
pub(super) fn log(what: Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "{what}");
}

/// Returns the first line of an answer as text.
pub(super) fn first_line(answer: &[u8]) -> std::slice::EscapeAscii<'_> {
    let end = answer.iter().position(|byte| matches!(byte, b'\r' | b'\n'));
    answer[..end.unwrap_or(answer.len())].escape_ascii()
}
