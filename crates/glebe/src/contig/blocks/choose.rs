//! Which blocks are taken. Pure, but for the look at a block that a caller passes in.
//!
//! A *stretch* is blocks side by side on one node. Of all stretches that are long enough the one
//! is taken that disturbs least: of blocks that are movable already rather than of others, then
//! the one with the fewest pages to move. A sample of each block says where to look; every page of
//! a block is looked at before it is taken. Occupancies are base pages.

use std::collections::BTreeMap;

use crate::sys::kpage::Occupancy;
use crate::sys::numa::Node;

/// How much is disturbed by taking a block, least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Disturbs {
    /// It is the bank's.
    Bank,
    /// It is movable already.
    Movable,
    /// It is the kernel's.
    Kernel,
    /// It is the kernel's, and of the few that devices with short addresses need.
    Devices,
}

/// A block that may be taken, as far as its state and its owner go.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub number: u64,
    pub node: Option<Node>,
    pub disturbs: Disturbs,
    /// A sample of its pages.
    pub sample: Occupancy,
}

/// Why blocks cannot be taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Obstacles {
    /// Blocks with pages that cannot be moved.
    pub fixed: u64,
    /// Blocks with pages of a hugetlb pool.
    pub pool: u64,
    /// Whether one has frames without a flag and nothing else in the way.
    pub unmarked: bool,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Blocks side by side, and how many of their pages must be moved.
    Stretch { blocks: Vec<u64>, occupied: u64 },
    /// None is long enough; the longest, in blocks.
    TooShort { longest: u64, obstacles: Obstacles },
}

/// Looks at blocks, each once.
pub(super) struct Search<'a, E> {
    candidates: Vec<Candidate>,
    look: &'a dyn Fn(u64) -> Result<Occupancy, E>,
    seen: BTreeMap<u64, Occupancy>,
}

impl<'a, E> Search<'a, E> {
    /// Of `candidates`, in order of number; `look` counts all pages of one.
    pub fn new(candidates: Vec<Candidate>, look: &'a dyn Fn(u64) -> Result<Occupancy, E>) -> Self {
        Self { candidates, look, seen: BTreeMap::new() }
    }

    /// The best stretch of `len` blocks without those of `but`.
    pub fn stretch(&mut self, len: u64, but: &[u64]) -> Result<Found, E> {
        for window in self.windows(len, but) {
            if self.all_fit(&window)? {
                let occupied = window.iter().map(|number| self.seen[number].movable).sum();
                return Ok(Found::Stretch { blocks: window, occupied });
            }
        }
        let longest = self.longest()?;
        Ok(Found::TooShort { longest, obstacles: self.obstacles() })
    }

    /// Every stretch of `len` blocks of which no sample speaks against it, best first.
    fn windows(&self, len: u64, but: &[u64]) -> Vec<Vec<u64>> {
        let usable = |candidate: &&Candidate| {
            candidate.sample.fixed == 0
                && candidate.sample.pool == 0
                && !but.contains(&candidate.number)
        };
        let usable: Vec<&Candidate> = self.candidates.iter().filter(usable).collect();
        let mut windows = Vec::new();
        for side_by_side in usable.chunk_by(|a, b| follows(a, b)) {
            for window in side_by_side.windows(len.max(1) as usize) {
                let worst = window.iter().map(|candidate| candidate.disturbs).max();
                let kernels = window.iter().filter(|c| c.disturbs >= Disturbs::Kernel).count();
                let occupied: u64 = window.iter().map(|c| c.sample.movable).sum();
                let numbers: Vec<u64> = window.iter().map(|c| c.number).collect();
                windows.push(((kernels, worst, occupied), numbers));
            }
        }
        windows.sort();
        windows.into_iter().map(|(_, numbers)| numbers).collect()
    }

