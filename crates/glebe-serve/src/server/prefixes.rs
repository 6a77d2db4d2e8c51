//! [`Prefixes`] counts commands by key prefix up to a delimiter, for `stats detail`.
//!
//! While counting is off, a command only checks a flag. While it is on, a counted command takes a
//! lock that all threads share. Keys without the delimiter are not counted, nor are prefixes with
//! blanks or control characters, which would break the listing, nor new prefixes beyond
//! [`PREFIXES_MAX`].

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// This many prefixes take less than 2 MiB.
const PREFIXES_MAX: usize = 1 << 12;
const DELIMITER: u8 = b':';

/// Gets, gets that hit, sets, deletes.
type Counts = [u64; 4];

#[derive(Debug)]
pub(super) struct Prefixes {
    is_on: AtomicBool,
    delimiter: u8,
    counts: Mutex<HashMap<Vec<u8>, Counts>>,
}

impl Prefixes {
    pub(super) fn new(delimiter: Option<u8>) -> Self {
        Self {
            is_on: AtomicBool::new(delimiter.is_some()),
            delimiter: delimiter.unwrap_or(DELIMITER),
            counts: Mutex::default(),
        }
    }

    pub(super) fn delimiter(&self) -> char {
        self.delimiter.into()
    }

    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    pub(super) fn switch(&self, on: bool) {
        self.is_on.store(on, Ordering::Relaxed);
    }

    pub(super) fn reset(&self) {
        self.counts().clear();
    }

    #[inline]
    pub(super) fn count_get(&self, key: &[u8], hit: bool) {
        self.count(key, [1, hit.into(), 0, 0]);
    }

    #[inline]
    pub(super) fn count_set(&self, key: &[u8]) {
        self.count(key, [0, 0, 1, 0]);
    }

    #[inline]
    pub(super) fn count_delete(&self, key: &[u8]) {
        self.count(key, [0, 0, 0, 1]);
    }

    #[inline]
    fn count(&self, key: &[u8], more: Counts) {
        if self.is_on() {
            self.add(key, more);
        }
    }

    #[cold]
    fn add(&self, key: &[u8], more: Counts) {
        let Some(end) = key.iter().position(|byte| *byte == self.delimiter) else { return };
        let prefix = &key[..end];
        if prefix.iter().any(|byte| byte.is_ascii_control() || *byte == b' ') {
            return;
        }
        let mut counts = self.counts();
        if let Some(known) = counts.get_mut(prefix) {
            for (sum, one) in known.iter_mut().zip(more) {
                *sum += one;
            }
        } else if counts.len() < PREFIXES_MAX {
            counts.insert(prefix.to_vec(), more);
        }
    }

    pub(super) fn dump(&self, out: &mut Vec<u8>) {
        let counts = self.counts();
        let mut rows: Vec<_> = counts.iter().collect();
        rows.sort_unstable();
        for (prefix, [gets, hits, sets, deletes]) in rows {
            out.extend_from_slice(b"PREFIX ");
            out.extend_from_slice(prefix);
            let text = format!(" get {gets} hit {hits} set {sets} del {deletes}\r\n");
            out.extend_from_slice(text.as_bytes());
        }
        out.extend_from_slice(b"END\r\n");
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<Vec<u8>, Counts>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dumped(prefixes: &Prefixes) -> String {
        let mut out = Vec::new();
        prefixes.dump(&mut out);
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn counts_by_the_first_delimiter_while_it_is_on() {
        let prefixes = Prefixes::new(None);
        prefixes.count_set(b"a:1");
        assert_eq!(dumped(&prefixes), "END\r\n");
        prefixes.switch(true);
        prefixes.count_set(b"b:1:2");
        prefixes.count_get(b"a:1", false);
        prefixes.count_get(b"a:", true);
        prefixes.count_delete(b"a:2");
        prefixes.count_set(b":1");
        for other in [&b"a"[..], b"a|1", b"a b:1", b"a\r\nEND\r\n:1", b""] {
            prefixes.count_set(other);
        }
        let all = "PREFIX  get 0 hit 0 set 1 del 0\r\nPREFIX a get 2 hit 1 set 0 del 1\r\n\
                   PREFIX b get 0 hit 0 set 1 del 0\r\nEND\r\n";
        assert_eq!(dumped(&prefixes), all);
        prefixes.switch(false);
        prefixes.count_set(b"a:1");
        assert_eq!(dumped(&prefixes), all);
        prefixes.reset();
        assert_eq!(dumped(&prefixes), "END\r\n");
    }

    #[test]
    fn beyond_the_limit_those_known_are_counted_alone() {
        let prefixes = Prefixes::new(Some(b'|'));
        for _ in 0..2 {
            for n in 0..=PREFIXES_MAX {
                prefixes.count_set(format!("{n}|:").as_bytes());
            }
        }
        let all = dumped(&prefixes);
        assert_eq!(all.matches(" get 0 hit 0 set 2 del 0\r\n").count(), PREFIXES_MAX);
        assert_eq!(all.lines().count(), PREFIXES_MAX + 1);
        assert!(!all.contains(&format!("PREFIX {PREFIXES_MAX} ")));
    }
}
