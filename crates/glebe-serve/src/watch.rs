//! [`Watch`] has the lines that connections get after the command `watch`, in memcached's format.
//!
//! ```text
//! "ts=" seconds since 1970 " gid=" number " type=" what, then " name=value" for each field
//! ```
//!
//! A thread that notes a line appends it to the buffer of each watcher of its topic, and waits for
//! no client. A buffer has at most `BUFFER_MAX` bytes, and there are at most `WATCHERS_MAX`
//! watchers. A watcher whose buffer is full misses lines; a line `skipped=N` says how many. Without
//! a watcher, a line costs one load.

use std::io::Write;
use std::sync::atomic::{AtomicU64, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

const BUFFER_MAX: usize = 256 << 10;
const WATCHERS_MAX: usize = 20;

/// What lines are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Topic {
    /// An item was read.
    Fetches = 1,
    /// An item was stored, or refused.
    Mutations = 2,
    /// An item was evicted.
    Evictions = 4,
    /// A connection began or ended.
    Connections = 8,
    /// First class took memory, or an item was found lost because of that.
    Recalls = 16,
    /// An item was deleted.
    Deletions = 32,
}

impl Topic {
    /// Returns the topic that a client names, if there is one.
    #[must_use]
    pub fn of(name: &[u8]) -> Option<Self> {
        Some(match name {
            b"fetchers" => Self::Fetches,
            b"mutations" => Self::Mutations,
            b"evictions" => Self::Evictions,
            b"connevents" => Self::Connections,
            b"recalls" => Self::Recalls,
            b"deletions" => Self::Deletions,
            _ => return None,
        })
    }
}

/// The lines that wait for one watcher.
#[derive(Debug, Default)]
pub struct Watcher {
    topics: u8,
    lines: Mutex<Lines>,
}

#[derive(Debug, Default)]
struct Lines {
    text: Vec<u8>,
    skipped: u64,
}

impl Watcher {
    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the lines, and how many are missing after them.
    #[must_use]
    pub fn take(&self) -> Vec<u8> {
        let Lines { mut text, skipped } = std::mem::take(&mut *self.lines());
        if skipped > 0 {
            // Writing to a vector cannot fail.
            let _ = writeln!(text, "skipped={skipped}");
        }
        text
    }
}

/// All watchers of a server.
#[derive(Debug, Default)]
pub struct Watch {
    /// Topics that any watcher wants.
    wanted: AtomicU8,
    number: AtomicU64,
    skipped: AtomicU64,
    sent: AtomicU64,
    watchers: Mutex<Vec<Arc<Watcher>>>,
}

impl Watch {
    /// Returns true if any watcher wants lines of `topic`.
    #[inline]
    #[must_use]
    pub fn wants(&self, topic: Topic) -> bool {
        self.wanted.load(Ordering::Relaxed) & topic as u8 != 0
    }

    /// Adds a line, whose fields `write` appends. O(watchers).
    #[cold]
    pub fn note(&self, topic: Topic, write: impl FnOnce(&mut Vec<u8>)) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let number = self.number.fetch_add(1, Ordering::Relaxed) + 1;
        let mut line = Vec::new();
        let (seconds, micros) = (now.as_secs(), now.subsec_micros());
        // Writing to a vector cannot fail.
        let _ = write!(line, "ts={seconds}.{micros:06} gid={number} type=");
        write(&mut line);
        line.push(b'\n');
        for watcher in self.watchers().iter().filter(|one| one.topics & topic as u8 != 0) {
            let mut lines = watcher.lines();
            // After a gap, lines wait until the watcher has been told of it.
            if lines.skipped > 0 || lines.text.len() + line.len() > BUFFER_MAX {
                lines.skipped += 1;
                self.skipped.fetch_add(1, Ordering::Relaxed);
            } else {
                lines.text.extend_from_slice(&line);
                self.sent.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn watchers(&self) -> MutexGuard<'_, Vec<Arc<Watcher>>> {
        self.watchers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a watcher of these topics. Returns `None` if there are too many.
    #[must_use]
    pub fn join(&self, topics: &[Topic]) -> Option<Arc<Watcher>> {
        let mut watchers = self.watchers();
        if watchers.len() >= WATCHERS_MAX {
            return None;
        }
        let topics = topics.iter().fold(0, |all, topic| all | *topic as u8);
        let watcher = Arc::new(Watcher { topics, ..Watcher::default() });
        watchers.push(Arc::clone(&watcher));
        self.wanted.fetch_or(topics, Ordering::Relaxed);
        Some(watcher)
    }

    /// Removes a watcher.
    pub fn leave(&self, watcher: &Arc<Watcher>) {
        let mut watchers = self.watchers();
        watchers.retain(|one| !Arc::ptr_eq(one, watcher));
        let wanted = watchers.iter().fold(0, |all, one| all | one.topics);
        self.wanted.store(wanted, Ordering::Relaxed);
    }

    /// Returns the numbers of watchers, of lines kept for them, and of lines skipped.
    #[must_use]
    pub fn counts(&self) -> [u64; 3] {
        let watchers = self.watchers().len() as u64;
        [watchers, self.sent.load(Ordering::Relaxed), self.skipped.load(Ordering::Relaxed)]
    }
}

/// Appends a byte of a key as in the query of a web address.
pub(crate) fn url(byte: u8, out: &mut Vec<u8>) {
    const DIGITS: [u8; 16] = *b"0123456789ABCDEF";
    match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(byte),
        _ => {
            let [high, low] = [byte >> 4, byte & 15].map(|digit| DIGITS[usize::from(digit)]);
            out.extend_from_slice(&[b'%', high, low]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_buffer_skips_lines_and_says_how_many() {
        let watch = Watch::default();
        let slow = watch.join(&[Topic::Evictions]).expect("the first");
        let quick = watch.join(&[Topic::Evictions, Topic::Recalls]).expect("the second");
        assert!(watch.wants(Topic::Recalls) && !watch.wants(Topic::Mutations));
        let mut came = 0;
        for n in 0..10_000 {
            watch.note(Topic::Evictions, |line| line.extend_from_slice(&[b'x'; 100]));
            if n % 100 == 0 {
                came += quick.take().split(|byte| *byte == b'\n').count() - 1;
            }
        }
        assert_eq!(came + quick.take().split(|byte| *byte == b'\n').count() - 1, 10_000);
        let text = slow.take();
        assert!(text.len() <= BUFFER_MAX + 20, "{}", text.len());
        let text = String::from_utf8(text).expect("text");
        let lines = text.lines().count() - 1;
        let last = text.lines().last().expect("a line");
        assert_eq!(last, format!("skipped={}", 10_000 - lines));
        watch.note(Topic::Recalls, |line| line.extend_from_slice(b"recall"));
        assert!(slow.take().is_empty() && quick.take().ends_with(b"type=recall\n"));
        watch.leave(&quick);
        assert!(!watch.wants(Topic::Recalls) && watch.wants(Topic::Evictions));
        let more = std::iter::repeat_with(|| watch.join(&[Topic::Fetches])).take(WATCHERS_MAX);
        assert_eq!(more.flatten().count(), WATCHERS_MAX - 1);
    }
}
