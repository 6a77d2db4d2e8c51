//! A connection's commands carried out, one after the other, until its turn is over.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::conn::Conn;
use super::execute::{Hands, Next, ANSWERS_MAX};
use super::worker::READ;
use crate::protocol::{self, Command, Line, KEYS_PIECE};

/// Needing more bytes is charged: then it is a value that is under way, for no line is so long.
const CHARGED: usize = KEYS_PIECE + 1;
/// A worker lets so many connections wait for others' values at a time, each for so long.
const WAITING: usize = 16;
const PATIENCE: Duration = Duration::from_secs(1);

/// What becomes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Waits,
    /// It has more to do, after the others.
    Again,
    /// As [`Fate::Again`], once a value of another connection has come to its end.
    Later,
    Ends,
}

/// Looks at what comes behind a value that did not end where it should, and whose client wants no
/// answer: the bytes of an empty line, which end the value; 0 at a command. `None`: it is no
/// command, so the client would take what it is told for the answer to another one.
fn clear_up(rest: &[u8]) -> Option<usize> {
    match protocol::line(rest) {
        Line::Whole(b"", used) => Some(used),
        Line::Whole(text, _) if matches!(protocol::parse(text), Command::Wrong { .. }) => None,
        Line::Binary(_) | Line::TooLong => None,
        Line::Whole(..) | Line::Keys(_) | Line::Partial => Some(0),
    }
}

/// Says if a connection may wait for others' values, with `bytes` of its command in memory, while
/// so many `others` wait.
fn may_wait(conn: &mut Conn, bytes: usize, others: usize) -> bool {
    let since = *conn.waits_since.get_or_insert_with(Instant::now);
    others < WAITING && bytes <= READ && since.elapsed() < PATIENCE
}

/// Carries out commands; what of `input` is left, and how it goes on. Where the rest of `input` is
/// not as it was sent, it is in the connection.
pub(super) fn carry_out<'i>(
    conn: &mut Conn,
    input: &'i [u8],
    hands: &mut Hands<'_>,
    out: &mut Vec<u8>,
) -> (&'i [u8], Fate) {
    let mut rest = input;
    conn.need = 0;
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
                None => return (&[], Fate::Ends),
            }
        }
        match hands.execute(rest, conn.shown.number, out) {
            Next::Go(used) => rest = &rest[used..],
            Next::Skip(used, skip) => {
                let here = (rest.len() - used).min(usize::try_from(skip).unwrap_or(usize::MAX));
                conn.skip = skip - here as u64;
                rest = &rest[used + here..];
            }
            Next::Need(need) => {
                if need > CHARGED && !hands.shared.may_charge(conn, need as u64) {
                    if may_wait(conn, rest.len(), hands.waiting) {
                        conn.input = rest.to_vec();
                        return (&[], Fate::Later);
                    }
                    conn.waits_since = None;
                    hands.refuse(rest, out);
                    conn.skip = (need - rest.len()) as u64;
                    return (&[], Fate::Waits);
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
            Next::Close => return (&[], Fate::Ends),
            Next::Stop => {
                hands.shared.end();
                return (&[], Fate::Ends);
            }
        }
    }
    conn.shown.last.store(hands.shared.store.clock().now(), Ordering::Relaxed);
    (rest, Fate::Waits)
}
