//! [`Counts`] is what the process asked for, and what it got.

use std::fmt::{self, Display, Formatter};

use glebe_os::units::Bytes;

#[derive(Debug)]
pub(crate) struct Counts {
    pub(crate) mappings: u64,
    pub(crate) leased: u64,
    pub(crate) most: u64,
    pub(crate) refused: u64,
    /// Refused requests that the kernel's pool served.
    pub(crate) by_kernel: u64,
    pub(crate) reason: String,
}

impl Counts {
    pub(crate) const fn new() -> Self {
        let reason = String::new();
        Self { mappings: 0, leased: 0, most: 0, refused: 0, by_kernel: 0, reason }
    }

    pub(crate) fn lease(&mut self, bytes: u64) {
        self.mappings += 1;
        self.leased += bytes;
        self.most = self.most.max(self.leased);
    }

    pub(crate) fn give_back(&mut self, bytes: u64) {
        self.leased -= bytes;
    }

    pub(crate) fn refuse(&mut self, bytes: u64, reason: &str, by_kernel: bool) {
        self.refused += 1;
        self.by_kernel += u64::from(by_kernel);
        self.reason = format!("{}: {reason}", Bytes::new(bytes));
    }

    /// Forgets what an ancestor did.
    pub(crate) fn begin_again(&mut self) {
        *self = Self { leased: self.leased, ..Self::new() };
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.mappings == 0 && self.refused == 0
    }
}

impl Display for Counts {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.mappings {
            0 if self.refused == 0 => return f.write_str("asked for no huge pages"),
            0 => f.write_str("leased nothing")?,
            1 => write!(f, "leased {} in 1 mapping", Bytes::new(self.most))?,
            n => write!(f, "leased {} at most, in {n} mappings", Bytes::new(self.most))?,
        }
        if self.refused == 0 {
            return Ok(());
        }
        write!(f, "; refused {}", self.refused)?;
        if self.by_kernel > 0 {
            write!(f, ", of which the kernel's pool served {}", self.by_kernel)?;
        }
        write!(f, ", the last {}", self.reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_what_was_leased_and_refused_and_why() {
        let mut counts = Counts::new();
        assert_eq!(counts.to_string(), "asked for no huge pages");
        counts.refuse(2 << 20, "no daemon", true);
        let refused = "refused 1, of which the kernel's pool served 1, the last 2 MiB: no daemon";
        assert_eq!(counts.to_string(), format!("leased nothing; {refused}"));
        counts.lease(4 << 20);
        assert_eq!(counts.to_string(), format!("leased 4 MiB in 1 mapping; {refused}"));
        counts.give_back(4 << 20);
        counts.lease(2 << 20);
        counts.refuse(8 << 20, "quota", false);
        assert_eq!(
            counts.to_string(),
            "leased 4 MiB at most, in 2 mappings; refused 2, of which the kernel's pool served 1, \
             the last 8 MiB: quota"
        );
        counts.begin_again();
        assert!(counts.is_empty());
        assert_eq!(counts.leased, 2 << 20);
    }
}
