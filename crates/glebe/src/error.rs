//! [`OsError`]: what the kernel refused, with the call, its subject and the error number.
//!
//! Each layer has one error enum of its own beside its code; this is what they wrap.

use std::fmt;
use std::io;

/// A kernel call or a file below `/proc` or `/sys` that failed.
#[derive(Debug)]
pub struct OsError {
    call: &'static str,
    subject: String,
    source: io::Error,
}

impl OsError {
    /// `call` on `subject` (a path, an address range, a size) failed with `source`.
    #[must_use]
    pub fn new(call: &'static str, subject: impl Into<String>, source: io::Error) -> Self {
        Self { call, subject: subject.into(), source }
    }

    /// The call that failed.
    #[must_use]
    pub fn call(&self) -> &'static str {
        self.call
    }

    /// What it was called on.
    #[must_use]
    pub fn subject(&self) -> &str {
        &self.subject
    }

    /// The kernel's error number, where there is one.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        self.source.raw_os_error()
    }

    /// What kind of failure it is.
    #[must_use]
    pub fn kind(&self) -> io::ErrorKind {
        self.source.kind()
    }
}

impl fmt::Display for OsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({}): {}", self.call, self.subject, self.source)
    }
}

impl std::error::Error for OsError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}
