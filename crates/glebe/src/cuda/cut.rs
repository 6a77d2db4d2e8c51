//! [`Cut`] divides memory into the pieces that are registered one by one.
//!
//! A piece ends at each border: a multiple of its length, counted from where aligned blocks begin.
//! So a block of any pages that is aligned to its length lies in one piece.

use std::ops::Range;

use glebe_os::extent::Extent;
use glebe_os::internal::sys::page_size;
use glebe_os::units::{Bytes, Pages};

#[derive(Debug)]
pub(super) struct Cut {
    pieces: Vec<Extent>,
    total: Bytes,
}

impl Cut {
    /// Cuts `present`, in order, at `first_border` and at each multiple of `piece` from there.
    pub(super) fn new(present: &[Extent], piece: u64, first_border: u64) -> Self {
        let mut pieces = Vec::new();
        for part in present {
            let mut start = part.start();
            while start < part.end() {
                let past = (start + piece - first_border) % piece;
                let end = part.end().min(start + piece - past);
                pieces.extend(Extent::between(start, end));
                start = end;
            }
        }
        let pages = pieces.iter().map(|piece| piece.len()).sum();
        Self { pieces, total: Pages::new(pages).bytes(page_size()) }
    }

    pub(super) fn len(&self) -> usize {
        self.pieces.len()
    }

    pub(super) fn total(&self) -> Bytes {
        self.total
    }

    /// Returns offset and length of a piece.
    pub(super) fn bytes(&self, number: usize) -> (Bytes, Bytes) {
        let piece = self.pieces[number];
        let bytes = |pages| Pages::new(pages).bytes(page_size());
        (bytes(piece.start()), bytes(piece.len()))
    }

    /// Returns the numbers of the pieces that have the pages; `None` unless all are there.
    pub(super) fn numbers(&self, pages: Extent) -> Option<Range<usize>> {
        let first = self.pieces.partition_point(|piece| piece.end() <= pages.start());
        let mut at = pages.start();
        for (number, piece) in self.pieces.iter().enumerate().skip(first) {
            if piece.start() > at {
                return None;
            }
            at = piece.end();
            if at >= pages.end() {
                return Some(first..number + 1);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extents(bounds: &[(u64, u64)]) -> Vec<Extent> {
        bounds.iter().map(|(start, end)| Extent::between(*start, *end).unwrap()).collect()
    }

    #[test]
    fn pieces_end_at_borders_and_gaps() {
        let present = extents(&[(0, 10), (12, 17)]);
        assert_eq!(
            Cut::new(&present, 4, 0).pieces,
            extents(&[(0, 4), (4, 8), (8, 10), (12, 16), (16, 17)])
        );
        assert_eq!(
            Cut::new(&present, 4, 3).pieces,
            extents(&[(0, 3), (3, 7), (7, 10), (12, 15), (15, 17)])
        );
        assert_eq!(Cut::new(&present, 32, 0).pieces, present);
        let total = Pages::new(15).bytes(page_size());
        assert_eq!(Cut::new(&present, 4, 3).total(), total);
    }

    #[test]
    fn pages_are_found_in_pieces_unless_one_is_missing() {
        let cut = Cut::new(&extents(&[(0, 10), (12, 17)]), 4, 0);
        let numbers = |start, end| cut.numbers(Extent::between(start, end).unwrap());
        assert_eq!(numbers(0, 1), Some(0..1));
        assert_eq!(numbers(3, 5), Some(0..2));
        assert_eq!(numbers(4, 8), Some(1..2));
        assert_eq!(numbers(0, 10), Some(0..3));
        assert_eq!(numbers(12, 17), Some(3..5));
        for (start, end) in [(9, 11), (10, 11), (10, 13), (0, 17), (16, 18), (17, 18)] {
            assert_eq!(numbers(start, end), None, "{start}..{end}");
        }
    }
}
