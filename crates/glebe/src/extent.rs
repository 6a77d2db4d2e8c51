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

    /// The extent `start..end`; `None` if that is empty.
    #[must_use]
    pub const fn between(start: u64, end: u64) -> Option<Self> {
        Self::new(start, end.saturating_sub(start))
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
        Self::between(self.start.max(other.start), self.end().min(other.end()))
    }

    /// What of it is not in `other`: before that, and behind it.
    pub(crate) fn without(self, other: Self) -> impl Iterator<Item = Self> {
        let before = Self::between(self.start, self.end().min(other.start));
        let behind = Self::between(self.start.max(other.end()), self.end());
        before.into_iter().chain(behind)
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

    #[test]
    fn what_is_left_lies_before_and_behind() {
        let all = Extent::new(10, 10).unwrap();
        let left = |start, len| -> Vec<(u64, u64)> {
            let left = all.without(Extent::new(start, len).unwrap());
            left.map(|part| (part.start(), part.end())).collect()
        };
        assert_eq!(left(12, 3), [(10, 12), (15, 20)]);
        assert_eq!(left(5, 10), [(15, 20)]);
        assert_eq!(left(15, 10), [(10, 15)]);
        assert_eq!(left(5, 20), []);
        assert_eq!((left(0, 10), left(20, 1)), (vec![(10, 20)], vec![(10, 20)]));
    }
}
