//! [`Bank`] keeps the last sums of the bank's blocks, because a look at many blocks takes long.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use glebe::contig::internal::{glance, Glance};
use glebe::contig::Error;

/// A look may take this share of the time: 1 / `REST`.
const REST: u32 = 20;

#[derive(Default)]
pub struct Bank {
    /// When the last look ended, and how long it took.
    last: Option<(Instant, Duration)>,
    pub sums: Option<Glance>,
    /// Why there are no sums, unless that is usual.
    pub note: Option<String>,
}

impl Bank {
    pub fn look(&mut self) {
        if self.last.is_some_and(|(at, took)| !is_due(at.elapsed(), took)) {
            return;
        }
        let begin = Instant::now();
        (self.sums, self.note) = match glance() {
            Ok(sums) => (sums, None),
            Err(error) => (None, note(&error)),
        };
        self.last = Some((Instant::now(), begin.elapsed()));
    }
}

fn is_due(since: Duration, took: Duration) -> bool {
    since >= took * REST
}

/// Returns nothing of machines without blocks, and of users who may not see them.
fn note(error: &Error) -> Option<String> {
    match error {
        Error::NoBlocks { .. } => None,
        Error::Os(error) if error.kind() == ErrorKind::PermissionDenied => None,
        other => Some(format!("no sums of the bank: {other}")),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use glebe::error::OsError;

    use super::*;

    #[test]
    fn only_unusual_errors_have_a_note() {
        let os = |code| Error::Os(OsError::new("open", "x", io::Error::from_raw_os_error(code)));
        let [eperm, eio, eacces] = [1, 5, 13];
        assert_eq!([eperm, eacces].map(|code| note(&os(code))), [None, None]);
        assert_eq!(note(&Error::NoBlocks { why: String::new() }), None);
        let said = note(&os(eio)).unwrap();
        assert!(said.starts_with("no sums of the bank: ") && said.contains("open"), "{said}");
    }

    #[test]
    fn a_long_look_has_a_long_rest() {
        let [short, long] = [1, 1000].map(Duration::from_millis);
        assert!(is_due(long, short) && !is_due(long, long));
        assert!(is_due(Duration::ZERO, Duration::ZERO));
    }

    #[test]
    fn a_look_keeps_its_time() {
        let mut bank = Bank::default();
        bank.look();
        assert!(bank.last.is_some());
    }
}
