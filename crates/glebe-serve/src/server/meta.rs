//! The meta commands carried out. The answer's flags come in the order in which they were sent.

use std::io::Write;

use super::answer::{decoded, flag, line, number};
use super::execute::{refused, Hands, Next, NOT_NUMERIC};
use crate::protocol::{Flags, Key, Verb, BAD_FORMAT};
use crate::store::{Changed, Count, Found, Head, Look, Meta, Outcome};

const BAD_KEY: &str = "CLIENT_ERROR error decoding key";

/// The flags of an answer that only repeat the command.
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

/// Seconds that an item has left, as a flag.
fn ttl(out: &mut Vec<u8>, exptime: u32, now: u32) {
    match exptime {
        0 => out.extend_from_slice(b" t-1"),
        _ => flag(out, b't', exptime.saturating_sub(now).into()),
    }
}

/// `mg`.
pub(super) fn get(hands: &mut Hands<'_>, sent: Key<'_>, flags: &Flags<'_>, out: &mut Vec<u8>) {
    hands.counters.cmd_meta.add(1);
    let mut buf = std::mem::take(&mut hands.key);
    if let Some(key) = decoded(sent, &mut buf) {
        get_key(hands, key, sent, flags, out);
    } else {
        line(out, BAD_KEY);
    }
    hands.key = buf;
}

fn get_key(hands: &mut Hands<'_>, key: &[u8], sent: Key<'_>, flags: &Flags<'_>, out: &mut Vec<u8>) {
    let time = |time: Option<i64>| time.map(|sent| hands.shared.store.clock().time(sent));
    let (touch, recache, vivify) = (time(flags.ttl), time(flags.recache), time(flags.vivify));
    let look = Look { quiet: flags.has(b'u'), recache, touch };
    let store = &hands.shared.store;
    let now = store.clock().now();
    let mut has_value = false;
    let mut made = false;
    let found = loop {
        let found = store.get(key, look, &mut hands.room, out, |item, won, out| {
            has_value = flags.has(b'v') && flags.cas != Some(item.head.cas);
            get_head(item, won || made, sent, (flags, has_value, now), out);
            has_value
        });
        let Some(exptime) = vivify.filter(|_| found.is_none()) else { break found.is_some() };
        let meta = Meta { exptime, new_cas: flags.new_cas, won: true, ..Meta::default() };
        match store.store(key, Verb::Add, &meta, b"", &mut hands.room) {
            // Found in the next round, by whoever is quicker.
            Ok(stored) => made |= stored.outcome == Outcome::Stored,
            Err(why) => return line(out, refused(why)),
        }
    };
    let hit = found && !made;
    match touch.is_some() {
        true => hands.count_touch(hit),
        false => hands.count_get(hit),
    }
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
            b'l' => flag(out, b'l', now.wrapping_sub(item.last_access()).into()),
            _ => repeat(out, sent, word),
        }
    }
    if won {
        out.extend_from_slice(b" W");
    }
    if item.is_stale() {
        out.extend_from_slice(b" X");
    }
    if item.is_won() && !won {
        out.extend_from_slice(b" Z");
    }
    out.extend_from_slice(b"\r\n");
}

/// `ms`.
pub(super) fn set(
    hands: &mut Hands<'_>,
    input: &[u8],
    used: usize,
    (sent, len, flags): (Key<'_>, u64, &Flags<'_>),
    out: &mut Vec<u8>,
) -> Next {
    let mut buf = std::mem::take(&mut hands.key);
    let next = match decoded(sent, &mut buf) {
        Some(key) => set_key(hands, input, used, (key, sent, len, flags), out),
        None => {
            line(out, BAD_KEY);
            Next::Skip(used, len + 2)
        }
    };
    hands.key = buf;
    next
}

