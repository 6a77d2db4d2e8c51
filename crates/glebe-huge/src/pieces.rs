//! [`Pieces`] are the mapped parts of leases, by address.
//!
//! A piece lies in one file, so the kernel moves it in one call. Calls of the program split pieces.

use std::collections::BTreeMap;
use std::ops::Range;

/// A part of a lease's file that is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) len: usize,
    /// Bits of mmap(2).
    pub(crate) prot: i32,
    /// Number of its holding.
    pub(crate) holding: u64,
    /// The program asked for a shared mapping.
    pub(crate) is_shared: bool,
    /// Forked children have it too.
    pub(crate) is_inherited: bool,
}

#[derive(Debug)]
pub(crate) struct Pieces {
    at: BTreeMap<usize, Piece>,
}

impl Pieces {
    pub(crate) const fn new() -> Self {
        Self { at: BTreeMap::new() }
    }

    pub(crate) fn insert(&mut self, start: usize, piece: Piece) {
        self.at.insert(start, piece);
    }

    /// Removes what lies in the range, and returns it by address.
    pub(crate) fn take(&mut self, range: Range<usize>) -> Vec<(usize, Piece)> {
        self.split(range.clone());
        let starts: Vec<usize> = self.at.range(range).map(|(start, _)| *start).collect();
        starts.into_iter().filter_map(|start| Some((start, self.at.remove(&start)?))).collect()
    }

    /// Calls `change` for each piece in the range.
    pub(crate) fn change(
        &mut self,
        range: Range<usize>,
        mut change: impl FnMut(usize, &mut Piece),
    ) {
        self.split(range.clone());
        self.at.range_mut(range).for_each(|(start, piece)| change(*start, piece));
    }

    /// Returns the pieces of which some is in the range.
    pub(crate) fn in_range(&self, range: Range<usize>) -> impl Iterator<Item = &Piece> {
        let before = self.at.range(..range.start).next_back();
        let before = before.filter(|(start, piece)| *start + piece.len > range.start);
        before.into_iter().chain(self.at.range(range)).map(|(_, piece)| piece)
    }

    pub(crate) fn is_any(&self, range: Range<usize>) -> bool {
        self.in_range(range).next().is_some()
    }

    /// Returns true if every byte of the range is in a piece.
    pub(crate) fn are_all(&self, range: Range<usize>) -> bool {
        let mut at = range.start;
        while at < range.end {
            match self.at.range(..=at).next_back() {
                Some((start, piece)) if start + piece.len > at => at = start + piece.len,
                _ => return false,
            }
        }
        true
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (usize, Piece)> + '_ {
        self.at.iter().map(|(start, piece)| (*start, *piece))
    }

    /// Returns the ranges that a holding has.
    pub(crate) fn of(&self, holding: u64) -> Vec<Range<usize>> {
        let own = self.all().filter(|(_, piece)| piece.holding == holding);
        own.map(|(start, piece)| start..start + piece.len).collect()
    }

    /// Makes both ends of the range borders of pieces.
    fn split(&mut self, range: Range<usize>) {
        for border in [range.start, range.end] {
            let Some((start, piece)) = self.at.range_mut(..border).next_back() else { continue };
            let (start, whole) = (*start, *piece);
            if start + whole.len > border {
                piece.len = border - start;
                self.at.insert(border, Piece { len: start + whole.len - border, ..whole });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(len: usize, holding: u64) -> Piece {
        Piece { len, prot: 3, holding, is_shared: false, is_inherited: true }
    }

    fn two() -> Pieces {
        let mut pieces = Pieces::new();
        pieces.insert(100, piece(100, 1));
        pieces.insert(200, piece(50, 2));
        pieces.insert(300, piece(10, 3));
        pieces
    }

    #[test]
    fn a_range_is_cut_out_of_pieces() {
        let mut pieces = two();
        let taken = pieces.take(150..220);
        assert_eq!(taken, [(150, piece(50, 1)), (200, piece(20, 2))]);
        let left: Vec<_> = pieces.all().collect();
        assert_eq!(left, [(100, piece(50, 1)), (220, piece(30, 2)), (300, piece(10, 3))]);
        assert_eq!(pieces.take(110..120), [(110, piece(10, 1))]);
        assert_eq!(pieces.all().count(), 4);
        assert_eq!(pieces.take(0..1000).len(), 4);
        assert_eq!(pieces.take(0..1000), []);
    }

    #[test]
    fn a_change_stays_in_its_range() {
        let mut pieces = two();
        pieces.change(190..210, |_, piece| piece.prot = 1);
        let prots: Vec<_> = pieces.all().map(|(start, piece)| (start, piece.prot)).collect();
        assert_eq!(prots, [(100, 3), (190, 1), (200, 1), (210, 3), (300, 3)]);
    }

    #[test]
    fn a_range_meets_pieces_or_lies_in_them() {
        let pieces = two();
        let met = [(0, 100), (0, 101), (249, 260), (250, 300), (120, 130), (309, 400), (310, 400)];
        let is_any = met.map(|(from, to)| pieces.is_any(from..to));
        assert_eq!(is_any, [false, true, true, false, true, true, false]);
        let inside = [(100, 250), (99, 120), (150, 251), (300, 310)];
        let are_all = inside.map(|(from, to)| pieces.are_all(from..to));
        assert_eq!(are_all, [true, false, false, true]);
    }
}
