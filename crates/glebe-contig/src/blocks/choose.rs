//! [`Search`] chooses a *stretch*: adjacent blocks on one node.
//!
//! The best stretch has the fewest blocks of the kernel. Equal stretches compare by their most
//! disturbing block ([`Disturbs`]), then by pages to move.

use std::collections::BTreeMap;

use glebe_os::internal::sys::machine::kpage::Occupancy;
use glebe_os::internal::sys::machine::numa::Node;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Disturbs {
    Bank,
    Movable,
    Kernel,
    /// Memory of the kernel that devices with short addresses need.
    Devices,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub number: u64,
    pub node: Option<Node>,
    pub disturbs: Disturbs,
    pub sample: Occupancy,
}

pub(super) type Stretch = (Vec<u64>, u64);

pub(super) struct Search<'a, E> {
    candidates: Vec<Candidate>,
    look: &'a dyn Fn(u64) -> Result<Occupancy, E>,
    seen: BTreeMap<u64, Occupancy>,
}

impl<'a, E> Search<'a, E> {
    pub fn new(candidates: Vec<Candidate>, look: &'a dyn Fn(u64) -> Result<Occupancy, E>) -> Self {
        Self { candidates, look, seen: BTreeMap::new() }
    }

    pub fn stretch(&mut self, len: u64, but: &[u64]) -> Result<Option<Stretch>, E> {
        for window in self.windows(len, but) {
            if self.all_fit(&window)? {
                let occupied = window.iter().map(|number| self.seen[number].movable).sum();
                return Ok(Some((window, occupied)));
            }
        }
        Ok(None)
    }

    pub fn on(&mut self, node: Option<Node>) -> &mut Self {
        self.candidates.retain(|candidate| candidate.node == node);
        self
    }

