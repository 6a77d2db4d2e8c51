//! Notes commands for clients that watch them, and makes connections watchers.

use std::io::Write;
use std::sync::Arc;

use super::answer::line;
use super::execute::Hands;
use crate::protocol::Verb;
use crate::store::{Outcome, Refused, Stored};
use crate::watch::{url, Topic, Watcher};

/// The answer to `watch`: the topics, or an error's text.
pub(super) fn topics<'a>(
    words: impl Iterator<Item = &'a [u8]>,
    is_allowed: bool,
) -> Result<Vec<Topic>, &'static str> {
    if !is_allowed {
        return Err("CLIENT_ERROR watch commands not allowed");
    }
    let topics: Option<Vec<Topic>> = words.map(Topic::of).collect();
    match topics {
        None => Err("ERROR"),
        // As in memcached.
        Some(none) if none.is_empty() => Ok(vec![Topic::Fetches]),
        Some(topics) => Ok(topics),
    }
}

const fn name_of(verb: Verb) -> &'static str {
    match verb {
        Verb::Set => "set",
        Verb::Add => "add",
        Verb::Replace => "replace",
        Verb::Append => "append",
        Verb::Prepend => "prepend",
        Verb::Cas(_) => "cas",
    }
}

impl Hands<'_> {
    /// Notes a read. `hit` says whether a found item is large, and the bytes of its value.
    #[inline]
    pub(super) fn note_get(&self, key: &[u8], hit: Option<(bool, u32)>) {
        if self.shared.store.watch.wants(Topic::Fetches) {
            self.note_got(key, hit);
        }
    }

    #[cold]
    fn note_got(&self, key: &[u8], hit: Option<(bool, u32)>) {
        let status = if hit.is_some() { "found" } else { "not_found" };
        let (class, size) = hit.map_or((0, 0), |(large, len)| (1 + u8::from(large), len));
        self.note(Topic::Fetches, "item_get", key, |text| {
            let _ = write!(text, " status={status} clsid={class} cfd={} size={size}", self.conn);
        });
    }

    /// Notes a store of `len` bytes with expiry time `exptime` by the store's clock.
    #[inline]
    pub(super) fn note_store(
        &self,
        key: &[u8],
        (verb, exptime, len): (Verb, u32, u64),
        done: Result<Stored, Refused>,
    ) {
        if self.shared.store.watch.wants(Topic::Mutations) {
            self.note_stored(key, (verb, exptime, len), done);
        }
    }

    #[cold]
    fn note_stored(
        &self,
        key: &[u8],
        (verb, exptime, len): (Verb, u32, u64),
        done: Result<Stored, Refused>,
    ) {
        let store = &self.shared.store;
        let (status, size) = match done {
            Ok(Stored { outcome: Outcome::Stored, len, .. }) => ("stored", len.into()),
            Ok(Stored { outcome: Outcome::NotStored, .. }) => ("not_stored", len),
            Ok(Stored { outcome: Outcome::Exists, .. }) => ("exists", len),
            Ok(Stored { outcome: Outcome::NotFound, .. }) => ("not_found", len),
            Err(Refused::TooLarge) => ("too_large", len),
            Err(Refused::NoMemory) => ("no_memory", len),
        };
        let ttl = exptime.saturating_sub(store.clock().now());
        let bytes = usize::try_from(size).unwrap_or(usize::MAX);
        let class = 1 + u8::from(store.is_large(bytes.saturating_add(key.len())));
        let (cmd, conn) = (name_of(verb), self.conn);
        self.note(Topic::Mutations, "item_store", key, |text| {
            let _ = write!(
                text,
                " status={status} cmd={cmd} ttl={ttl} clsid={class} cfd={conn} size={size}"
            );
        });
    }

    /// Notes that an item was deleted by `cmd`.
    #[inline]
    pub(super) fn note_delete(&self, key: &[u8], cmd: &str, is_large: bool, len: u32) {
        if self.shared.store.watch.wants(Topic::Deletions) {
            let class = 1 + u8::from(is_large);
            self.note(Topic::Deletions, "deleted", key, |text| {
                let _ = write!(text, " cmd={cmd} clsid={class} cfd={} size={len}", self.conn);
            });
        }
    }

    fn note(&self, topic: Topic, what: &str, key: &[u8], rest: impl FnOnce(&mut Vec<u8>)) {
        self.shared.store.watch.note(topic, |text| {
            text.extend_from_slice(what.as_bytes());
            text.extend_from_slice(b" key=");
            key.iter().for_each(|byte| url(*byte, text));
            rest(text);
        });
    }

    /// Makes the connection that sent `command` a watcher. Returns its lines, or `None` with the
    /// reason in `out`.
    pub(super) fn watch(&self, command: &[u8], out: &mut Vec<u8>) -> Option<Arc<Watcher>> {
        let words = command.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        let is_allowed = !self.shared.settings.access.refuse_watch;
        match topics(words.skip(1), is_allowed) {
            Err(why) => line(out, why),
            Ok(topics) => match self.shared.store.watch.join(&topics) {
                None => line(out, "WATCHER_TOO_MANY log watcher limit reached"),
                Some(watcher) => {
                    line(out, "OK");
                    return Some(watcher);
                }
            },
        }
        None
    }
}

/// Returns the fields of an address `tcp:ADDRESS:PORT` or `unix:PATH`.
pub(super) fn remote(addr: &str) -> String {
    let tcp = addr.strip_prefix("tcp:").and_then(|addr| addr.rsplit_once(':'));
    match tcp {
        Some((ip, port)) => {
            format!("rip={} rport={port} transport=tcp", ip.trim_matches(['[', ']']))
        }
        None => "rip=unix rport=0 transport=local".to_owned(),
    }
}
