//! [`Report`] counts what calls got, and says it in one line.

use std::collections::BTreeMap;
use std::fmt;

use glebe::units::Bytes;

use super::supply::Supplied;

/// Most reasons in the line. Some have numbers that change.
const REASONS: usize = 8;

#[derive(Debug, Default)]
pub struct Report {
    leased: Bytes,
    calls_leased: u64,
    /// Calls for which the pool had enough free pages.
    calls_free: u64,
    /// Refused calls by reason.
    refused: BTreeMap<String, u64>,
}

impl Report {
    pub fn add(&mut self, supplied: &Supplied) {
        match supplied {
            Supplied::Leased(bytes) => {
                self.leased = self.leased + *bytes;
                self.calls_leased += 1;
            }
            Supplied::Free => self.calls_free += 1,
            Supplied::LookUp => {}
            Supplied::Refused(why) => {
                let is_told = self.refused.len() < REASONS || self.refused.contains_key(why);
                let why = if is_told { why } else { "other reasons" };
                *self.refused.entry(why.to_owned()).or_default() += 1;
            }
        }
    }
}

fn calls(count: u64) -> String {
    format!("{count} call{}", if count == 1 { "" } else { "s" })
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { leased, calls_leased, calls_free, refused } = self;
        let mut parts = Vec::new();
        if *calls_leased > 0 {
            parts.push(format!("{leased} of huge pages leased in {}", calls(*calls_leased)));
        }
        if *calls_free > 0 {
            parts.push(format!("{} found free pages in the pool", calls(*calls_free)));
        }
        let refusal = |(why, count): (&String, &u64)| format!("{} refused: {why}", calls(*count));
        parts.extend(refused.iter().map(refusal));
        match parts.is_empty() {
            true => f.write_str("no call asked for huge pages"),
            false => f.write_str(&parts.join("; ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_is_in_one_line() {
        let mut report = Report::default();
        assert_eq!(report.to_string(), "no call asked for huge pages");
        report.add(&Supplied::Leased(Bytes::mib(2)));
        assert_eq!(report.to_string(), "2 MiB of huge pages leased in 1 call");
        report.add(&Supplied::Leased(Bytes::mib(4)));
        for _ in 0..2 {
            report.add(&Supplied::Free);
            report.add(&Supplied::Refused("no daemon".to_owned()));
        }
        let wanted =
            "6 MiB of huge pages leased in 2 calls; 2 calls found free pages in the pool; \
                      2 calls refused: no daemon";
        assert_eq!(report.to_string(), wanted);
        for nth in 0..100 {
            report.add(&Supplied::Refused(format!("reason {nth}")));
        }
        let line = report.to_string();
        assert!(line.contains("93 calls refused: other reasons"), "{line}");
    }
}
