//! [`Extent`] is a half-open range of positions, `start..end`, in its owner's unit.
//!
//! An extent is never empty and its end fits `u64`.

use std::fmt;

use crate::units::{Bytes, PageSize, Pages};

/// A range of positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extent {
    start: u64,
    len: u64,
}

impl Extent {
    /// Returns `len` positions from `start` on, or `None` if `len` is zero or the end overflows.
    #[must_use]
    pub const fn new(start: u64, len: u64) -> Option<Self> {
        match (len, start.checked_add(len)) {
            (0, _) | (_, None) => None,
            _ => Some(Self { start, len }),
        }
    }

    /// Returns `start..end`; `None` if empty.
    #[must_use]
    pub const fn between(start: u64, end: u64) -> Option<Self> {
        Self::new(start, end.saturating_sub(start))
    }

    /// Returns the first position.
    #[must_use]
    pub const fn start(self) -> u64 {
        self.start
    }

    /// Returns the number of positions.
    #[must_use]
    pub const fn len(self) -> u64 {
        self.len
    }

    /// Returns the position after the last.
    #[must_use]
    pub const fn end(self) -> u64 {
        self.start + self.len
    }

    /// Returns true if `other` lies within this extent.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.start <= other.start && other.end() <= self.end()
    }

    /// Returns true if both extents share a position.
    #[must_use]
    pub const fn overlaps(self, other: Self) -> bool {
        self.start < other.end() && other.start < self.end()
    }

    /// Returns the positions in both extents, if any.
    #[must_use]
    pub fn intersection(self, other: Self) -> Option<Self> {
        Self::between(self.start.max(other.start), self.end().min(other.end()))
    }

    /// Returns the extent from this start to the later end.
    pub(crate) fn joined(self, next: Self) -> Self {
        Self { len: self.end().max(next.end()) - self.start, ..self }
    }

    /// Returns the extent's address and its length in bytes. Positions count pages from `base` on.
    #[inline]
    pub fn place(self, base: usize, page: PageSize) -> (usize, Bytes) {
        (base + Pages::new(self.start).bytes(page).as_usize(), Pages::new(self.len).bytes(page))
    }

    /// Returns the parts of this extent before and after `other`.
    pub fn without(self, other: Self) -> impl Iterator<Item = Self> {
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
