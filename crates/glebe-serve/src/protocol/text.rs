//! Parses the classic commands.

use super::tokens::{time, unsigned, unsigned_32, Tokens};
use super::{Command, Verb, BAD_DELTA, BAD_EXPTIME, BAD_FORMAT, KEY_MAX, UNKNOWN};

/// Maximum bytes of a value. The parser refuses a command with a greater length, but does not skip
/// the value.
const SKIPPED_MAX: u64 = i32::MAX as u64 - 2;

/// Parses a classic command. A malformed line with `noreply` gets no answer, except after `get` and
/// its kind, where `noreply` is a key.
pub(super) fn parse<'a>(verb: &[u8], tokens: Tokens<'a>, line: &'a [u8]) -> Command<'a> {
    match command(verb, tokens, line) {
        Command::Wrong { answer, swallow, .. } if !is_get(verb) => {
            Command::Wrong { answer, swallow, noreply: is_noreply(tokens) }
        }
        command => command,
    }
}

fn command<'a>(verb: &[u8], tokens: Tokens<'a>, line: &'a [u8]) -> Command<'a> {
    match verb {
        b"get" => get(tokens, false, None),
        b"gets" => get(tokens, true, None),
        b"gat" => get_and_touch(tokens, false),
        b"gats" => get_and_touch(tokens, true),
        b"set" => store(tokens, Verb::Set),
        b"add" => store(tokens, Verb::Add),
        b"replace" => store(tokens, Verb::Replace),
        b"append" => store(tokens, Verb::Append),
        b"prepend" => store(tokens, Verb::Prepend),
        b"cas" => store(tokens, Verb::Cas(0)),
        b"delete" => delete(tokens),
        b"incr" => arithmetic(tokens, false),
        b"decr" => arithmetic(tokens, true),
        b"touch" => touch(tokens),
        b"flush_all" => flush_all(tokens),
        b"verbosity" => verbosity(tokens),
        b"version" => Command::Version,
        b"stats" => Command::Stats(tokens.rest()),
        b"quit" => Command::Quit,
        b"shutdown" => Command::Shutdown,
        b"debugtime" | b"cache_memlimit" | b"slabs" | b"lru" | b"lru_crawler" | b"watch"
        | b"refresh_certs" | b"extstore" | b"misbehave" => {
            Command::Other { line, noreply: is_noreply(tokens) }
        }
        // Ends the connection: the rest of an HTTP request, or a value, would pass for commands.
        _ if is_http(tokens) || is_noreply(tokens) => Command::Lost,
        _ => Command::wrong(UNKNOWN),
    }
}

pub(super) fn is_get(verb: &[u8]) -> bool {
    matches!(verb, b"get" | b"gets" | b"gat" | b"gats")
}

fn is_http(tokens: Tokens<'_>) -> bool {
    tokens.last().is_some_and(|last| last.starts_with(b"HTTP/"))
}

fn is_noreply(tokens: Tokens<'_>) -> bool {
    tokens.last() == Some(b"noreply")
}

