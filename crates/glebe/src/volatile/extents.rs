//! Sets of extents as lists: joined, cut and clipped.
//!
//! Owns nothing. Cost: O(n) for n extents, or O(n log n) where they have to be sorted first.

use crate::extent::Extent;

/// Runs in any order, which may overlap, as ascending ones that do not touch.
pub(super) fn merged(mut runs: Vec<Extent>) -> Vec<Extent> {
    if !runs.is_sorted() {
        runs.sort_unstable();
    }
    let mut merged = Vec::with_capacity(runs.len());
    for run in runs {
        push(&mut merged, run);
    }
    merged
}

/// Adds a run that starts at or after the last one's start.
pub(super) fn push(runs: &mut Vec<Extent>, run: Extent) {
    if let Some(last) = runs.last_mut() {
        if run.start() <= last.end() {
            let end = last.end().max(run.end());
            *last = Extent::new(last.start(), end - last.start()).unwrap_or(*last);
            return;
        }
    }
    runs.push(run);
}

/// What of `extents` is not in `other`.
pub(super) fn without(extents: Vec<Extent>, other: Extent) -> Vec<Extent> {
    let between = |start: u64, end: u64| Extent::new(start, end.saturating_sub(start));
    let cut = |extent: Extent| {
        let before = between(extent.start(), other.start().min(extent.end()));
        let after = between(other.end().max(extent.start()), extent.end());
        before.into_iter().chain(after)
    };
    extents.into_iter().flat_map(cut).collect()
}

/// What of `extents` lies in `other`.
pub(super) fn within(extents: &[Extent], other: Extent) -> impl Iterator<Item = Extent> + '_ {
    extents.iter().filter_map(move |extent| extent.intersection(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_cut_out_and_kept() {
        let extent = |start, end| Extent::new(start, end - start).unwrap();
        let all = [extent(0, 4), extent(6, 8), extent(10, 20)];
        let asked = extent(2, 12);
        let inside: Vec<_> = within(&all, asked).collect();
        assert_eq!(inside, [extent(2, 4), extent(6, 8), extent(10, 12)]);
        assert_eq!(without(all.to_vec(), asked), [extent(0, 2), extent(12, 20)]);
        let both = [extent(0, 2), extent(12, 30)];
        assert_eq!(without(vec![extent(0, 30)], asked), both);
        assert_eq!(merged(vec![both[1], both[0], asked]), [extent(0, 30)]);
    }
}
