//! Cuts and joins ascending runs of pages. [`Untold`] keeps lost runs for which a caller had no
//! room.

use std::sync::Mutex;

use glebe::extent::Extent;

use crate::table::lock;

#[derive(Debug, Default)]
pub(crate) struct Untold(Mutex<Vec<Extent>>);

impl Untold {
    /// Returns the lost runs in `asked`: `found`, and the runs that earlier calls kept. Keeps the
    /// runs after the first `capacity`, for which the caller has no room.
    pub(crate) fn tell(&self, asked: Extent, found: &[Extent], capacity: usize) -> Vec<Extent> {
        let mut untold = lock(&self.0);
        let (told, mut kept) = split(&untold, asked);
        let all = merged(found.iter().copied().chain(told).collect());
        kept.extend(all.get(capacity..).unwrap_or_default());
        *untold = merged(kept);
        all
    }
}

/// Returns the parts of `runs` within and outside `asked`.
pub(crate) fn split(runs: &[Extent], asked: Extent) -> (Vec<Extent>, Vec<Extent>) {
    let within = runs.iter().filter_map(|run| run.intersection(asked)).collect();
    let before = |run: &Extent| between(run.start(), run.end().min(asked.start()));
    let after = |run: &Extent| between(run.start().max(asked.end()), run.end());
    let without = runs.iter().flat_map(|run| [before(run), after(run)]).flatten().collect();
    (within, without)
}

pub(crate) fn between(start: u64, end: u64) -> Option<Extent> {
    Extent::new(start, end.saturating_sub(start))
}

/// Joins runs that overlap or touch.
pub(crate) fn merged(mut runs: Vec<Extent>) -> Vec<Extent> {
    runs.sort_unstable();
    let mut all: Vec<Extent> = Vec::with_capacity(runs.len());
    for run in runs {
        match all.last_mut() {
            Some(last) if run.start() <= last.end() => {
                let end = last.end().max(run.end());
                *last = between(last.start(), end).unwrap_or(*last);
            }
            _ => all.push(run),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(of: &[(u64, u64)]) -> Vec<Extent> {
        of.iter().map(|(start, end)| between(*start, *end).unwrap()).collect()
    }

    #[test]
    fn what_is_asked_for_is_cut_out() {
        let all = runs(&[(0, 4), (6, 8), (10, 20)]);
        let asked = between(2, 12).unwrap();
        let (within, without) = split(&all, asked);
        assert_eq!(within, runs(&[(2, 4), (6, 8), (10, 12)]));
        assert_eq!(without, runs(&[(0, 2), (12, 20)]));
        let (within, without) = split(&runs(&[(0, 30)]), asked);
        assert_eq!((within, without), (runs(&[(2, 12)]), runs(&[(0, 2), (12, 30)])));
    }

    #[test]
    fn what_there_was_no_room_for_is_told_once() {
        let (untold, all) = (Untold::default(), between(0, 30).unwrap());
        let found = runs(&[(0, 4), (6, 8), (10, 20)]);
        assert_eq!(untold.tell(all, &found, 1), found);
        // The part outside the range stays untold.
        assert_eq!(untold.tell(between(0, 7).unwrap(), &[], 9), runs(&[(6, 7)]));
        assert_eq!(untold.tell(all, &runs(&[(8, 10)]), 9), runs(&[(7, 20)]));
        assert_eq!(untold.tell(all, &[], 9), []);
    }

    #[test]
    fn runs_that_touch_become_one() {
        let all = runs(&[(8, 9), (0, 2), (1, 4), (4, 5), (9, 12), (20, 21), (8, 10)]);
        assert_eq!(merged(all), runs(&[(0, 5), (8, 12), (20, 21)]));
        assert_eq!(merged(Vec::new()), []);
    }
}
