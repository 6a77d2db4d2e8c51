//! [`OsError`] is a failed kernel call with its subject and error number.

use std::fmt;
use std::io;

/// A failed kernel call or access to a file.
#[derive(Debug)]
pub struct OsError {
    call: &'static str,
    subject: String,
    source: io::Error,
}

impl OsError {
    /// Makes the error of `call` on `subject`, such as a path or an address range.
    #[must_use]
    pub fn new(call: &'static str, subject: impl Into<String>, source: io::Error) -> Self {
        Self { call, subject: subject.into(), source }
    }

    /// Returns the name of the failed call.
    #[must_use]
    pub fn call(&self) -> &'static str {
        self.call
    }

    /// Returns the subject of the call.
    #[must_use]
    pub fn subject(&self) -> &str {
        &self.subject
    }

    /// Returns the kernel's error number, if there is one.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        self.source.raw_os_error()
    }

    /// Returns the kind of the failure.
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