fn set_key(
    hands: &mut Hands<'_>,
    input: &[u8],
    used: usize,
    (key, sent, len, flags): (&[u8], Key<'_>, u64, &Flags<'_>),
    out: &mut Vec<u8>,
) -> Next {
    let verb = match flags.mode.0 {
        0 | b'S' => Verb::Set,
        b'E' => Verb::Add,
        b'A' => Verb::Append,
        b'P' => Verb::Prepend,
        b'R' => Verb::Replace,
        _ => {
            line(out, "CLIENT_ERROR invalid mode for ms M token");
            return Next::Skip(used, len + 2);
        }
    };
    let value = match hands.value(input, used, len, key, true, out) {
        Ok(value) => value,
        Err(next) => return next,
    };
    hands.counters.cmd_meta.add(1);
    hands.counters.cmd_set.add(1);
    let extends = matches!(verb, Verb::Append | Verb::Prepend);
    let vivify = flags.vivify.filter(|_| extends);
    let exptime = vivify.or(flags.ttl).map_or(0, |sent| hands.time(sent));
    let meta = Meta {
        flags: flags.client_flags,
        exptime,
        new_cas: flags.new_cas,
        cas: flags.cas,
        allow_stale: flags.has(b'I'),
        vivify: vivify.is_some(),
        won: false,
    };
    let next = Next::Go(used + value.len() + 2);
    let stored = match hands.shared.store.store(key, verb, &meta, value, &mut hands.room) {
        Ok(stored) => stored,
        Err(why) => {
            line(out, refused(why));
            return next;
        }
    };
    if flags.cas.is_some() && matches!(verb, Verb::Set | Verb::Replace) {
        hands.count_cas(stored.outcome);
    }
    let code = match stored.outcome {
        Outcome::Stored if flags.has(b'q') => return next,
        Outcome::Stored => "HD",
        Outcome::NotStored => "NS",
        Outcome::Exists => "EX",
        Outcome::NotFound => "NF",
    };
    out.extend_from_slice(code.as_bytes());
    for word in flags.words() {
        match word[0] {
            b'c' => flag(out, b'c', stored.cas),
            b's' => flag(out, b's', stored.len.max(value.len() as u32).into()),
            _ => repeat(out, sent, word),
        }
    }
    out.extend_from_slice(b"\r\n");
    next
}

/// `md`.
pub(super) fn delete(hands: &mut Hands<'_>, sent: Key<'_>, flags: &Flags<'_>, out: &mut Vec<u8>) {
    hands.counters.cmd_meta.add(1);
    let mut buf = std::mem::take(&mut hands.key);
    if let Some(key) = decoded(sent, &mut buf) {
        delete_key(hands, key, sent, flags, out);
    } else {
        line(out, BAD_KEY);
    }
    hands.key = buf;
}

fn delete_key(
    hands: &mut Hands<'_>,
    key: &[u8],
    sent: Key<'_>,
    flags: &Flags<'_>,
    out: &mut Vec<u8>,
) {
    let meta = Meta {
        flags: flags.client_flags,
        exptime: flags.ttl.map_or(0, |sent| hands.time(sent)),
        new_cas: flags.new_cas,
        cas: flags.cas,
        ..Meta::default()
    };
    let store = &hands.shared.store;
    let mut done = Changed::NotFound;
    if flags.has(b'x') {
        match store.clear(key, &meta, &mut hands.room) {
            Ok(cleared) => done = cleared,
            Err(_) => return line(out, "SERVER_ERROR out of memory"),
        }
    }
    let goes_on = !flags.has(b'x') || matches!(done, Changed::Done(..));
    if flags.has(b'I') && goes_on {
        // The number was compared already where the value was dropped.
        let cas = meta.cas.filter(|_| !flags.has(b'x'));
        done = store.make_stale(key, &Meta { cas, ..meta }, flags.ttl.is_some(), &mut hands.room);
    } else if !flags.has(b'x') {
        done = store.delete(key, flags.cas, &mut hands.room);
    }
    let code = match done {
        Changed::Done(..) => "HD",
        Changed::Exists => "EX",
        _ => "NF",
    };
    if code != "HD" || !flags.has(b'I') {
        hands.count_delete(code == "HD");
    }
    if flags.has(b'q') && code == "HD" {
        return;
    }
    all_repeated(out, code, sent, flags);
}

/// `ma`.
pub(super) fn arithmetic(
    hands: &mut Hands<'_>,
    sent: Key<'_>,
    flags: &Flags<'_>,
    out: &mut Vec<u8>,
) {
    hands.counters.cmd_meta.add(1);
    let mut buf = std::mem::take(&mut hands.key);
    if let Some(key) = decoded(sent, &mut buf) {
        count_key(hands, key, sent, flags, out);
    } else {
        line(out, BAD_KEY);
    }
    hands.key = buf;
}

