//! [`Extent`]: a half-open run of positions, `start..end`.
//!
//! The unit is its holder's (pages in the reserve, anything in a free tree). Never empty, never
//! past `u64::MAX`: both are refused when one is made, so no user needs to check again.

use std::fmt;

/// A run of `len` positions from `start`, half-open and not empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extent {
    start: u64,
    len: u64,
}

impl Extent {
    /// The extent of `len` positions from `start`; `None` if it is empty or its end overflows.
    #[must_use]
    pub const fn new(start: u64, len: u64) -> Option<Self> {
        match (len, start.checked_add(len)) {
            (0, _) | (_, None) => None,
            _ => Some(Self { start, len }),
        }
    }

    /// First position.
    #[must_use]
    pub const fn start(self) -> u64 {
        self.start
    }

    /// Number of positions; never zero.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // never empty
    pub const fn len(self) -> u64 {
        self.len
    }

    /// One past the last position.
    #[must_use]
    pub const fn end(self) -> u64 {
        self.start + self.len
    }

    /// Whether `other` lies wholly inside.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.start <= other.start && other.end() <= self.end()
    }

    /// Whether the two share a position.
    #[must_use]
    pub const fn overlaps(self, other: Self) -> bool {
        self.start < other.end() && other.start < self.end()
    }

    /// What the two share.
    #[must_use]
    pub fn intersection(self, other: Self) -> Option<Self> {
        let start = self.start.max(other.start);
        let end = self.end().min(other.end());
        Self::new(start, end.checked_sub(start)?)
    }
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}..{:#x}", self.start, self.end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_cannot_be() {
        assert_eq!(Extent::new(5, 0), None);
        assert_eq!(Extent::new(u64::MAX, 1), None);
        assert!(Extent::new(u64::MAX - 1, 1).is_some());
    }

    #[test]
    fn relations() {
        let a = Extent::new(10, 10).unwrap();
        let b = Extent::new(20, 5).unwrap();
        assert!(!a.overlaps(b));
        assert_eq!(a.intersection(b), None);
        let c = Extent::new(15, 10).unwrap();
        assert_eq!(a.intersection(c), Extent::new(15, 5));
        assert!(a.contains(Extent::new(10, 10).unwrap()));
        assert!(!a.contains(c));
    }
}
