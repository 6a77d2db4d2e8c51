//! The record of pages added to hugetlb pools, for whom, so that what a killed process added is
//! given back by the next that takes the lock. Pure: text in, text out.
//!
//! One line for each claim, numbers in decimal; its last tells claims of a process apart:
//!
//! ```text
//! glebe-hugetlb-claims 2 BOOT_ID
//! PID START_TICKS PID_NAMESPACE SIZE_BYTES PAGES BEFORE CHANGE NUMBER
//! ```
//!
//! A change of the pool is written down before it is made (`BEFORE` the persistent pages at that
//! moment, `CHANGE` what is to be added) and settled after: whoever finds it unsettled takes from
//! the pool how far it got. Text of another boot, and lines that make no sense, are passed over.

use crate::sys::process::Process;
use crate::units::PageSize;

const HEADER: &str = "glebe-hugetlb-claims 2";

/// Whose pages of which size a line is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub process: Process,
    pub size: PageSize,
    /// One of the process's claims.
    pub number: u64,
}

/// Pages of one size that a process added to the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub key: Key,
    /// Pages added and not yet given back.
    pub pages: u64,
    /// Persistent pages of the pool before the change under way.
    pub before: u64,
    /// The change under way; 0 when settled.
    pub change: i64,
}

impl Claim {
    pub fn new(key: Key) -> Self {
        Self { key, pages: 0, before: 0, change: 0 }
    }

    /// Writes down a change that is about to be made, once what was under way is settled.
    pub fn begin(&mut self, persistent: u64, change: i64) {
        self.settle(persistent);
        (self.before, self.change) = (persistent, change);
    }

    /// Settles a change that was cut short, from the pages that the pool has now.
    pub fn settle(&mut self, persistent: u64) {
        if self.change >= 0 {
            let added = persistent.saturating_sub(self.before).min(self.change.unsigned_abs());
            self.pages = self.pages.saturating_add(added);
        } else {
            let taken = self.before.saturating_sub(persistent).min(self.change.unsigned_abs());
            self.pages = self.pages.saturating_sub(taken);
        }
        self.change = 0;
    }

    fn parse(line: &str) -> Option<Self> {
        let fields: Vec<&str> = line.split(' ').collect();
        let [pid, start, namespace, size, pages, before, change, number] = fields[..] else {
            return None;
        };
        let process = Process {
            pid: pid.parse().ok()?,
            start_ticks: start.parse().ok()?,
            namespace: namespace.parse().ok()?,
        };
        let size = PageSize::new(size.parse().ok()?)?;
        Some(Self {
            key: Key { process, size, number: number.parse().ok()? },
            pages: pages.parse().ok()?,
            before: before.parse().ok()?,
            change: change.parse().ok()?,
        })
    }
}

/// Reads the record; the second part says what was passed over.
pub(super) fn parse(text: &[u8], boot_id: &str) -> (Vec<Claim>, Vec<String>) {
    if text.is_empty() {
        return (Vec::new(), Vec::new());
    }
    let text = String::from_utf8_lossy(text);
    let mut lines = text.lines();
    let header = lines.next().unwrap_or_default();
    let Some(boot) = header.strip_prefix(HEADER).and_then(|rest| rest.strip_prefix(' ')) else {
        return (Vec::new(), vec![format!("header {header:.60?} is not {HEADER:?}: ignored")]);
    };
    if boot != boot_id {
        return (Vec::new(), Vec::new()); // the pools are new since
    }
    let mut claims = Vec::new();
    let mut ignored = Vec::new();
    for line in lines {
        match Claim::parse(line) {
            Some(claim) => claims.push(claim),
            None => ignored.push(format!("line {line:.60?} is no claim: ignored")),
        }
    }
    (claims, ignored)
}

/// Writes the record; claims of no pages are left out.
pub(super) fn format(claims: &[Claim], boot_id: &str) -> String {
    let mut text = format!("{HEADER} {boot_id}\n");
    for claim in claims.iter().filter(|claim| claim.pages > 0 || claim.change != 0) {
        let Key { process: Process { pid, start_ticks, namespace }, size, number } = claim.key;
        text += &format!(
            "{pid} {start_ticks} {namespace} {} {} {} {} {number}\n",
            size.bytes().get(),
            claim.pages,
            claim.before,
            claim.change
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn claim(pages: u64, before: u64, change: i64) -> Claim {
        let process = Process { pid: 7, start_ticks: 8, namespace: 9 };
        let size = PageSize::new(2 << 20).unwrap();
        Claim { key: Key { process, size, number: 1 }, pages, before, change }
    }

    #[test]
    fn a_change_cut_short_is_settled_from_the_pool() {
        for (before, change, now, pages) in [
            (10, 5, 10, 3),             // killed before it was made
            (10, 5, 13, 6),             // made in part
            (10, 5, 15, 8),             // made
            (10, 5, 99, 8),             // somebody else added too
            (10, 5, 2, 3),              // somebody else took
            (10, -2, 10, 3),            // not given back yet
            (10, -2, 8, 1),             // given back
            (10, -9, 0, 0),             // never below none
            (0, i64::MIN, 0, 3),        // nonsense
            (u64::MAX, i64::MAX, 0, 3), // nonsense
        ] {
            let mut claim = claim(3, before, change);
            claim.settle(now);
            assert_eq!((claim.pages, claim.change), (pages, 0), "{before} {change} {now}");
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let claims = [claim(3, 1, 0), claim(0, 4, -9), claim(0, 0, 0)];
        let text = format(&claims, "boot");
        assert_eq!(parse(text.as_bytes(), "boot"), (claims[..2].to_vec(), vec![]));
        assert_eq!(parse(text.as_bytes(), "later boot").0, []);
        assert_eq!(parse(b"", "boot"), (vec![], vec![]));
    }

    #[test]
    fn garbled_lines_are_named_and_passed_over() {
        let good = format(&[claim(3, 1, 0)], "boot");
        let text =
            format!("{good}7 8 9 2097151 3 0 0 1\n7 8 9 2097152 -3 0 0 1\n\n7 8\n\u{1b}[2J\n");
        let (claims, ignored) = parse(text.as_bytes(), "boot");
        assert_eq!((claims.len(), ignored.len()), (1, 5));
        assert!(!ignored[4].contains('\u{1b}'));
        assert_eq!(parse(b"\xff\xfe\n1 2 3 4 5 6 7", "boot").0, []);
    }

    proptest! {
        #[test]
        fn any_bytes_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes, "boot");
            let mut text = format(&[], "boot").into_bytes();
            text.extend(bytes);
            let _ = parse(&text, "boot");
        }
    }
}
