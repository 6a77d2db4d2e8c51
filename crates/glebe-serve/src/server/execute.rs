//! [`Hands`] executes commands: it parses input, calls the store and appends the answer.

use super::answer::{line, number};
use super::counters::Counters;
use super::listing::Dump;
use super::{admin, meta, stats, Shared, VERSION};
use crate::protocol::{self, Command, Line, Verb, BINARY_HEAD};
use crate::store::{Changed, Count, Look, Meta, Outcome, Refused, Room};

/// A connection with more bytes of answers sends them before it executes the next command.
pub(super) const ANSWERS_MAX: usize = 256 << 10;

pub(super) const TOO_LARGE: &str = "SERVER_ERROR object too large for cache";
pub(super) const NO_MEMORY: &str = "SERVER_ERROR out of memory storing object";
pub(super) const BAD_CHUNK: &str = "CLIENT_ERROR bad data chunk";
pub(super) const NOT_NUMERIC: &str = "CLIENT_ERROR cannot increment or decrement non-numeric value";

/// The next step after a command. In `Go`, `Skip`, `Doubt` and `List` the `usize` is the number of
/// input bytes handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Execute the next command.
    Go(usize),
    /// Discard this many bytes after those handled.
    Skip(usize, u64),
    /// Nothing was handled. Wait until the input has this length.
    Need(usize),
    /// Send the answers, then go on with a line of keys. The first number is where the words before
    /// the keys end, the second where the remaining keys start.
    Keys(usize, usize),
    /// Find out whether a command or the rest of a malformed value follows.
    Doubt(usize),
    /// Send this listing, then execute the next command.
    List(usize, Dump),
    /// Send the answers, then only the lines that the client watches.
    Watch(usize),
    /// Send the answers and end the connection, as the client wants.
    Quit,
    /// Send the answers and end the connection, for what the client sent.
    Close,
}

pub(super) struct Hands<'a> {
    pub(super) shared: &'a Shared,
    pub(super) counters: &'a Counters,
    pub(super) room: Room,
    pub(super) key: Vec<u8>,
    /// Number of the connection whose command is executed.
    pub(super) conn: u64,
    /// Connections of the worker that wait for other connections' values.
    pub(super) waiting: usize,
}

