//! Executes a connection's commands in order, until its turn is over.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::conn::Conn;
use super::execute::{Hands, Next, ANSWERS_MAX};
use super::logged::first_line;
use super::login::log_in;
use super::worker::READ;
use crate::protocol::{self, Command, Line, KEYS_PIECE};

/// Maximum input bytes that a command may need before they count toward the limit on incomplete
/// values. An incomplete line never needs more.
pub(super) const CHARGED: usize = KEYS_PIECE + 1;
/// Maximum connections of a worker that wait until other connections' values leave room, each at
/// most for `PATIENCE`.
const WAITING: usize = 16;
const PATIENCE: Duration = Duration::from_secs(3);
/// When a connection has waited this long, the workers end connections whose values have stalled.
const LONG: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Waits,
    /// More to do, after the other connections.
    Again,
    /// [`Fate::Again`] after a pause, in which another connection's value may become complete.
    Later,
    Ends,
}

/// Returns the number of bytes to skip after a malformed value with `noreply`: those of an empty
/// line, which ends the value, or 0 before a command. Returns `None` before other bytes, because
/// the client would take an error for the answer to its next command.
fn clear_up(rest: &[u8]) -> Option<usize> {
    match protocol::line(rest) {
        Line::Whole(b"", used) => Some(used),
        Line::Whole(text, _) if matches!(protocol::parse(text), Command::Wrong { .. }) => None,
        Line::Binary(_) | Line::TooLong => None,
        Line::Whole(..) | Line::Keys(_) | Line::Partial => Some(0),
    }
}

/// Lets a connection wait for room for a value of which `input` is the start, or refuses the value.
fn put_off(
    conn: &mut Conn,
    input: &[u8],
    need: usize,
    hands: &mut Hands<'_>,
    out: &mut Vec<u8>,
) -> Fate {
    let waited = conn.waits_since.get_or_insert_with(Instant::now).elapsed();
    let may_wait = hands.waiting < WAITING && input.len() <= READ && waited < PATIENCE;
    if waited >= LONG {
        let wanted = if may_wait { need as u64 } else { 0 };
        hands.shared.wanted.store(wanted, Ordering::Relaxed);
    }
    if may_wait {
        conn.shown.last.store(hands.shared.store.clock().now(), Ordering::Relaxed);
        conn.input = input.to_vec();
        return Fate::Later;
    }
    conn.waits_since = None;
    hands.refuse(input, out);
    conn.skip = (need - input.len()) as u64;
    Fate::Waits
}

/// Executes the first command of `input`, or logs the connection in.
#[inline]
fn next(conn: &mut Conn, input: &[u8], hands: &mut Hands<'_>, out: &mut Vec<u8>) -> Next {
    let begin = out.len();
    let next = match &hands.shared.passwords {
        Some(passwords) if !conn.is_known => log_in(hands, passwords, conn, input, out),
        _ => hands.execute(input, conn.shown.number, out),
    };
    let verbosity = &hands.shared.verbosity;
    if verbosity.level() > 1 && out.len() > begin {
        let answer = first_line(&out[begin..]);
        verbosity.trace(format_args!(">{} {answer}", conn.shown.number));
    }
    next
}

/// Ends a connection for what its client sent.
fn fail(conn: &mut Conn) -> Fate {
    conn.has_failed = true;
    Fate::Ends
}

/// Executes commands of `input` until the turn is over. Returns the rest, unless it is already in
/// `conn.input`, and the connection's fate.
pub(super) fn carry_out<'i>(
    conn: &mut Conn,
    input: &'i [u8],
    hands: &mut Hands<'_>,
    out: &mut Vec<u8>,
) -> (&'i [u8], Fate) {
    let mut rest = input;
    (conn.need, hands.conn) = (0, conn.shown.number);
    let mut left = hands.shared.settings.turn.max(1);
    while !rest.is_empty() {
        if out.len() > ANSWERS_MAX || left == 0 {
            hands.counters.conn_yields.add(1);
            return (rest, Fate::Again);
        }
        left -= 1;
        if conn.is_doubtful && protocol::line(rest) != Line::Partial {
            match clear_up(rest) {
                Some(0) => conn.is_doubtful = false,
                Some(used) => {
                    rest = &rest[used..];
                    continue;
                }
                None => return (&[], fail(conn)),
            }
        }
        match next(conn, rest, hands, out) {
            Next::Go(used) => rest = &rest[used..],
            Next::Skip(used, skip) => {
                let here = (rest.len() - used).min(usize::try_from(skip).unwrap_or(usize::MAX));
                conn.skip = skip - here as u64;
                rest = &rest[used + here..];
            }
            Next::Need(need) => {
                if need > CHARGED && !hands.shared.may_charge(conn, need as u64) {
                    return (&[], put_off(conn, rest, need, hands, out));
                }
                conn.waits_since = None;
                conn.need = need;
                break;
            }
            Next::Keys(words, keys) => {
                conn.input = [&rest[..words], &rest[keys..]].concat();
                return (&[], Fate::Again);
            }
            Next::Doubt(used) => {
                conn.is_doubtful = true;
                rest = &rest[used..];
            }
            Next::List(used, dump) => {
                conn.dump = Some(dump);
                conn.input = rest[used..].to_vec();
                return (&[], Fate::Again);
            }
            Next::Watch(used) => {
                conn.watcher = hands.watch(&rest[..used], out);
                if conn.watcher.is_some() {
                    return (&[], Fate::Waits);
                }
                rest = &rest[used..];
            }
            Next::Quit => return (&[], Fate::Ends),
            Next::Close => return (&[], fail(conn)),
        }
    }
    // A line that comes byte by byte keeps no connection from being idle.
    if rest.len() < input.len() || conn.need > rest.len() + 1 {
        conn.shown.last.store(hands.shared.store.clock().now(), Ordering::Relaxed);
    }
    (rest, Fate::Waits)
}
