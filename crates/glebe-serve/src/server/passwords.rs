//! [`Passwords`] has the users of a file with a line `user:password` each, memcached's `authfile`.
//!
//! A check compares with all users, and takes the same time for each user and password of the file.
//! The file has at most [`FILE_MAX`] bytes. A name and a password have at most [`WORD_MAX`] bytes
//! each, and no blank, because a client sends both words in a line.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};

use subtle::{Choice, ConstantTimeEq};

const FILE_MAX: u64 = 64 << 10;
const WORD_MAX: usize = 256;

/// A name and a password, each followed by zeros.
type Record = [u8; 2 * WORD_MAX];

pub(super) struct Passwords {
    path: PathBuf,
    records: RwLock<Vec<Record>>,
}

impl Passwords {
    pub(super) fn read(path: &Path) -> Result<Self, String> {
        Ok(Self { path: path.to_owned(), records: RwLock::new(records_in(path)?) })
    }

    /// Reads the file again. If that fails, the users stay as they are.
    pub(super) fn refresh(&self) -> Result<(), String> {
        let records = records_in(&self.path)?;
        *self.records.write().unwrap_or_else(PoisonError::into_inner) = records;
        Ok(())
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns true if `user` has this password. O(users).
    pub(super) fn has(&self, user: &[u8], password: &[u8]) -> bool {
        let Some(asked) = record(user, password) else { return false };
        let records = self.records.read().unwrap_or_else(PoisonError::into_inner);
        let found = |found: Choice, one: &Record| found | one[..].ct_eq(&asked[..]);
        records.iter().fold(Choice::from(0), found).into()
    }
}

/// Returns a record, or `None` for words that no file may have.
fn record(user: &[u8], password: &[u8]) -> Option<Record> {
    let is_right = |word: &[u8]| {
        let is_other = |byte: &u8| *byte == b' ' || byte.is_ascii_control();
        (1..=WORD_MAX).contains(&word.len()) && !word.iter().any(is_other)
    };
    if !is_right(user) || !is_right(password) {
        return None;
    }
    let mut record = [0; 2 * WORD_MAX];
    record[..user.len()].copy_from_slice(user);
    record[WORD_MAX..][..password.len()].copy_from_slice(password);
    Some(record)
}

fn records_in(path: &Path) -> Result<Vec<Record>, String> {
    let shown = path.display();
    let mut text = Vec::new();
    let file = File::open(path).map_err(|e| format!("{shown}: {e}"))?;
    file.take(FILE_MAX + 1).read_to_end(&mut text).map_err(|e| format!("{shown}: {e}"))?;
    if text.len() as u64 > FILE_MAX {
        return Err(format!("{shown}: a file of users has at most {FILE_MAX} bytes"));
    }
    let lines = text.strip_suffix(b"\n").unwrap_or(&text).split(|byte| *byte == b'\n');
    let parse = |(nth, line): (usize, &[u8])| {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let end = line.iter().position(|byte| *byte == b':');
        let record = end.and_then(|end| record(&line[..end], &line[end + 1..]));
        record.ok_or_else(|| {
            format!(
                "{shown}: line {} is not user:password, each 1 to {WORD_MAX} bytes without a blank",
                nth + 1
            )
        })
    };
    lines.enumerate().map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_words_of_one_line_are_a_user() {
        let scratch = glebe_testing::Scratch::new("passwords");
        let path = scratch.path().join("users");
        let long = "p".repeat(WORD_MAX);
        std::fs::write(&path, format!("joe:secret\r\nann:a:b\nlong:{long}")).expect("written");
        let passwords = Passwords::read(&path).expect("users");
        assert!(passwords.has(b"joe", b"secret") && passwords.has(b"ann", b"a:b"));
        assert!(passwords.has(b"long", long.as_bytes()));
        for (user, password) in [
            ("joe", "secre"),
            ("joe", "secret\0"),
            ("joe", "a:b"),
            ("ann", "secret"),
            ("joe\0", "secret"),
            ("", "secret"),
            ("joe", ""),
            ("long", &*format!("{long}p")),
        ] {
            assert!(!passwords.has(user.as_bytes(), password.as_bytes()), "{user}:{password}");
        }
        std::fs::write(&path, "joe:other\n").expect("written");
        passwords.refresh().expect("users");
        assert!(passwords.has(b"joe", b"other") && !passwords.has(b"ann", b"a:b"));
        for (text, line) in [
            ("", 1),
            ("joe:a\n\nann:b\n", 2),
            ("joe\n", 1),
            ("joe:\n", 1),
            (":a\n", 1),
            ("joe:a\nann:b c\n", 2),
            (&*format!("joe:p{long}"), 1),
        ] {
            std::fs::write(&path, text).expect("written");
            let why = passwords.refresh().expect_err(text);
            assert!(why.contains(&format!("line {line} is not user:password")), "{text}: {why}");
            assert!(passwords.has(b"joe", b"other"), "the users stay: {text}");
        }
        std::fs::write(&path, "joe:other\n".repeat(7000)).expect("written");
        let why = passwords.refresh().expect_err("too long");
        assert!(why.contains("at most 65536 bytes"), "{why}");
    }
}
