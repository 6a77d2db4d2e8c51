//! [`variable`] reads an environment variable without allocating, even before the C library has set
//! itself up.
//!
//! Callers run while no variable changes. Source: environ(7), proc_pid_environ(5), getauxval(3).
//!
//! # Safety
//! The C library's list ends with a null pointer, and its strings with a zero.
#![allow(unsafe_code)]

use std::ffi::{c_char, CStr};

use crate::internal::sys::files::plain_file::{self, Plain};

extern "C" {
    /// Null until the C library has set itself up.
    static environ: *const *const c_char;
}

/// Copies the value into `into`, cut to fit. Returns the value's whole length, or `None` for an
/// unset variable.
#[must_use]
pub fn variable(name: &str, into: &mut [u8]) -> Option<usize> {
    // SAFETY: no variable changes meanwhile (see the head).
    let mut at = unsafe { environ };
    if at.is_null() {
        return from_kernel(name, into);
    }
    loop {
        // SAFETY: `at` has not passed the null pointer at the end.
        let entry = unsafe { *at };
        if entry.is_null() {
            return None;
        }
        // SAFETY: an entry is a C string.
        let entry = unsafe { CStr::from_ptr(entry) }.to_bytes();
        if let Some(value) = value_of(entry, name) {
            let len = value.len().min(into.len());
            into[..len].copy_from_slice(&value[..len]);
            return Some(value.len());
        }
        // SAFETY: the entry was not the last.
        at = unsafe { at.add(1) };
    }
}

fn value_of<'a>(entry: &'a [u8], name: &str) -> Option<&'a [u8]> {
    entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=")
}

fn from_kernel(name: &str, into: &mut [u8]) -> Option<usize> {
    let file = Plain::open(c"/proc/self/environ")?;
    let mut found = Scan { name: name.as_bytes(), matched: 0, value: None };
    let mut part = [0; 512];
    loop {
        let read = plain_file::read(&file, &mut part);
        if read == 0 {
            return found.value;
        }
        for &byte in &part[..read] {
            if found.byte(byte, into) {
                return found.value;
            }
        }
    }
}

struct Scan<'a> {
    name: &'a [u8],
    /// Number of matching bytes of `name`; `usize::MAX` for another variable.
    matched: usize,
    value: Option<usize>,
}

impl Scan<'_> {
    fn byte(&mut self, byte: u8, into: &mut [u8]) -> bool {
        if let Some(len) = &mut self.value {
            if byte == 0 {
                return true;
            }
            if let Some(to) = into.get_mut(*len) {
                *to = byte;
            }
            *len += 1;
            return false;
        }
        if byte == 0 {
            self.matched = 0;
        } else if self.matched == self.name.len() && byte == b'=' {
            self.value = Some(0);
        } else if self.name.get(self.matched) == Some(&byte) {
            self.matched += 1;
        } else {
            self.matched = usize::MAX;
        }
        false
    }
}

/// Returns true for a process with raised privileges, such as set-user-ID, which must ignore the
/// environment.
#[must_use]
pub fn is_secure() -> bool {
    // SAFETY: the call takes no pointer.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sources_find_the_same_values() {
        for name in ["PATH", "CARGO_MANIFEST_DIR"] {
            let (mut one, mut two) = ([0; 4000], [0; 4000]);
            let lengths = [variable(name, &mut one), from_kernel(name, &mut two)];
            let expected = std::env::var(name).ok();
            assert_eq!(lengths, [expected.as_ref().map(String::len); 2], "{name}");
            assert_eq!(one, two, "{name}");
        }
        for absent in ["PAT", "PATHS", "ATH", ""] {
            assert_eq!([variable(absent, &mut []), from_kernel(absent, &mut [])], [None; 2]);
        }
    }

    #[test]
    fn a_long_value_is_cut_and_its_length_told() {
        let expected = std::env::var("PATH").unwrap();
        let (mut one, mut two) = ([0; 3], [0; 3]);
        assert_eq!(variable("PATH", &mut one), Some(expected.len()));
        assert_eq!(from_kernel("PATH", &mut two), Some(expected.len()));
        assert_eq!((&one, &two), (&expected.as_bytes()[..3].try_into().unwrap(), &one));
    }
}
