//! Logs a connection in: `set` with any key, and a value of a user and a password.
//!
//! Flags, time and `noreply` of the `set` have no effect, as in memcached. The line of a connection
//! that has not logged in has at most [`LINE_MAX`] bytes, and its value as many.
//!
//! After [`FAILED_MAX`] wrong passwords the connection ends, so three guesses cost a new
//! connection. The server counts nothing for each address: a guesser with many addresses could fill
//! memory, and one with its victim's address could lock the victim out.

use super::answer::line;
use super::conn::Conn;
use super::execute::{Hands, Next};
use super::passwords::Passwords;
use crate::protocol::{self, Command, Line, Verb, LINE_MAX};

/// Wrong passwords after which a connection ends.
const FAILED_MAX: u8 = 3;
const UNKNOWN: &str = "CLIENT_ERROR unauthenticated";

pub(super) fn log_in(
    hands: &Hands<'_>,
    passwords: &Passwords,
    conn: &mut Conn,
    input: &[u8],
    out: &mut Vec<u8>,
) -> Next {
    let (text, used) = match protocol::line(input) {
        Line::Whole(text, used) if used <= LINE_MAX => (text, used),
        Line::Partial if input.len() < LINE_MAX => return Next::Need(input.len() + 1),
        _ => return Next::Close,
    };
    let Command::Store { verb: Verb::Set, len, .. } = protocol::parse(text) else {
        line(out, UNKNOWN);
        return Next::Go(used);
    };
    if len > LINE_MAX as u64 {
        line(out, "CLIENT_ERROR auth token too long");
        return Next::Go(used);
    }
    let len = len as usize;
    let Some(rest) = input.get(used..used + len + 2) else {
        return Next::Need(used + len + 2);
    };
    let (value, end) = rest.split_at(len);
    let mut words = value.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
    match (end, words.next().zip(words.next())) {
        (b"\r\n", None) => line(out, "CLIENT_ERROR bad authentication token format"),
        (b"\r\n", Some((user, password))) => {
            hands.counters.auth_cmds.add(1);
            conn.is_known = passwords.has(user, password);
            if conn.is_known {
                line(out, "STORED");
            } else {
                return refuse(hands, conn, user, used + len + 2, out);
            }
        }
        _ => line(out, "CLIENT_ERROR bad command line termination"),
    }
    Next::Go(used + len + 2)
}

/// Answers a login with a wrong password, of which `used` bytes were handled.
fn refuse(hands: &Hands<'_>, conn: &mut Conn, user: &[u8], used: usize, out: &mut Vec<u8>) -> Next {
    conn.failed_logins += 1;
    hands.counters.auth_errors.add(1);
    let is_last = conn.failed_logins >= FAILED_MAX;
    let (user, from) = (user.escape_ascii(), &conn.shown.addr);
    let end = if is_last { ": ended" } else { "" };
    hands.shared.verbosity.warn(format_args!("{from}: no login as {user}{end}"));
    line(out, "CLIENT_ERROR authentication failure");
    if is_last {
        Next::Close
    } else {
        Next::Go(used)
    }
}