    fn all_fit(&mut self, window: &[u64]) -> Result<bool, E> {
        for number in window {
            if !fits(self.seen(*number)?) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn seen(&mut self, number: u64) -> Result<Occupancy, E> {
        if let Some(seen) = self.seen.get(&number) {
            return Ok(*seen);
        }
        let mut seen = (self.look)(number)?;
        let of_this = |candidate: &Candidate| candidate.number == number;
        if self
            .candidates
            .iter()
            .find(|c| of_this(c))
            .is_some_and(|c| c.disturbs < Disturbs::Kernel)
        {
            // The kernel has no pages of its own in movable memory.
            seen.movable += std::mem::take(&mut seen.unmarked);
        }
        self.seen.insert(number, seen);
        Ok(seen)
    }

    /// The most blocks side by side that hold nothing in the way.
    fn longest(&mut self) -> Result<u64, E> {
        let (mut longest, mut at) = (0, 0_u64);
        let mut before: Option<Candidate> = None;
        for candidate in self.candidates.clone() {
            let fits = fits(self.seen(candidate.number)?);
            let joins = before.is_some_and(|before| follows(&before, &candidate));
            at = if !fits {
                0
            } else if joins {
                at + 1
            } else {
                1
            };
            longest = longest.max(at);
            before = Some(candidate);
        }
        Ok(longest)
    }

    /// Of the kernel's blocks seen, one with nothing but unmarked frames in the way: the fewest, or
    /// none, and then the fewest pages to move.
    pub fn most_likely(&self) -> Option<u64> {
        let likely = self.candidates.iter().filter_map(|candidate| {
            let seen = self.seen.get(&candidate.number)?;
            let may_fit = fits(Occupancy { unmarked: 0, ..*seen });
            (candidate.disturbs == Disturbs::Kernel && may_fit).then_some((
                seen.unmarked,
                seen.movable,
                candidate.number,
            ))
        });
        likely.min().map(|(_, _, number)| number)
    }

    fn obstacles(&self) -> Obstacles {
        let of = |is: &dyn Fn(&Occupancy) -> bool| {
            self.seen.values().filter(|seen| is(seen)).count() as u64
        };
        let unmarked = |seen: &Occupancy| seen.unmarked > 0 && seen.fixed == 0 && seen.pool == 0;
        Obstacles {
            fixed: of(&|seen| !seen.is_movable()),
            pool: of(&|seen| seen.pool > 0),
            unmarked: self.seen.values().any(unmarked),
        }
    }
}

/// Whether a block may be taken.
fn fits(seen: Occupancy) -> bool {
    seen.is_movable() && seen.pool == 0
}

fn follows(a: &Candidate, b: &Candidate) -> bool {
    a.number + 1 == b.number && a.node == b.node
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(number: u64, disturbs: Disturbs, movable: u64) -> Candidate {
        let sample = Occupancy { movable, ..Occupancy::default() };
        Candidate { number, node: Some(Node(0)), disturbs, sample }
    }

    fn kernels(movable: &[(u64, u64)]) -> Vec<Candidate> {
        movable
            .iter()
            .map(|(number, movable)| candidate(*number, Disturbs::Kernel, *movable))
            .collect()
    }

    fn find(candidates: &[Candidate], len: u64, fixed: &[u64]) -> Found {
        let look = |number: u64| {
            let of = candidates.iter().find(|c| c.number == number).unwrap();
            let fixed = u64::from(fixed.contains(&number));
            Ok::<_, ()>(Occupancy { fixed, ..of.sample })
        };
        Search::new(candidates.to_vec(), &look).stretch(len, &[]).unwrap()
    }

    fn blocks(found: Found) -> Vec<u64> {
        match found {
            Found::Stretch { blocks, .. } => blocks,
            Found::TooShort { .. } => Vec::new(),
        }
    }

    #[test]
    fn the_emptiest_stretch_of_adjacent_blocks_is_taken() {
        let all = kernels(&[(1, 9), (2, 9), (3, 1), (4, 9), (6, 0), (7, 2), (8, 20)]);
        assert_eq!(blocks(find(&all, 1, &[])), [6]);
        assert_eq!(blocks(find(&all, 2, &[])), [6, 7]);
        assert_eq!(blocks(find(&all, 3, &[])), [1, 2, 3]);
        assert_eq!(blocks(find(&all, 2, &[7])), [2, 3], "what the samples did not show");
        let found = find(&all, 5, &[2, 7]);
        let obstacles = Obstacles { fixed: 2, ..Obstacles::default() };
        assert_eq!(found, Found::TooShort { longest: 2, obstacles });
        assert_eq!(
            find(&[], 1, &[]),
            Found::TooShort { longest: 0, obstacles: Obstacles::default() }
        );
    }

    #[test]
    fn the_bank_comes_first_and_the_memory_of_devices_last() {
        let mut all = kernels(&[(1, 0), (2, 0)]);
        all.extend([candidate(4, Disturbs::Bank, 99), candidate(5, Disturbs::Movable, 50)]);
        all.extend([candidate(7, Disturbs::Devices, 0), candidate(8, Disturbs::Devices, 0)]);
        all.push(candidate(9, Disturbs::Devices, 0));
        assert_eq!(blocks(find(&all, 1, &[])), [4]);
        assert_eq!(blocks(find(&all, 1, &[4])), [5]);
        assert_eq!(blocks(find(&all, 2, &[])), [4, 5]);
        assert_eq!(blocks(find(&all, 2, &[4])), [1, 2]);
        assert_eq!(blocks(find(&all, 3, &[])), [7, 8, 9]);
    }

    #[test]
    fn a_border_of_nodes_ends_a_stretch() {
        let mut all = kernels(&[(1, 0), (2, 0), (3, 0)]);
        all[2].node = Some(Node(1));
        assert_eq!(blocks(find(&all, 2, &[])), [1, 2]);
        let TooShort { longest, .. } = find(&all, 3, &[]) else { panic!("a stretch of two nodes") };
        assert_eq!(longest, 2);
        use Found::TooShort;
    }

    #[test]
    fn an_unmarked_frame_may_be_the_kernels() {
        let all = kernels(&[(1, 0), (3, 9)]);
        let look = |number: u64| {
            let unmarked = u64::from(number == 1);
            Ok::<_, ()>(Occupancy { unmarked, ..Occupancy::default() })
        };
        let mut search = Search::new(all, &look);
        assert_eq!(blocks(search.stretch(1, &[]).unwrap()), [3]);
        let Found::TooShort { obstacles, .. } = search.stretch(2, &[]).unwrap() else {
            panic!("blocks 1 and 3 are not side by side")
        };
        assert_eq!((obstacles.fixed, obstacles.unmarked), (1, true));
        assert_eq!(search.most_likely(), Some(3));
    }

    #[test]
    fn pages_of_a_pool_are_left_where_they_are() {
        let mut all = kernels(&[(1, 0), (2, 5)]);
        all[0].sample.pool = 1;
        assert_eq!(blocks(find(&all, 1, &[])), [2]);
        assert_eq!(blocks(find(&all, 2, &[])), [] as [u64; 0]);
    }
}