fn count_key(
    hands: &mut Hands<'_>,
    key: &[u8],
    sent: Key<'_>,
    flags: &Flags<'_>,
    out: &mut Vec<u8>,
) {
    let down = match flags.mode.0 {
        0 | b'I' | b'+' => false,
        b'D' | b'-' => true,
        _ => return line(out, "CLIENT_ERROR invalid mode for ma M token"),
    };
    let how = Count {
        delta: flags.delta.unwrap_or(1),
        down,
        cas: flags.cas,
        new_cas: flags.new_cas,
        exptime: flags.ttl.map(|sent| hands.time(sent)),
    };
    loop {
        match hands.shared.store.count(key, &how, &mut hands.room) {
            Ok(Changed::Done(head, counted)) => {
                hands.count_arithmetic(down, true);
                return counted_answer(hands, &head, counted, sent, flags, out);
            }
            Ok(Changed::NotNumeric) => return line(out, NOT_NUMERIC),
            Ok(Changed::Exists) => return all_repeated(out, "EX", sent, flags),
            Err(_) => return line(out, "SERVER_ERROR out of memory"),
            Ok(Changed::NotFound) => {}
        }
        let Some(exptime) = flags.vivify.map(|sent| hands.time(sent)) else {
            hands.count_arithmetic(down, false);
            return all_repeated(out, "NF", sent, flags);
        };
        let meta = Meta { exptime, new_cas: flags.new_cas, ..Meta::default() };
        let digits = flags.initial.to_string();
        let made =
            hands.shared.store.store(key, Verb::Add, &meta, digits.as_bytes(), &mut hands.room);
        match made {
            Ok(stored) if stored.outcome == Outcome::Stored => {
                let head = Head {
                    cas: stored.cas,
                    exptime,
                    stored: 0,
                    flags: 0,
                    len: stored.len,
                    key_len: key.len() as u8,
                };
                return counted_answer(hands, &head, flags.initial, sent, flags, out);
            }
            Ok(_) => {}
            Err(_) => return line(out, "SERVER_ERROR Out of memory allocating new item"),
        }
    }
}

fn counted_answer(
    hands: &Hands<'_>,
    head: &Head,
    counted: u64,
    sent: Key<'_>,
    flags: &Flags<'_>,
    out: &mut Vec<u8>,
) {
    if flags.has(b'q') {
        return;
    }
    let digits = counted.to_string();
    if flags.has(b'v') {
        out.extend_from_slice(b"VA ");
        number(out, digits.len() as u64);
    } else {
        out.extend_from_slice(b"HD");
    }
    for word in flags.words() {
        match word[0] {
            b'c' => flag(out, b'c', head.cas),
            b't' => ttl(out, head.exptime, hands.shared.store.clock().now()),
            _ => repeat(out, sent, word),
        }
    }
    out.extend_from_slice(b"\r\n");
    if flags.has(b'v') {
        line(out, &digits);
    }
}

/// `me`.
pub(super) fn debug(hands: &mut Hands<'_>, sent: Key<'_>, out: &mut Vec<u8>) {
    hands.counters.cmd_meta.add(1);
    let mut buf = std::mem::take(&mut hands.key);
    let now = hands.shared.store.clock().now();
    let quiet = Look { quiet: true, ..Look::default() };
    match decoded(sent, &mut buf) {
        None => line(out, BAD_FORMAT),
        Some(key) => {
            let found = hands.shared.store.get(key, quiet, &mut hands.room, out, |item, _, out| {
                out.extend_from_slice(b"ME ");
                out.extend_from_slice(sent.sent);
                let left = match item.head.exptime {
                    0 => -1,
                    end => i64::from(end) - i64::from(now),
                };
                let access = now.wrapping_sub(item.last_access());
                let fetched = if item.is_fetched() { "yes" } else { "no" };
                let class = 1 + u8::from(item.is_large());
                // A vector takes everything.
                let _ = write!(
                    out,
                    " exp={left} la={access} cas={} fetch={fetched} cls={class} size={}\r\n",
                    item.head.cas,
                    item.head.len as usize + key.len(),
                );
                false
            });
            if found.is_none() {
                line(out, "EN");
            }
        }
    }
    hands.key = buf;
}
