//! Handles administration commands. Commands on memcached's slabs and LRU lists are answered
//! without effect, except that `lru_crawler` lists keys.

use super::answer::line;
use super::execute::Hands;
use super::listing::Dump;
use super::tls::Keys;
use crate::protocol::BAD_FORMAT;

/// Minimum of `cache_memlimit`, as in memcached.
const MIB_MIN: u64 = 8;

/// Answers a command, or returns the listing that it asks for.
pub(super) fn answer(hands: &Hands<'_>, text: &[u8], out: &mut Vec<u8>) -> Option<Dump> {
    let words: Vec<&[u8]> =
        text.split(|byte| *byte == b' ').filter(|word| !word.is_empty()).collect();
    match words[..] {
        [b"debugtime", how, ..] if hands.shared.settings.debug_time => {
            hands.shared.store.clock().debug(how);
            hands.shared.store.flush_due();
            line(out, "OK");
        }
        [b"cache_memlimit", mib, ..] => limit(hands, mib, out),
        [b"lru_crawler", dump @ (b"metadump" | b"mgdump"), ref rest @ ..] => {
            match Dump::new(hands.shared, dump == b"mgdump", rest.first().copied()) {
                Ok(dump) => return Some(dump),
                Err(answer) => line(out, answer),
            }
        }
        [b"slabs" | b"lru_crawler" | b"lru", b"automove" | b"sleep" | b"tocrawl", ref rest @ ..]
            if !rest.first().is_some_and(|word| word.iter().all(u8::is_ascii_digit)) =>
        {
            line(out, BAD_FORMAT);
        }
        [b"slabs" | b"lru_crawler" | b"lru", _, ..] => line(out, "OK"),
        [b"refresh_certs", ..] => match hands.shared.keys.as_ref().map(Keys::refresh) {
            None => line(out, "Error TLS not enabled"),
            Some(Ok(())) => line(out, "OK"),
            Some(Err(e)) => line(out, &format!("Error {e}")),
        },
        _ => line(out, "ERROR"),
    }
    None
}

fn limit(hands: &Hands<'_>, mib: &[u8], out: &mut Vec<u8>) {
    let most = hands.shared.settings.memory >> 20;
    let mib = std::str::from_utf8(mib).ok().and_then(|mib| mib.parse::<u64>().ok());
    let answer = match mib {
        None => "ERROR",
        Some(..MIB_MIN) => "MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m",
        Some(mib) if mib > most => "MEMLIMIT_ADJUST_FAILED the reserve is not longer",
        Some(mib) => {
            hands.shared.store.set_most(mib << 20);
            "OK"
        }
    };
    line(out, answer);
}
