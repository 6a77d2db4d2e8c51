//! Logs a connection in: `set` with any key, and a value of a user and a password.
//!
//! Flags, time and `noreply` of the `set` have no effect, as in memcached. The line of a connection
//! that has not logged in has at most [`LINE_MAX`] bytes, and its value as many.

use super::answer::line;
use super::conn::Conn;
use super::execute::{Hands, Next};
use super::passwords::Passwords;
use crate::protocol::{self, Command, Line, Verb, LINE_MAX};

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
            conn.is_known = passwords.has(user, password);
            hands.counters.auth_cmds.add(1);
            if !conn.is_known {
                let user = user.escape_ascii();
                let from = &conn.shown.addr;
                hands.shared.verbosity.warn(format_args!("{from}: no login as {user}"));
            }
            hands.counters.auth_errors.add((!conn.is_known).into());
            line(
                out,
                match conn.is_known {
                    true => "STORED",
                    false => "CLIENT_ERROR authentication failure",
                },
            );
        }
        _ => line(out, "CLIENT_ERROR bad command line termination"),
    }
    Next::Go(used + len + 2)
}
