//! [`Look`] reads the statistics of reserves that the user may see, the leases, and the machine.
//!
//! Other users' processes may serve sockets, so no text goes to the terminal with control
//! characters, and each list has a limit.

use std::fs;
use std::io::ErrorKind;
use std::ops::RangeInclusive;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Instant;

use glebe::lease::LeaseError;
use glebe::reserve::served::{self, Form, Served};

use super::lent::LentNow;
use super::machine::MachineNow;
use super::reserves::Numbers;

const NOTES_MAX: usize = 3;

/// A reserve in a process.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Its socket, which no other reserve has.
    pub path: PathBuf,
    pub at: Instant,
    pub pid: u32,
    pub number: u64,
    pub command: String,
    /// True if the user of the process made the socket.
    pub is_own: bool,
    pub numbers: Numbers,
}

#[derive(Clone, Debug)]
pub struct Look {
    pub machine: MachineNow,
    pub reserves: Vec<Seen>,
    pub lent: Option<LentNow>,
    /// Why something is not shown.
    pub notes: Vec<String>,
}

impl Look {
    pub fn now() -> Self {
        let mut look = Self {
            machine: MachineNow::look(),
            reserves: Vec::new(),
            lent: None,
            notes: Vec::new(),
        };
        // Two names of a directory would show its reserves twice.
        let dirs = served::dirs().into_iter();
        let mut dirs: Vec<_> = dirs.map(|dir| fs::canonicalize(&dir).unwrap_or(dir)).collect();
        dirs.sort();
        dirs.dedup();
        let mut refused = 0;
        for dir in dirs {
            match served::list(&dir) {
                Ok(list) => list.iter().for_each(|served| refused += look.ask(served)),
                Err(error) if error.kind() == ErrorKind::PermissionDenied => refused += 1,
                Err(error) => look.note(&error.to_string()),
            }
        }
        if refused > 0 {
            look.note("reserves of other users are there, which only root sees");
        }
        match LentNow::look() {
            Ok(lent) => look.lent = Some(lent),
            Err(LeaseError::NoDaemon { source, .. })
                if source.kind() != ErrorKind::PermissionDenied => {}
            Err(error) => look.note(&error.to_string()),
        }
        look.limit();
        look
    }

    /// Returns how many reserves refused an answer: 0 or 1.
    fn ask(&mut self, served: &Served) -> usize {
        match served.read(Form::Json) {
            Ok(Some(json)) => match Numbers::from_json(&json) {
                Some(numbers) => self.reserves.push(Seen::new(served, numbers)),
                None => self.note(&format!("{served} has another version's statistics")),
            },
            Ok(None) => {}
            Err(error) if error.kind() == ErrorKind::PermissionDenied => return 1,
            Err(error) => self.note(&error.to_string()),
        }
        0
    }

    fn note(&mut self, text: &str) {
        self.notes.push(plain(text));
    }

    fn limit(&mut self) {
        let more = self.notes.len().saturating_sub(NOTES_MAX);
        if more > 0 {
            self.notes.truncate(NOTES_MAX);
            self.notes.push(format!("and {more} notes more"));
        }
    }

    /// Returns the leases if the reserve has their memory. This is certain if the daemon listens
    /// itself and has no other reserve.
    pub fn lent_from(&self, seen: &Seen) -> Option<&LentNow> {
        let is_of = |it: &&Seen| it.is_own && it.pid == seen.pid;
        let is_only = seen.is_own && self.reserves.iter().filter(is_of).count() == 1;
        self.lent.as_ref().filter(|lent| is_only && lent.pid == seen.pid)
    }
}

impl Seen {
    fn new(served: &Served, numbers: Numbers) -> Self {
        let (path, pid) = (served.path().to_owned(), served.pid());
        // A user chooses the number in the name of a socket, but not the owner of a process.
        let owner = |path: &str| fs::metadata(path).ok().map(|meta| meta.uid());
        let is_own = owner(&path.to_string_lossy()) == owner(&format!("/proc/{pid}"));
        let command = if is_own { command(pid) } else { "?".to_owned() };
        Self { path, at: Instant::now(), pid, number: served.number(), command, is_own, numbers }
    }
}

fn command(pid: u32) -> String {
    let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    plain(String::from_utf8_lossy(&name).trim_end())
}

/// Returns text of another process without characters that control the terminal, change the
/// direction of letters, or have no width.
pub fn plain(text: &str) -> String {
    const WITHOUT_WIDTH: [RangeInclusive<char>; 5] = [
        '\u{ad}'..='\u{ad}',
        '\u{200b}'..='\u{200f}',
        '\u{2028}'..='\u{202e}',
        '\u{2060}'..='\u{206f}',
        '\u{feff}'..='\u{feff}',
    ];
    let is_bad = |c: char| c.is_control() || WITHOUT_WIDTH.iter().any(|all| all.contains(&c));
    text.replace(is_bad, "?")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_few_and_plain() {
        let mut look = Look::now();
        look.notes.clear();
        (0..10).for_each(|_| look.note("a\x1b[2Jb\u{202e}\n"));
        look.limit();
        let note = "a?[2Jb??";
        assert_eq!(look.notes, [note, note, note, "and 7 notes more"]);
    }
}
