//! [`Verbosity`] logs to standard error what `-v`, `-vv` and `-vvv` ask for, and `verbosity`
//! changes.
//!
//! | level | lines | at most in a [`PERIOD`](super::quota::PERIOD) |
//! |---|---|---|
//! | 1 | refused and ended connections with the reason, failed logins and handshakes | 100 |
//! | 2 | also connections, commands (`<`), first lines of answers (`>`), as memcached | 1000 |
//! | 3 | also the states of connections | 1000 |
//!
//! The first line after a period, and the server's end, say how many lines of a level were left
//! out. A line has at most [`BYTES_MAX`] bytes; `...` stands for the rest. Any client that may send
//! commands may raise the level to 2.

use std::fmt::Arguments;
use std::io::Write;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::quota::Quota;

/// The greatest level that a client can set, as in memcached.
const CLIENT_MAX: u32 = 2;
const LINES_MAX: [u64; 3] = [100, 1000, 1000];
const BYTES_MAX: usize = 1024;

#[derive(Debug)]
pub(super) struct Verbosity {
    level: AtomicU8,
    quotas: [Mutex<Quota>; 3],
}

impl Verbosity {
    pub(super) fn new(level: u8) -> Self {
        let quotas = LINES_MAX.map(|most| Mutex::new(Quota::new(most)));
        Self { level: AtomicU8::new(level), quotas }
    }

    #[inline]
    pub(super) fn level(&self) -> u8 {
        self.level.load(Ordering::Relaxed)
    }

    /// Sets the level for a client.
    pub(super) fn set(&self, level: u32) {
        self.level.store(level.min(CLIENT_MAX) as u8, Ordering::Relaxed);
    }

    /// Logs what an operator should know.
    #[inline]
    pub(super) fn warn(&self, what: Arguments<'_>) {
        if self.level() > 0 {
            self.log(1, format_args!("glebe serve: {what}"));
        }
    }

    /// Logs what a connection does.
    #[inline]
    pub(super) fn trace(&self, what: Arguments<'_>) {
        if self.level() > 1 {
            self.log(2, what);
        }
    }

    /// Logs a state.
    #[inline]
    pub(super) fn detail(&self, what: Arguments<'_>) {
        if self.level() > 2 {
            self.log(3, what);
        }
    }

    #[cold]
    fn log(&self, level: u8, what: Arguments<'_>) {
        let mut quota = locked(&self.quotas[usize::from(level) - 1]);
        let now = Instant::now();
        let left_out = quota.end_period(now);
        let may = quota.take(now);
        // A slow reader of the log must not hold up threads whose lines are left out. So nothing
        // but a line is written, and only by the thread that logs it.
        drop(quota);
        say_left_out(level, left_out);
        if may {
            write(&what.to_string());
        }
    }

    /// Says how many lines were left out, at the end of the server.
    pub(super) fn end(&self) {
        for (level, quota) in (1..).zip(&self.quotas) {
            let left_out = locked(quota).end();
            say_left_out(level, left_out);
        }
    }
}

fn locked(quota: &Mutex<Quota>) -> MutexGuard<'_, Quota> {
    quota.lock().unwrap_or_else(PoisonError::into_inner)
}

fn say_left_out(level: u8, lines: u64) {
    if lines > 0 {
        let flag = "v".repeat(level.into());
        write(&format!("glebe serve: {lines} more lines of -{flag} were left out"));
    }
}

/// Logs at every level and without a limit, so only for events that no client can cause.
pub(super) fn tell(what: Arguments<'_>) {
    write(&format!("glebe serve: {what}"));
}

/// Writes a line. A log that nobody reads ends no thread.
fn write(line: &str) {
    let _ = match cut(line) {
        Some(begin) => writeln!(std::io::stderr(), "{begin}..."),
        None => writeln!(std::io::stderr(), "{line}"),
    };
}

/// Returns the part of a long line that is logged.
fn cut(line: &str) -> Option<&str> {
    let mut end = BYTES_MAX - 3;
    while !line.is_char_boundary(end.min(line.len())) {
        end -= 1;
    }
    line.get(..end).filter(|_| line.len() > BYTES_MAX)
}

/// Returns the first line of an answer as text.
pub(super) fn first_line(answer: &[u8]) -> std::slice::EscapeAscii<'_> {
    let end = answer.iter().position(|byte| matches!(byte, b'\r' | b'\n'));
    answer[..end.unwrap_or(answer.len())].escape_ascii()
}
