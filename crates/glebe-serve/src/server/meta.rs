//! Executes memcached's meta commands that read, and formats meta answers. Answers have the flags
//! in the order sent.

mod change;

use std::io::Write;

pub(super) use change::{arithmetic, delete, set};

use super::answer::{decoded, flag, line, number};
use super::execute::{refused, Hands};
use crate::protocol::{Flags, Key, Verb, BAD_FORMAT};
use crate::store::{Found, Look, Meta, Outcome};

const BAD_KEY: &str = "CLIENT_ERROR error decoding key";

/// Appends `word` if it is flag `O`, or the key if it is flag `k`.
fn repeat(out: &mut Vec<u8>, key: Key<'_>, word: &[u8]) {
    match word[0] {
        b'O' => {
            out.push(b' ');
            out.extend_from_slice(word);
        }
        b'k' => {
            out.extend_from_slice(b" k");
            out.extend_from_slice(key.sent);
            if key.is_base64 {
                out.extend_from_slice(b" b");
            }
        }
        _ => {}
    }
}

fn all_repeated(out: &mut Vec<u8>, code: &str, key: Key<'_>, flags: &Flags<'_>) {
    out.extend_from_slice(code.as_bytes());
    flags.words().for_each(|word| repeat(out, key, word));
    out.extend_from_slice(b"\r\n");
}

/// Calls `then` with the decoded key. Returns `None` if the key is malformed.
fn with_key<R>(
    hands: &mut Hands<'_>,
    sent: Key<'_>,
    then: impl FnOnce(&mut Hands<'_>, &[u8]) -> R,
) -> Option<R> {
    let mut buf = std::mem::take(&mut hands.key);
    let done = decoded(sent, &mut buf).map(|key| then(hands, key));
    hands.key = buf;
    done
}

/// Appends the remaining seconds as flag `t`, -1 if the item never expires.
fn ttl(out: &mut Vec<u8>, exptime: u32, now: u32) {
    match exptime {
        0 => out.extend_from_slice(b" t-1"),
        _ => flag(out, b't', exptime.saturating_sub(now).into()),
    }
}

pub(super) fn get(hands: &mut Hands<'_>, sent: Key<'_>, flags: &Flags<'_>, out: &mut Vec<u8>) {
    hands.counters.cmd_meta.add(1);
    if with_key(hands, sent, |hands, key| get_key(hands, key, sent, flags, out)).is_none() {
        line(out, BAD_KEY);
    }
}

fn get_key(hands: &mut Hands<'_>, key: &[u8], sent: Key<'_>, flags: &Flags<'_>, out: &mut Vec<u8>) {
    let time = |time: Option<i64>| time.map(|sent| hands.shared.store.clock().time(sent));
    let (touch, recache, vivify) = (time(flags.ttl), time(flags.recache), time(flags.vivify));
    let look = Look { quiet: flags.has(b'u'), recache, touch };
    let store = &hands.shared.store;
    let now = store.clock().now();
    let mut has_value = false;
    let mut made = false;
    let (mut is_large, mut len) = (false, 0);
    let found = loop {
        let found = store.get(key, look, &mut hands.room, out, |item, won, out| {
            (is_large, len) = (item.is_large(), item.head.len);
            has_value = flags.has(b'v') && flags.cas != Some(item.head.cas);
            get_head(item, won || made, sent, (flags, has_value, now), out);
            has_value
        });
        let Some(exptime) = vivify.filter(|_| found.is_none()) else { break found.is_some() };
        let meta = Meta { exptime, new_cas: flags.new_cas, won: true, ..Meta::default() };
        match store.store(key, Verb::Add, &meta, b"", &mut hands.room) {
            // The next round finds this item, or the item of a quicker client.
            Ok(stored) => made |= stored.outcome == Outcome::Stored,
            Err(why) => return line(out, refused(why)),
        }
    };
    let hit = (found && !made).then_some(is_large);
    hands.note_get(key, hit.map(|large| (large, len)));
    match touch.is_some() {
        true => hands.count_touch(hit),
        false => hands.count_get(hit),
    }
    hands.shared.prefixes.count_get(key, hit.is_some());
    if !found {
        if !flags.has(b'q') {
            all_repeated(out, "EN", sent, flags);
        }
    } else if has_value {
        out.extend_from_slice(b"\r\n");
    }
}

fn get_head(
    item: &Found,
    won: bool,
    sent: Key<'_>,
    (flags, has_value, now): (&Flags<'_>, bool, u32),
    out: &mut Vec<u8>,
) {
    if has_value {
        out.extend_from_slice(b"VA ");
        number(out, item.head.len.into());
    } else {
        out.extend_from_slice(b"HD");
    }
    for word in flags.words() {
        match word[0] {
            b's' => flag(out, b's', item.head.len.into()),
            b't' => ttl(out, item.head.exptime, now),
            b'c' => flag(out, b'c', item.head.cas),
            b'f' => flag(out, b'f', item.head.flags.into()),
            b'h' => flag(out, b'h', item.is_fetched().into()),
            b'l' => flag(out, b'l', item.idle(now).into()),
            _ => repeat(out, sent, word),
        }
    }
    // In memcached's order.
    if item.is_won() && !won {
        out.extend_from_slice(b" Z");
    }
    if item.is_stale() {
        out.extend_from_slice(b" X");
    }
    if won {
        out.extend_from_slice(b" W");
    }
    out.extend_from_slice(b"\r\n");
}

pub(super) fn debug(hands: &mut Hands<'_>, sent: Key<'_>, out: &mut Vec<u8>) {
    hands.counters.cmd_meta.add(1);
    let now = hands.shared.store.clock().now();
    let quiet = Look { quiet: true, ..Look::default() };
    let show = |item: &Found, out: &mut Vec<u8>| {
        out.extend_from_slice(b"ME ");
        out.extend_from_slice(sent.sent);
        let left = match item.head.exptime {
            0 => -1,
            end => i64::from(end) - i64::from(now),
        };
        let access = item.idle(now);
        let fetched = if item.is_fetched() { "yes" } else { "no" };
        let (cas, class) = (item.head.cas, 1 + u8::from(item.is_large()));
        let size = item.head.total();
        // Writing to a vector cannot fail.
        let _ = write!(
            out,
            " exp={left} la={access} cas={cas} fetch={fetched} cls={class} size={size}\r\n",
        );
        false
    };
    let found = with_key(hands, sent, |hands, key| {
        hands.shared.store.get(key, quiet, &mut hands.room, out, |item, _, out| show(item, out))
    });
    match found {
        None => line(out, BAD_FORMAT),
        Some(None) => line(out, "EN"),
        Some(Some(())) => {}
    }
}