impl Hands<'_> {
    #[inline]
    pub(super) fn execute(&mut self, input: &[u8], conn: u64, out: &mut Vec<u8>) -> Next {
        let (text, used) = match protocol::line(input) {
            Line::Whole(text, used) => (text, Some(used)),
            Line::Keys(text) => (text, None),
            Line::Binary(request) => {
                request.refuse(out);
                return Next::Skip(BINARY_HEAD, request.body.into());
            }
            Line::Partial => return Next::Need(input.len() + 1),
            Line::TooLong => return Next::Close,
        };
        let command = protocol::parse(text);
        self.shared.verbosity.trace(format_args!("<{conn} {}", text.escape_ascii()));
        if let Command::Get { keys, cas, touch } = command {
            return self.get(input, keys, (cas, touch), used, out);
        }
        let Some(used) = used else {
            // The malformed line has no end yet to skip to, so the connection ends.
            line(out, protocol::BAD_FORMAT);
            return Next::Close;
        };
        match command {
            Command::Store { .. } => return self.store_command(input, used, &command, out),
            Command::MetaSet(key, len, flags) => {
                return meta::set(self, input, used, (key, len, &flags), out);
            }
            Command::MetaGet(key, flags) => meta::get(self, key, &flags, out),
            Command::MetaDelete(key, flags) => meta::delete(self, key, &flags, out),
            Command::MetaArithmetic(key, flags) => meta::arithmetic(self, key, &flags, out),
            Command::MetaNoop => line(out, "MN"),
            Command::MetaDebug(key) => meta::debug(self, key, out),
            Command::Stats(words) => {
                if let Some(dump) = stats::answer(self.shared, words, conn, out) {
                    return Next::List(used, dump);
                }
            }
            Command::Quit => return Next::Quit,
            Command::Lost => return Next::Close,
            Command::Shutdown => {
                if !self.shared.settings.shutdown {
                    line(out, "SERVER_ERROR: shutdown not enabled");
                } else if matches!(second_word(text), b"" | b"graceful") {
                    self.shared.end();
                    return Next::Quit;
                } else {
                    line(out, "CLIENT_ERROR invalid shutdown mode");
                }
            }
            Command::Other { line, noreply } => {
                let begin = out.len();
                if line.starts_with(b"watch") && second_word(line) != b"noreply" {
                    return Next::Watch(used);
                }
                match admin::answer(self, line, out) {
                    _ if noreply => out.truncate(begin),
                    Some(dump) => return Next::List(used, dump),
                    None => {}
                }
            }
            Command::Wrong { answer, swallow, noreply } => {
                if !noreply {
                    line(out, answer);
                }
                return Next::Skip(used, swallow);
            }
            other => self.short(&other, out),
        }
        Next::Go(used)
    }

    #[inline]
    fn store_command(
        &mut self,
        input: &[u8],
        used: usize,
        command: &Command<'_>,
        out: &mut Vec<u8>,
    ) -> Next {
        let &Command::Store { key, verb, flags, exptime, len, noreply } = command else {
            return Next::Go(used);
        };
        let meta = Meta { flags, exptime: self.time(exptime), ..Meta::default() };
        let begin = out.len();
        let next = match self.value(input, used, len, (key, verb), verb == Verb::Set, out) {
            Ok(value) => {
                self.store(key, verb, &meta, value, out);
                Next::Go(used + len as usize + 2)
            }
            Err(Next::Go(used)) if noreply => Next::Doubt(used),
            Err(next) => next,
        };
        if noreply {
            out.truncate(begin);
        }
        next
    }

    fn short(&mut self, command: &Command<'_>, out: &mut Vec<u8>) {
        let begin = out.len();
        let noreply = match *command {
            Command::Delete { key, noreply } => {
                self.delete(key, out);
                noreply
            }
            Command::Arithmetic { key, delta, down, noreply } => {
                self.arithmetic(key, delta, down, out);
                noreply
            }
            Command::Touch { key, exptime, noreply } => {
                let done = self.shared.store.touch(key, self.time(exptime), &mut self.room);
                self.count_touch(done);
                line(out, if done.is_some() { "TOUCHED" } else { "NOT_FOUND" });
                noreply
            }
            Command::FlushAll { delay, noreply } => {
                self.flush_all(delay, out);
                noreply
            }
            Command::Verbosity { level, noreply } => {
                level.inspect(|level| self.shared.verbosity.set(*level));
                line(out, "OK");
                noreply
            }
            Command::Version => {
                out.extend_from_slice(b"VERSION ");
                line(out, VERSION);
                false
            }
            _ => false,
        };
        if noreply {
            out.truncate(begin);
        }
    }

    pub(super) fn time(&self, sent: i64) -> u32 {
        self.shared.store.clock().time(sent)
    }

    /// Refuses a value for lack of memory, before all of it arrives. A refused `set` deletes the
    /// old item.
    pub(super) fn refuse(&mut self, input: &[u8], out: &mut Vec<u8>) {
        let Line::Whole(text, _) = protocol::line(input) else { return };
        let (key, noreply) = match protocol::parse(text) {
            Command::Store { key, verb: Verb::Set, noreply, .. } => (Some(key), noreply),
            Command::Store { noreply, .. } => (None, noreply),
            _ => (None, false),
        };
        if let Some(key) = key {
            self.shared.store.delete(key, None, &mut self.room);
        }
        if !noreply {
            line(out, NO_MEMORY);
        }
    }

    /// Appends the values of `keys`. `how` says whether CAS numbers are wanted, and the new expiry
    /// time. If the line is incomplete, `used` is `None` and the last key waits, because it may be
    /// cut off.
    fn get(
        &mut self,
        input: &[u8],
        keys: &[u8],
        how: (bool, Option<i64>),
        used: Option<usize>,
        out: &mut Vec<u8>,
    ) -> Next {
        let first = keys.as_ptr().addr() - input.as_ptr().addr();
        let mut rest = keys;
        loop {
            let start = rest.iter().position(|byte| *byte != b' ').unwrap_or(rest.len());
            rest = &rest[start..];
            if rest.is_empty() {
                break;
            }
            let at = first + keys.len() - rest.len();
            if out.len() > ANSWERS_MAX && at > first {
                return Next::Keys(first, at);
            }
            let end = rest.iter().position(|byte| *byte == b' ').unwrap_or(rest.len());
            let (key, others) = rest.split_at(end);
            rest = others;
            if used.is_none() && others.iter().all(|byte| *byte == b' ') {
                // An incomplete line this long has several keys, unless its only key is too long or
                // blanks fill the line. Then the connection ends.
                return if at > first { Next::Keys(first, at) } else { Next::Close };
            }
            self.get_one(key, how, out);
        }
        out.extend_from_slice(b"END\r\n");
        Next::Go(used.unwrap_or(input.len()))
    }

    #[inline]
    fn get_one(&mut self, key: &[u8], (cas, touch): (bool, Option<i64>), out: &mut Vec<u8>) {
        let look = Look { touch: touch.map(|sent| self.time(sent)), ..Look::default() };
        let store = &self.shared.store;
        let (mut hit, mut len) = (None, 0);
        let found = store.get(key, look, &mut self.room, out, |item, _, out| {
            (hit, len) = (Some(item.is_large()), item.head.len);
            out.extend_from_slice(b"VALUE ");
            out.extend_from_slice(key);
            out.push(b' ');
            number(out, item.head.flags.into());
            out.push(b' ');
            number(out, item.head.len.into());
            if cas {
                out.push(b' ');
                number(out, item.head.cas);
            }
            out.extend_from_slice(b"\r\n");
            true
        });
        if found.is_some() {
            out.extend_from_slice(b"\r\n");
        }
        let hit = hit.filter(|_| found.is_some());
        self.note_get(key, hit.map(|large| (large, len)));
        if touch.is_some() {
            self.count_touch(hit);
        }
        self.count_get(hit);
        self.shared.prefixes.count_get(key, hit.is_some());
    }

    /// Returns the value of `len` bytes after a line of `used` bytes. Fails with the next step if
    /// the value is incomplete, malformed or too long. With `deletes`, a value that is too long
    /// deletes the old item.
    pub(super) fn value<'i>(
        &mut self,
        input: &'i [u8],
        used: usize,
        len: u64,
        (key, verb): (&[u8], Verb),
        deletes: bool,
        out: &mut Vec<u8>,
    ) -> Result<&'i [u8], Next> {
        if len > self.shared.store.item_bytes() {
            self.shared.store.refuse_too_large();
            if deletes {
                self.shared.store.delete(key, None, &mut self.room);
            }
            self.note_store(key, (verb, 0, len), Err(Refused::TooLarge));
            line(out, TOO_LARGE);
            return Err(Next::Skip(used, len + 2));
        }
        let len = len as usize;
        let Some(rest) = input.get(used..used + len + 2) else {
            return Err(Next::Need(used + len + 2));
        };
        let (value, end) = rest.split_at(len);
        if end != b"\r\n" {
            line(out, BAD_CHUNK);
            return Err(Next::Go(used + len + 2));
        }
        Ok(value)
    }

    fn store(&mut self, key: &[u8], verb: Verb, meta: &Meta, value: &[u8], out: &mut Vec<u8>) {
        let is_large = self.count_set(key, value);
        let done = self.shared.store.store(key, verb, meta, value, &mut self.room);
        self.note_store(key, (verb, meta.exptime, value.len() as u64), done);
        let stored = match done {
            Ok(stored) => stored,
            Err(why) => return line(out, refused(why)),
        };
        if matches!(verb, Verb::Cas(_)) {
            self.count_cas(stored.outcome, is_large);
        }
        line(
            out,
            match stored.outcome {
                Outcome::Stored => "STORED",
                Outcome::NotStored => "NOT_STORED",
                Outcome::Exists => "EXISTS",
                Outcome::NotFound => "NOT_FOUND",
            },
        );
    }

    fn delete(&mut self, key: &[u8], out: &mut Vec<u8>) {
        let done = self.shared.store.delete(key, None, &mut self.room);
        let hit = self.deleted(key, "delete", &done);
        self.shared.prefixes.count_delete(key);
        line(out, if hit.is_some() { "DELETED" } else { "NOT_FOUND" });
    }

    /// Counts a deletion by `cmd`, and tells it to watchers. Returns whether an item was there, and
    /// was large.
    pub(super) fn deleted(&self, key: &[u8], cmd: &str, done: &Changed) -> Option<bool> {
        let hit = self.done(done);
        if let Changed::Done(head, _) = done {
            self.note_delete(key, cmd, hit == Some(true), head.len);
        }
        self.count_delete(hit);
        hit
    }

    fn arithmetic(&mut self, key: &[u8], delta: u64, down: bool, out: &mut Vec<u8>) {
        let how = Count { delta, down, ..Count::default() };
        match self.shared.store.count(key, &how, &mut self.room) {
            Ok(Changed::Done(head, counted)) => {
                self.count_arithmetic(down, Some(self.shared.store.is_large(head.total())));
                number(out, counted);
                out.extend_from_slice(b"\r\n");
            }
            Ok(Changed::NotNumeric) => line(out, NOT_NUMERIC),
            Ok(_) => {
                self.count_arithmetic(down, None);
                line(out, "NOT_FOUND");
            }
            Err(_) => line(out, "SERVER_ERROR out of memory"),
        }
    }

    fn flush_all(&mut self, delay: Option<i64>, out: &mut Vec<u8>) {
        self.counters.cmd_flush.add(1);
        if !self.shared.settings.flush {
            return line(out, "CLIENT_ERROR flush_all not allowed");
        }
        let at = delay.filter(|delay| *delay > 0).map(|delay| self.time(delay));
        self.shared.store.flush(at);
        self.shared.store.flush_due();
        line(out, "OK");
    }
}

fn second_word(text: &[u8]) -> &[u8] {
    text.split(|byte| *byte == b' ').filter(|word| !word.is_empty()).nth(1).unwrap_or_default()
}

pub(super) fn refused(why: Refused) -> &'static str {
    match why {
        Refused::TooLarge => TOO_LARGE,
        Refused::NoMemory => NO_MEMORY,
    }
}
