//! Executes memcached's meta commands that read, and formats meta answers. Answers have the flags
//! in the order sent.

mod change;

use std::io::Write;

pub(super) use change::{arithmetic, delete, set};

use super::answer::{decoded, flag, line, number};
use super::execute::{refused, Hands};
use crate::protocol::{Flags, Key, Verb, BAD_FORMAT};
use crate::store::{Found, Head, Look, Meta, Outcome, Stored};

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
    let (touch, recache) = (time(flags.ttl), time(flags.recache));
    let vivify = time(flags.vivify).map(|exptime| touch.unwrap_or(exptime));
    let look = Look { quiet: flags.has(b'u'), recache, touch };
    let store = &hands.shared.store;
    let now = store.clock().now();
    let has_value = |head: &Head| flags.has(b'v') && flags.cas != Some(head.cas);
    // The item that this command made.
    let mut made: Option<Head> = None;
    let mut shown = None;
    let found = loop {
        let found = store.get(key, look, &mut hands.room, out, |item, won, out| {
            shown = Some((item.is_large(), item.head));
            let won = won || made.is_some();
            get_head(&item.head, Some(item), won, sent, (flags, has_value(&item.head), now), out);
            has_value(&item.head)
        });
        let Some(exptime) = vivify.filter(|_| found.is_none()) else { break found.is_some() };
        if let Some(head) = made {
            // The new item is gone already, usually because its time is over. The answer shows the
            // head that was stored.
            shown = Some((false, head));
            get_head(&head, None, true, sent, (flags, has_value(&head), now), out);
            break true;
        }
        let meta = Meta { exptime, new_cas: flags.new_cas, won: true, ..Meta::default() };
        match store.store(key, Verb::Add, &meta, b"", &mut hands.room) {
            // The next round finds this item, or the item of a quicker client.
            Ok(Stored { outcome: Outcome::Stored, cas, len }) => {
                let (flags, key_len) = (meta.flags, key.len() as u8);
                made = Some(Head { cas, exptime, stored: now, flags, len, key_len });
            }
            Ok(_) => {}
            Err(why) => return line(out, refused(why)),
        }
    };
    let hit = shown.filter(|_| found && made.is_none());
    hands.note_get(key, hit.map(|(large, head)| (large, head.len)));
    let hit = hit.map(|(large, _)| large);
    match touch.is_some() {
        true => hands.count_touch(hit),
        false => hands.count_get(hit),
    }
    hands.shared.prefixes.count_get(key, hit.is_some());
    if !found {
        if !flags.has(b'q') {
            all_repeated(out, "EN", sent, flags);
        }
    } else if shown.is_some_and(|(_, head)| has_value(&head)) {
        out.extend_from_slice(b"\r\n");
    }
}

/// Appends the first line of an answer. Without `item`, the head is that of an item just made.
fn get_head(
    head: &Head,
    item: Option<&Found>,
    won: bool,
    sent: Key<'_>,
    (flags, has_value, now): (&Flags<'_>, bool, u32),
    out: &mut Vec<u8>,
) {
    if has_value {
        out.extend_from_slice(b"VA ");
        number(out, head.len.into());
    } else {
        out.extend_from_slice(b"HD");
    }
    for word in flags.words() {
        match word[0] {
            b's' => flag(out, b's', head.len.into()),
            b't' => ttl(out, head.exptime, now),
            b'c' => flag(out, b'c', head.cas),
            b'f' => flag(out, b'f', head.flags.into()),
            b'h' => flag(out, b'h', item.is_some_and(Found::is_fetched).into()),
            b'l' => flag(out, b'l', item.map_or(0, |item| item.idle(now)).into()),
            _ => repeat(out, sent, word),
        }
    }
    // In memcached's order.
    if item.is_some_and(Found::is_won) && !won {
        out.extend_from_slice(b" Z");
    }
    if item.is_some_and(Found::is_stale) {
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
