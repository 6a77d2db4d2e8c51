//! Keys listed, for those who look into a cache: all lines of an answer at once, so their number
//! has a limit.

use super::Shared;

/// Keys that are listed at most, of each class.
const KEYS_MAX: usize = 1 << 20;

/// `stats cachedump`: of a class, so many keys.
pub(super) fn cachedump(
    shared: &Shared,
    class: Option<&[u8]>,
    most: Option<&[u8]>,
    out: &mut Vec<u8>,
) {
    let number = |word: &[u8]| std::str::from_utf8(word).ok()?.parse::<usize>().ok();
    let answer = match (class, most) {
        _ if !shared.settings.dump => "CLIENT_ERROR stats cachedump not allowed\r\n",
        (Some(class), Some(most)) => match (number(class), number(most)) {
            (Some(class @ 0..=63), Some(most)) => {
                let most = if most == 0 { KEYS_MAX } else { most };
                let keys = match class {
                    1 | 2 => shared.store.keys(most, class == 2),
                    _ => Vec::new(),
                };
                for (key, len, exptime) in keys {
                    out.extend_from_slice(b"ITEM ");
                    out.extend_from_slice(&key);
                    let end = shared.store.clock().date_of(exptime);
                    out.extend_from_slice(format!(" [{len} b; {end} s]\r\n").as_bytes());
                }
                "END\r\n"
            }
            (Some(_), Some(_)) => "CLIENT_ERROR Illegal slab id\r\n",
            _ => "CLIENT_ERROR bad command line format\r\n",
        },
        _ => "CLIENT_ERROR bad command line\r\n",
    };
    out.extend_from_slice(answer.as_bytes());
}

/// `lru_crawler metadump`, and `mgdump`, whose lines are commands that get the items.
pub(super) fn dump(shared: &Shared, is_mg: bool, out: &mut Vec<u8>) {
    if !shared.settings.dump {
        out.extend_from_slice(b"ERROR metadump not allowed\r\n");
        return;
    }
    for large in [false, true] {
        for (key, len, exptime) in shared.store.keys(KEYS_MAX, large) {
            if is_mg {
                out.extend_from_slice(b"mg ");
                out.extend_from_slice(&key);
            } else {
                let encoded: String = key.iter().map(|byte| url(*byte)).collect();
                let end = match exptime {
                    0 => -1,
                    _ => shared.store.clock().date_of(exptime),
                };
                let class = 1 + u8::from(large);
                out.extend_from_slice(
                    format!("key={encoded} exp={end} cls={class} size={len}").as_bytes(),
                );
            }
            out.extend_from_slice(b"\r\n");
        }
    }
    out.extend_from_slice(if is_mg { b"EN\r\n" } else { b"END\r\n" });
}

/// A byte of a key as it stands in a URL.
fn url(byte: u8) -> String {
    match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
            char::from(byte).to_string()
        }
        _ => format!("%{byte:02X}"),
    }
}