fn get(mut tokens: Tokens<'_>, cas: bool, touch: Option<i64>) -> Command<'_> {
    let keys = tokens.rest();
    if keys.is_empty() {
        return Command::wrong(UNKNOWN);
    }
    if tokens.any(|key| key.len() > KEY_MAX) {
        return Command::wrong(BAD_FORMAT);
    }
    Command::Get { keys, cas, touch }
}

fn get_and_touch(mut tokens: Tokens<'_>, cas: bool) -> Command<'_> {
    let Some(exptime) = tokens.next() else { return Command::wrong(UNKNOWN) };
    if tokens.rest().is_empty() {
        return Command::wrong(UNKNOWN);
    }
    match time(exptime) {
        Some(exptime) => get(tokens, cas, Some(exptime)),
        None => Command::wrong(BAD_EXPTIME),
    }
}

fn store(mut tokens: Tokens<'_>, verb: Verb) -> Command<'_> {
    let all = tokens;
    // Without a valid length, the start of the next command is unknown.
    let unknown = |answer| match is_noreply(all) {
        true => Command::Lost,
        false => Command::wrong(answer),
    };
    let key = tokens.next();
    let (flags, exptime, len) = (tokens.next(), tokens.next(), tokens.next());
    let (Some(key), Some(flags), Some(exptime), Some(len)) = (key, flags, exptime, len) else {
        return unknown(UNKNOWN);
    };
    let number = matches!(verb, Verb::Cas(_)).then(|| tokens.next().unwrap_or_default());
    let noreply = is_noreply(tokens);
    let Some(len) = unsigned(len).filter(|len| *len <= SKIPPED_MAX) else {
        return unknown(BAD_FORMAT);
    };
    let wrong = Command::Wrong { answer: BAD_FORMAT, swallow: len + 2, noreply: false };
    if key.len() > KEY_MAX {
        return wrong;
    }
    let (Some(flags), Some(exptime)) = (unsigned_32(flags), time(exptime)) else {
        return wrong;
    };
    let verb = match number.map(unsigned) {
        None => verb,
        Some(Some(number)) => Verb::Cas(number),
        Some(None) => return wrong,
    };
    Command::Store { key, verb, flags, exptime, len, noreply }
}

fn delete(mut tokens: Tokens<'_>) -> Command<'_> {
    let Some(sent) = tokens.next() else { return Command::wrong(UNKNOWN) };
    // The key itself may be `noreply`.
    let noreply = is_noreply(tokens);
    if sent.len() > KEY_MAX {
        return Command::wrong(BAD_FORMAT);
    }
    let further = (tokens.next(), tokens.next(), tokens.next());
    let is_right = match further {
        (None, ..) => true,
        // Old clients send a time of 0.
        (Some(b"0"), None, _) | (Some(b"noreply"), None, _) => true,
        (Some(b"0"), Some(b"noreply"), None) => true,
        _ => false,
    };
    if !is_right {
        let answer = "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]";
        return Command::wrong(answer);
    }
    Command::Delete { key: sent, noreply }
}

fn arithmetic(mut tokens: Tokens<'_>, down: bool) -> Command<'_> {
    let noreply = is_noreply(tokens);
    let (Some(key), Some(delta)) = (tokens.next(), tokens.next()) else {
        return Command::wrong(UNKNOWN);
    };
    if key.len() > KEY_MAX {
        return Command::wrong(BAD_FORMAT);
    }
    match unsigned(delta) {
        Some(delta) => Command::Arithmetic { key, delta, down, noreply },
        None => Command::wrong(BAD_DELTA),
    }
}

fn touch(mut tokens: Tokens<'_>) -> Command<'_> {
    let noreply = is_noreply(tokens);
    let (Some(sent), Some(exptime)) = (tokens.next(), tokens.next()) else {
        return Command::wrong(UNKNOWN);
    };
    if sent.len() > KEY_MAX {
        return Command::wrong(BAD_FORMAT);
    }
    match time(exptime) {
        Some(exptime) => Command::Touch { key: sent, exptime, noreply },
        None => Command::wrong(BAD_EXPTIME),
    }
}

fn flush_all(mut tokens: Tokens<'_>) -> Command<'_> {
    let noreply = is_noreply(tokens);
    match tokens.next().filter(|word| *word != b"noreply") {
        None => Command::FlushAll { delay: None, noreply },
        Some(delay) => match time(delay) {
            Some(delay) => Command::FlushAll { delay: Some(delay), noreply },
            None => Command::wrong(BAD_EXPTIME),
        },
    }
}

fn verbosity(mut tokens: Tokens<'_>) -> Command<'_> {
    let noreply = is_noreply(tokens);
    match tokens.next() {
        None => Command::wrong(UNKNOWN),
        Some(b"noreply") => Command::Verbosity { level: None, noreply },
        Some(level) => match unsigned_32(level) {
            None => Command::wrong(BAD_FORMAT),
            level => Command::Verbosity { level, noreply },
        },
    }
}