    /// Returns every stretch of `len` blocks that samples allow, best first.
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
        let of_this = self.candidates.iter().find(|candidate| candidate.number == number);
        if of_this.is_some_and(|candidate| candidate.disturbs < Disturbs::Kernel) {
            // Movable memory has no kernel pages, so frames without flags (`unmarked`) are movable.
            seen.movable += std::mem::take(&mut seen.unmarked);
        }
        self.seen.insert(number, seen);
        Ok(seen)
    }

    pub fn first_that_fits(&mut self, numbers: &[u64]) -> Result<Option<u64>, E> {
        for number in numbers {
            if fits(self.seen(*number)?) {
                return Ok(Some(*number));
            }
        }
        Ok(None)
    }

    pub fn longest(&mut self) -> Result<u64, E> {
        let (mut longest, mut at) = (0, 0);
        let mut before: Option<Candidate> = None;
        for candidate in self.candidates.clone() {
            let joins = before.is_some_and(|before| follows(&before, &candidate));
            at = match fits(self.seen(candidate.number)?) {
                true if joins => at + 1,
                fits => u64::from(fits),
            };
            longest = longest.max(at);
            before = Some(candidate);
        }
        Ok(longest)
    }

    /// Returns the kernel block that would fit without its *unmarked* frames (no flags) and has the
    /// fewest. Returns `None` if unmarked frames alone hinder no block.
    pub fn most_likely(&self) -> Option<u64> {
        let may_fit = |seen: &Occupancy| fits(Occupancy { unmarked: 0, ..*seen });
        if self.count(|seen| seen.unmarked > 0 && may_fit(seen)) == 0 {
            return None;
        }
        let kernels = self.candidates.iter().filter(|of| of.disturbs == Disturbs::Kernel);
        let likely = kernels.filter_map(|candidate| {
            let seen = self.seen.get(&candidate.number).filter(|seen| may_fit(seen))?;
            Some((seen.unmarked, seen.movable, candidate.number))
        });
        likely.min().map(|(_, _, number)| number)
    }

    /// Returns the bank's blocks outside of `chosen` that do not fit, as they were seen.
    pub fn passed_over(&self, chosen: &[u64]) -> Vec<(u64, Occupancy)> {
        let banks = self.candidates.iter().filter(|of| of.disturbs == Disturbs::Bank);
        let seen = |of: &Candidate| (of.number, *self.seen.get(&of.number).unwrap_or(&of.sample));
        let others = banks.map(seen).filter(|(number, _)| !chosen.contains(number));
        others.filter(|(_, seen)| seen.fixed > 0 || seen.pool > 0).collect()
    }

    pub fn count(&self, is: impl Fn(&Occupancy) -> bool) -> u64 {
        self.seen.values().filter(|seen| is(seen)).count() as u64
    }
}

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

    fn find(candidates: &[Candidate], len: u64, fixed: &[u64]) -> Result<Vec<u64>, u64> {
        let look = |number: u64| {
            let of = candidates.iter().find(|c| c.number == number).unwrap();
            let fixed = u64::from(fixed.contains(&number));
            Ok::<_, ()>(Occupancy { fixed, ..of.sample })
        };
        let mut search = Search::new(candidates.to_vec(), &look);
        match search.stretch(len, &[]).unwrap() {
            Some((blocks, _)) => Ok(blocks),
            None => {
                let longest = search.longest().unwrap();
                let seen = candidates.iter().filter(|c| fixed.contains(&c.number)).count() as u64;
                assert_eq!(search.count(|seen| !seen.is_movable()), seen);
                Err(longest)
            }
        }
    }

    #[test]
    fn the_emptiest_stretch_of_adjacent_blocks_is_taken() {
        let all = kernels(&[(1, 9), (2, 9), (3, 1), (4, 9), (6, 0), (7, 2), (8, 20)]);
        assert_eq!(find(&all, 1, &[]).unwrap(), [6]);
        assert_eq!(find(&all, 2, &[]).unwrap(), [6, 7]);
        assert_eq!(find(&all, 3, &[]).unwrap(), [1, 2, 3]);
        assert_eq!(find(&all, 2, &[7]).unwrap(), [2, 3], "what the samples did not show");
        assert_eq!(find(&all, 5, &[2, 7]), Err(2));
        assert_eq!(find(&[], 1, &[]), Err(0));
    }

    #[test]
    fn the_bank_comes_first_and_the_memory_of_devices_last() {
        let mut all = kernels(&[(1, 0), (2, 0)]);
        all.extend([candidate(4, Disturbs::Bank, 99), candidate(5, Disturbs::Movable, 50)]);
        all.extend([candidate(7, Disturbs::Devices, 0), candidate(8, Disturbs::Devices, 0)]);
        all.push(candidate(9, Disturbs::Devices, 0));
        assert_eq!(find(&all, 1, &[]).unwrap(), [4]);
        assert_eq!(find(&all, 1, &[4]).unwrap(), [5]);
        assert_eq!(find(&all, 2, &[]).unwrap(), [4, 5]);
        assert_eq!(find(&all, 2, &[4]).unwrap(), [1, 2]);
        assert_eq!(find(&all, 3, &[]).unwrap(), [7, 8, 9]);
    }

    #[test]
    fn a_block_of_the_bank_is_passed_over_for_what_is_in_it() {
        let mut all = kernels(&[(1, 0)]);
        all.extend([4, 5, 6].map(|number| candidate(number, Disturbs::Bank, 0)));
        all[2].sample.pool = 3;
        let look = |number: u64| {
            let of = *all.iter().find(|of| of.number == number).unwrap();
            Ok::<_, ()>(Occupancy { fixed: u64::from(number == 4), ..of.sample })
        };
        let mut search = Search::new(all.clone(), &look);
        let (blocks, _) = search.stretch(1, &[]).unwrap().unwrap();
        assert_eq!(blocks, [6]);
        let passed = search.passed_over(&blocks).into_iter();
        let passed: Vec<_> = passed.map(|(of, seen)| (of, seen.fixed, seen.pool)).collect();
        assert_eq!(passed, [(4, 1, 0), (5, 0, 3)]);
    }

    #[test]
    fn a_border_of_nodes_ends_a_stretch() {
        let mut all = kernels(&[(1, 0), (2, 0), (3, 0)]);
        all[2].node = Some(Node(1));
        assert_eq!(find(&all, 2, &[]).unwrap(), [1, 2]);
        assert_eq!(find(&all, 3, &[]), Err(2), "a stretch of two nodes");
        let look = |_: u64| Ok::<_, ()>(Occupancy::default());
        let mut search = Search::new(all, &look);
        assert_eq!(search.on(Some(Node(1))).stretch(1, &[]).unwrap(), Some((vec![3], 0)));
    }

    #[test]
    fn an_unmarked_frame_may_be_the_kernels() {
        let all = kernels(&[(1, 0), (3, 9)]);
        let look = |number: u64| {
            let unmarked = u64::from(number == 1);
            Ok::<_, ()>(Occupancy { unmarked, ..Occupancy::default() })
        };
        let mut search = Search::new(all, &look);
        assert_eq!(search.stretch(1, &[]).unwrap(), Some((vec![3], 0)));
        assert_eq!(search.stretch(2, &[]).unwrap(), None, "blocks 1 and 3 are not side by side");
        assert_eq!(search.longest().unwrap(), 1);
        assert_eq!(search.count(|seen| !seen.is_movable()), 1);
        assert_eq!(search.most_likely(), Some(3));
    }

    #[test]
    fn pages_of_a_pool_are_left_where_they_are() {
        let mut all = kernels(&[(1, 0), (2, 5)]);
        all[0].sample.pool = 1;
        assert_eq!(find(&all, 1, &[]).unwrap(), [2]);
        assert_eq!(find(&all, 2, &[]), Err(1));
    }
}
