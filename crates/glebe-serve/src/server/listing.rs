//! Lists keys. A [`Dump`] is sent in pieces, one per turn. `stats cachedump` is one answer with a
//! maximum length.

use base64::prelude::{Engine, BASE64_STANDARD};

use super::answer::number;
use super::Shared;
use crate::store::{Classes, Found, Place, Room};
use crate::watch::url;

/// A piece with more bytes is complete.
const PIECE: usize = 32 << 10;
/// Maximum lookups per turn.
const LOOKS: usize = 8;
/// `stats cachedump` ends after the item that brings it to this many bytes.
const CACHEDUMP_MAX: usize = 2 << 20;
/// Class numbers are below this. Only classes 1 and 2 have items.
const CLASSES_MAX: usize = 64;

/// Returns true for a key that a text command cannot contain.
fn is_binary(key: &[u8]) -> bool {
    key.iter().any(|byte| byte.is_ascii_control() || *byte == b' ')
}

/// Appends the answer to `stats cachedump`: at most `most` items of a class, or all if `most` is 0,
/// up to [`CACHEDUMP_MAX`].
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
            (Some(class @ 0..CLASSES_MAX), Some(most)) => {
                let most = if most == 0 { usize::MAX } else { most };
                some_of(shared, [class == 1, class == 2], most, out);
                "END\r\n"
            }
            (Some(_), Some(_)) => "CLIENT_ERROR Illegal slab id\r\n",
            _ => "CLIENT_ERROR bad command line format\r\n",
        },
        _ => "CLIENT_ERROR bad command line\r\n",
    };
    out.extend_from_slice(answer.as_bytes());
}

fn some_of(shared: &Shared, classes: Classes, most: usize, out: &mut Vec<u8>) {
    let (mut room, mut lines, clock) = (Room::default(), 0, shared.store.clock());
    let end = out.len() + CACHEDUMP_MAX;
    let mut place = Some(Place::default()).filter(|_| classes.contains(&true));
    while let Some(at) = place.filter(|_| lines < most && out.len() < end) {
        place = shared.store.list(at, classes, &mut room, |key, item| {
            if lines < most && out.len() < end && !is_binary(key) {
                lines += 1;
                out.extend_from_slice(b"ITEM ");
                out.extend_from_slice(key);
                let (len, end) = (item.head.len, clock.date_of(item.head.exptime));
                out.extend_from_slice(format!(" [{len} b; {end} s]\r\n").as_bytes());
            }
        });
    }
}

/// A running `lru_crawler metadump` or `mgdump`. `mgdump` lists `mg` commands that get the items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Dump {
    is_mg: bool,
    classes: Classes,
    place: Place,
}

impl Dump {
    /// Parses class numbers separated by commas, `all` or `hash`. An error is the answer to send.
    pub(super) fn new(
        shared: &Shared,
        is_mg: bool,
        classes: Option<&[u8]>,
    ) -> Result<Self, &'static str> {
        if !shared.settings.dump {
            return Err("ERROR metadump not allowed");
        }
        let classes = match classes {
            None | Some(b"all" | b"hash") => [true; 2],
            Some(list) => {
                let mut classes = [false; 2];
                for id in list.split(|byte| *byte == b',') {
                    let id = std::str::from_utf8(id).ok().and_then(|id| id.parse::<usize>().ok());
                    let Some(id @ 1..CLASSES_MAX) = id else {
                        return Err("BADCLASS invalid class id");
                    };
                    if let Some(class) = classes.get_mut(id - 1) {
                        *class = true;
                    }
                }
                classes
            }
        };
        Ok(Self { is_mg, classes, place: Place::default() })
    }

    /// Appends the next lines. Returns true if more follow.
    pub(super) fn piece(&mut self, shared: &Shared, room: &mut Room, out: &mut Vec<u8>) -> bool {
        let end = out.len() + PIECE;
        for _ in 0..LOOKS {
            let next = shared.store.list(self.place, self.classes, room, |key, item| {
                match self.is_mg {
                    true => command(key, out),
                    false => fields(shared, key, item, out),
                }
                out.extend_from_slice(b"\r\n");
            });
            let Some(next) = next else {
                out.extend_from_slice(if self.is_mg { b"EN\r\n" } else { b"END\r\n" });
                return false;
            };
            self.place = next;
            if out.len() > end {
                break;
            }
        }
        true
    }
}

fn command(key: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"mg ");
    if is_binary(key) {
        out.extend_from_slice(BASE64_STANDARD.encode(key).as_bytes());
        out.extend_from_slice(b" b");
    } else {
        out.extend_from_slice(key);
    }
}

fn fields(shared: &Shared, key: &[u8], item: &Found, out: &mut Vec<u8>) {
    let (clock, head) = (shared.store.clock(), &item.head);
    out.extend_from_slice(b"key=");
    key.iter().for_each(|byte| url(*byte, out));
    match head.exptime {
        0 => out.extend_from_slice(b" exp=-1"),
        end => field(" exp=", clock.date_of(end) as u64, out),
    }
    field(" la=", (clock.date() - i64::from(item.idle(clock.now()))) as u64, out);
    field(" cas=", head.cas, out);
    out.extend_from_slice(if item.is_fetched() { b" fetch=yes" } else { b" fetch=no" });
    field(" cls=", 1 + u64::from(item.is_large()), out);
    field(" size=", head.total() as u64, out);
    field(" flags=", head.flags.into(), out);
}

fn field(name: &str, value: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(name.as_bytes());
    number(out, value);
}
