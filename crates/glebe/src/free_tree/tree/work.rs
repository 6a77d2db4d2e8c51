//! The calls that are made all the time, each with the vectors that the processor has.
//!
//! Owns nothing.

use super::super::lanes::Lane;
use super::super::vectors::Work;
use super::{Need, Paths, Refused, Tree};

impl<L: Lane, const B: usize> Tree<L, B> {
    /// Takes the lowest place that is as `need` says; `None` if there is none.
    pub(in crate::free_tree) fn take_lowest(
        &mut self,
        paths: &mut Paths,
        need: &Need<L>,
    ) -> Result<Option<L>, Refused<L>> {
        self.vectors.run(TakeLowest { tree: self, paths, need })
    }

    /// Adds an extent, as one with those that it touches; refuses if any of it is there already, or
    /// if it touches none and there may be no more.
    pub(in crate::free_tree) fn add(
        &mut self,
        paths: &mut Paths,
        start: L,
        len: L,
    ) -> Result<(), Refused<L>> {
        self.vectors.run(Add { tree: self, paths, start, len })
    }

    /// Makes the maxima right again of the leaf that is noted at `place`.
    pub(super) fn refresh(&mut self, place: usize) {
        self.vectors.run(Refresh { tree: self, place });
    }
}

struct TakeLowest<'a, L, const B: usize> {
    tree: &'a mut Tree<L, B>,
    paths: &'a mut Paths,
    need: &'a Need<L>,
}

impl<L: Lane, const B: usize> Work for TakeLowest<'_, L, B> {
    type Answer = Result<Option<L>, Refused<L>>;

    #[inline(always)]
    fn run(self) -> Self::Answer {
        let Self { tree, paths, need } = self;
        let path = paths.next();
        tree.refresh_class(need.log);
        let Some((spot, at)) = tree.find(need, path) else { return Ok(None) };
        tree.carve(path, spot, at, need.len)?;
        Ok(Some(at))
    }
}

struct Add<'a, L, const B: usize> {
    tree: &'a mut Tree<L, B>,
    paths: &'a mut Paths,
    start: L,
    len: L,
}

impl<L: Lane, const B: usize> Work for Add<'_, L, B> {
    type Answer = Result<(), Refused<L>>;

    #[inline(always)]
    fn run(self) -> Self::Answer {
        self.tree.add_with(self.paths, self.start, self.len)
    }
}

struct Refresh<'a, L, const B: usize> {
    tree: &'a mut Tree<L, B>,
    place: usize,
}

impl<L: Lane, const B: usize> Work for Refresh<'_, L, B> {
    type Answer = ();

    #[inline(always)]
    fn run(self) {
        self.tree.refresh_with(self.place);
    }
}
