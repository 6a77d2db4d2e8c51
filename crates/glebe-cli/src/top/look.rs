//! [`Look`] reads the statistics of reserves that the user may see, the leases, and the machine.
//!
//! Other users' processes may serve sockets, so no text goes to the terminal with control
//! characters, and each list has a limit. So has the time that a directory of sockets takes.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Instant;

use glebe::internal::sys::files::socket::Peer;
use glebe::lease::LeaseError;
use glebe::reserve::served::{self, Form, Served};
use ratatui::text::Span;

use super::bank::Bank;
use super::lent::LentNow;
use super::machine::MachineNow;
use super::reserves::Numbers;
use crate::stats::{ask_each, PATIENCE};

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
    /// True if this process listens at the socket.
    pub is_own: bool,
    pub numbers: Numbers,
}

#[derive(Clone, Debug)]
pub struct Look {
    /// When it began.
    pub at: Instant,
    pub machine: MachineNow,
    pub reserves: Vec<Seen>,
    pub lent: Option<LentNow>,
    /// Why something is not shown.
    pub notes: Vec<String>,
}

impl Look {
    pub fn now(bank: &mut Bank) -> Self {
        let at = Instant::now();
        bank.look();
        let mut look = Self {
            at,
            machine: MachineNow::look(bank.sums),
            reserves: Vec::new(),
            lent: None,
            notes: Vec::new(),
        };
        bank.note.iter().for_each(|note| look.note(note));
        let mut refused = 0;
        for dir in served::dirs() {
            match served::list(&dir) {
                Ok(list) => refused += look.ask_all(&dir, &list, Instant::now() + PATIENCE),
                Err(error) if error.kind() == ErrorKind::PermissionDenied => refused += 1,
                Err(error) => look.note(&error.to_string()),
            }
        }
        if refused > 0 {
            look.note("Other users may have reserves; only root can read them.");
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

    /// Returns how many reserves refused an answer.
    fn ask_all(&mut self, dir: &Path, list: &[Served], end: Instant) -> usize {
        let mut refused = 0;
        let note = ask_each(dir, list, end, |served| refused += self.ask(served));
        note.iter().for_each(|note| self.note(note));
        refused
    }

    /// Returns how many reserves refused an answer: 0 or 1.
    fn ask(&mut self, served: &Served) -> usize {
        match served.answer(Form::Json) {
            Ok(Some((text, peer))) => match Numbers::from_json(&text) {
                Some(numbers) => self.reserves.push(Seen::new(served, &peer, numbers)),
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
    fn new(served: &Served, peer: &Peer, numbers: Numbers) -> Self {
        let (path, pid) = (served.path().to_owned(), served.pid());
        // A user chooses the number in the name of a socket, but not the process that listens. Its
        // number may be another's now. Root lies to nobody, and may have become another user.
        let is_own = peer.pid == pid && (peer.uid == 0 || Some(peer.uid) == user(pid));
        let command = if is_own { command(pid) } else { "?".to_owned() };
        Self { path, at: Instant::now(), pid, number: served.number(), command, is_own, numbers }
    }
}

/// Returns the effective user of a process.
fn user(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    users.split_ascii_whitespace().nth(1)?.parse().ok()
}

fn command(pid: u32) -> String {
    let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    plain(String::from_utf8_lossy(&name).trim_end())
}

/// Returns text of another process without characters that control the terminal, change the
/// direction of letters, or have no width.
pub fn plain(text: &str) -> String {
    // The standard library writes a character without a picture of its own as `\u{...}`.
    let has_no_picture = |c: char| c.is_control() || c.escape_debug().nth(1) == Some('u');
    let width = |c: char| Span::raw(c.encode_utf8(&mut [0; 4]) as &str).width();
    text.replace(|c: char| has_no_picture(c) || width(c) == 0, "?")
}

#[cfg(test)]
mod tests {
    use glebe::contig::{Contig, Source};
    use glebe::reserve::Reserve;
    use glebe::units::Bytes;
    use glebe_testing::Scratch;

    use super::*;

    #[test]
    fn notes_are_few_and_plain() {
        let mut look = Look::now(&mut Bank::default());
        look.notes.clear();
        (0..10).for_each(|_| look.note("a\x1b[2Jb\u{202e}\n"));
        look.limit();
        let note = "a?[2Jb??";
        assert_eq!(look.notes, [note, note, note, "and 7 notes more"]);
    }

    #[test]
    fn plain_text_has_a_picture_for_each_character() {
        // Format characters, a separator of lines, a letter and a mark without width.
        for bad in "\u{ad}\u{600}\u{61c}\u{180e}\u{200b}\u{202e}\u{2028}\u{2066}\u{feff}\u{fff9}\
                    \u{e0001}\u{e000}\u{1160}\u{301}\u{7f}\u{9b}"
            .chars()
        {
            assert_eq!(plain(&format!("a{bad}b")), "a?b", "{bad:?}");
        }
        let good = "tool-7 'x' \"y\" \\ É 文 ж ø 👩 █";
        assert_eq!(plain(good), good);
    }

    #[test]
    fn a_false_name_of_a_socket_shows_no_other_process() {
        let scratch = Scratch::new("false-name");
        let contig = Contig::options().source(Source::Plain).build(Bytes::mib(2)).unwrap();
        let reserve = Reserve::options().build_on(contig).unwrap();
        let path = reserve.serve_stats_in(scratch.path()).unwrap();
        std::os::unix::fs::symlink(path, scratch.path().join("1.0.sock")).unwrap();
        let mut look = Look::now(&mut Bank::default());
        look.reserves.clear();
        let list = served::list(scratch.path()).unwrap();
        assert_eq!(look.ask_all(scratch.path(), &list, Instant::now() + PATIENCE), 0);
        let seen: Vec<_> = look.reserves.iter().map(|it| (it.pid, it.is_own)).collect();
        assert_eq!(seen, [(1, false), (std::process::id(), true)]);
        assert_eq!(look.reserves[0].command, "?");
        assert_ne!(look.reserves[1].command, "?");

        (look.reserves, look.notes) = (Vec::new(), Vec::new());
        look.ask_all(scratch.path(), &list, Instant::now());
        let note = format!("{}: 2 of 2 sockets are not asked", scratch.path().display());
        assert_eq!((look.reserves.len(), look.notes), (0, vec![note]), "the time is over");
    }
}
