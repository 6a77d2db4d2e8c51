//! Lists keys. A [`Dump`] is sent in pieces, one per turn.

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

/// The kind of a [`Dump`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// `lru_crawler metadump`.
    Meta,
    /// `lru_crawler mgdump`: `mg` commands that get the items.
    Mg,
    /// `stats cachedump`, with the number of items and of bytes that may still be listed.
    Cache(usize, usize),
}

/// A running listing of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Dump {
    kind: Kind,
    classes: Classes,
    place: Place,
}

impl Dump {
    /// Parses the class of `stats cachedump` and the most items, 0 for all. An error is the answer
    /// to send.
    pub(super) fn of_cache(
        shared: &Shared,
        class: Option<&[u8]>,
        most: Option<&[u8]>,
    ) -> Result<Self, &'static str> {
        let number = |word: &[u8]| std::str::from_utf8(word).ok()?.parse::<usize>().ok();
        match (class, most) {
            _ if !shared.settings.dump => Err("CLIENT_ERROR stats cachedump not allowed"),
            (Some(class), Some(most)) => match (number(class), number(most)) {
                (Some(class @ 0..CLASSES_MAX), Some(most)) => {
                    let most = match most {
                        _ if !matches!(class, 1 | 2) => 0,
                        0 => usize::MAX,
                        most => most,
                    };
                    let (kind, place) = (Kind::Cache(most, CACHEDUMP_MAX), Place::default());
                    Ok(Self { kind, classes: [class == 1, class == 2], place })
                }
                (Some(_), Some(_)) => Err("CLIENT_ERROR Illegal slab id"),
                _ => Err("CLIENT_ERROR bad command line format"),
            },
            _ => Err("CLIENT_ERROR bad command line"),
        }
    }

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
        let kind = if is_mg { Kind::Mg } else { Kind::Meta };
        Ok(Self { kind, classes, place: Place::default() })
    }

    /// Appends the next lines. Returns true if more follow.
    pub(super) fn piece(&mut self, shared: &Shared, room: &mut Room, out: &mut Vec<u8>) -> bool {
        let end = out.len() + PIECE;
        for _ in 0..LOOKS {
            let kind = &mut self.kind;
            let next = shared.store.list(self.place, self.classes, room, |key, item| match kind {
                Kind::Meta => fields(shared, key, item, out),
                Kind::Mg => command(key, out),
                Kind::Cache(0, _) | Kind::Cache(_, 0) => {}
                Kind::Cache(..) if is_binary(key) => {}
                Kind::Cache(items, bytes) => {
                    let begin = out.len();
                    short(shared, key, item, out);
                    *items -= 1;
                    *bytes = bytes.saturating_sub(out.len() - begin);
                }
            });
            let is_over = matches!(self.kind, Kind::Cache(0, _) | Kind::Cache(_, 0));
            let Some(next) = next.filter(|_| !is_over) else {
                let is_mg = self.kind == Kind::Mg;
                out.extend_from_slice(if is_mg { b"EN\r\n" } else { b"END\r\n" });
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

fn short(shared: &Shared, key: &[u8], item: &Found, out: &mut Vec<u8>) {
    out.extend_from_slice(b"ITEM ");
    out.extend_from_slice(key);
    let end = shared.store.clock().date_of(item.head.exptime);
    out.extend_from_slice(format!(" [{} b; {end} s]\r\n", item.head.len).as_bytes());
}

fn command(key: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"mg ");
    if is_binary(key) {
        out.extend_from_slice(BASE64_STANDARD.encode(key).as_bytes());
        out.extend_from_slice(b" b");
    } else {
        out.extend_from_slice(key);
    }
    out.extend_from_slice(b"\r\n");
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
    out.extend_from_slice(b"\r\n");
}

fn field(name: &str, value: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(name.as_bytes());
    number(out, value);
}
