//! Executes the meta commands that change items: `ms`, `md`, `ma`.

use super::{all_repeated, repeat, ttl, with_key, BAD_KEY};
use crate::protocol::{Flags, Key, Verb};
use crate::server::answer::{flag, line, number};
use crate::server::execute::{refused, Hands, Next, NOT_NUMERIC};
use crate::store::{Changed, Count, Head, Meta, Outcome};

pub(in crate::server) fn set(
    hands: &mut Hands<'_>,
    input: &[u8],
    used: usize,
    (sent, len, flags): (Key<'_>, u64, &Flags<'_>),
    out: &mut Vec<u8>,
) -> Next {
    let put = |hands: &mut Hands<'_>, key: &[u8]| {
        set_key(hands, input, used, (key, sent, len, flags), out)
    };
    with_key(hands, sent, put).unwrap_or_else(|| {
        line(out, BAD_KEY);
        Next::Skip(used, len + 2)
    })
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
    let compares = flags.cas.filter(|_| matches!(verb, Verb::Set | Verb::Replace));
    // Watchers see the name that memcached gives the command.
    let shown = compares.map_or(verb, Verb::Cas);
    let value = match hands.value(input, used, len, (key, shown), true, out) {
        Ok(value) => value,
        Err(next) => return next,
    };
    hands.counters.cmd_meta.add(1);
    let is_large = hands.count_set(key, value);
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
    let done = hands.shared.store.store(key, verb, &meta, value, &mut hands.room);
    hands.note_store(key, (shown, exptime, value.len() as u64), done);
    let stored = match done {
        Ok(stored) => stored,
        Err(why) => {
            line(out, refused(why));
            return next;
        }
    };
    if compares.is_some() {
        hands.count_cas(stored.outcome, is_large);
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

pub(in crate::server) fn delete(
    hands: &mut Hands<'_>,
    sent: Key<'_>,
    flags: &Flags<'_>,
    out: &mut Vec<u8>,
) {
    hands.counters.cmd_meta.add(1);
    if with_key(hands, sent, |hands, key| delete_key(hands, key, sent, flags, out)).is_none() {
        line(out, BAD_KEY);
    }
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
    hands.shared.prefixes.count_delete(key);
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
        // `clear` (flag `x`) has already compared the CAS number, and may have changed it.
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
        hands.deleted(key, "md", &done);
    }
    if flags.has(b'q') && code == "HD" {
        return;
    }
    all_repeated(out, code, sent, flags);
}

pub(in crate::server) fn arithmetic(
    hands: &mut Hands<'_>,
    sent: Key<'_>,
    flags: &Flags<'_>,
    out: &mut Vec<u8>,
) {
    hands.counters.cmd_meta.add(1);
    if with_key(hands, sent, |hands, key| count_key(hands, key, sent, flags, out)).is_none() {
        line(out, BAD_KEY);
    }
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
                hands.count_arithmetic(down, Some(hands.shared.store.is_large(head.total())));
                return counted_answer(hands, &head, counted, sent, flags, out);
            }
            Ok(Changed::NotNumeric) => return line(out, NOT_NUMERIC),
            Ok(Changed::Exists) => return all_repeated(out, "EX", sent, flags),
            Err(_) => return line(out, "SERVER_ERROR out of memory"),
            Ok(Changed::NotFound) => {}
        }
        let Some(exptime) = flags.vivify.map(|sent| hands.time(sent)) else {
            hands.count_arithmetic(down, None);
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
