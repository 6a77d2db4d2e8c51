//! Chooses the huge pages to keep, and the order of freeing. Frames and lengths count huge pages.

#[derive(Debug, PartialEq, Eq)]
pub(super) struct RunPlan {
    /// Indices in order of freeing: kept pages last, by descending frame, because the pool first
    /// hands out the last freed page.
    pub give_back: Vec<usize>,
    pub runs: usize,
    pub longest: usize,
    /// Units kept: pages, or whole bricks, whose frames are adjacent and aligned to a brick.
    pub kept: usize,
}

/// Keeps `keep` of `frames` in the fewest runs, longest first. The last run is the shortest that
/// suffices, so that longer runs stay whole.
pub(super) fn fewest_runs(frames: &[u64], keep: usize) -> RunPlan {
    let mut ascending: Vec<usize> = (0..frames.len()).collect();
    ascending.sort_unstable_by_key(|index| frames[*index]);
    let mut runs: Vec<&[usize]> =
        ascending.chunk_by(|a, b| frames[*b] == frames[*a].wrapping_add(1)).collect();
    runs.sort_by_key(|run| run.len());

    let mut kept: Vec<&[usize]> = Vec::new();
    let mut spare: Vec<usize> = Vec::new();
    let keep = keep.min(frames.len());
    let mut missing = keep;
    while missing > 0 {
        let enough = runs.partition_point(|run| run.len() < missing);
        // If no run suffices, takes the last run, which is the longest.
        let run = runs.remove(enough.min(runs.len() - 1));
        let (part, rest) = run.split_at(run.len().min(missing));
        missing -= part.len();
        kept.push(part);
        spare.extend(rest);
    }
    spare.extend(runs.iter().copied().flatten());
    let longest = kept.iter().map(|run| run.len()).max().unwrap_or(0);
    let count = kept.len();
    let mut keep_order: Vec<usize> = kept.concat();
    keep_order.sort_unstable_by_key(|index| std::cmp::Reverse(frames[*index]));
    let mut give_back = spare;
    give_back.extend(keep_order);
    RunPlan { give_back, runs: count, longest, kept: keep }
}

/// Keeps `keep` of `frames` for bricks of `each` adjacent frames that are aligned to a brick, as
/// far as there are such. Other frames follow, in the fewest runs.
pub(super) fn plan_of_bricks(frames: &[u64], keep: usize, each: u64) -> RunPlan {
    if each == 1 {
        return fewest_runs(frames, keep);
    }
    let mut ascending: Vec<usize> = (0..frames.len()).collect();
    ascending.sort_unstable_by_key(|index| frames[*index]);
    let bricks = ascending.chunk_by(|a, b| frames[*a] / each == frames[*b] / each);
    let (whole, rest): (Vec<&[usize]>, Vec<&[usize]>) =
        bricks.partition(|brick| brick.len() as u64 == each);
    let numbers: Vec<u64> = whole.iter().map(|brick| frames[brick[0]] / each).collect();
    let kept = fewest_runs(&numbers, keep / each as usize);
    let (spare, bricks) = kept.give_back.split_at(numbers.len() - kept.kept);
    let missing = keep.saturating_sub(kept.kept * each as usize);
    let rest: Vec<usize> = rest.concat();
    let of_rest =
        fewest_runs(&rest.iter().map(|index| frames[*index]).collect::<Vec<_>>(), missing);
    let falling = |brick: &usize| whole[*brick].iter().rev().copied().collect::<Vec<_>>();
    let mut give_back: Vec<usize> = spare.iter().flat_map(falling).collect();
    give_back.extend(of_rest.give_back.iter().map(|nth| rest[*nth]));
    give_back.extend(bricks.iter().flat_map(falling));
    let mapped: Vec<u64> = give_back.iter().rev().take(keep).map(|nth| frames[*nth]).collect();
    let runs = mapped.chunk_by(|a, b| *b == a.wrapping_add(1));
    let longest = runs.map(<[u64]>::len).max().unwrap_or(0);
    RunPlan { give_back, runs: kept.runs + of_rest.runs, longest, kept: kept.kept }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_longest_runs_are_kept_and_come_out_ascending() {
        // Runs: 4..=6 (indices 0, 2, 4), 10..=11 (1, 5), 20 (3).
        let frames = [4, 11, 6, 20, 5, 10];
        let plan = fewest_runs(&frames, 5);
        assert_eq!((plan.runs, plan.longest), (2, 3));
        assert_eq!(plan.give_back, [3, 1, 5, 2, 4, 0]);
        let plan = fewest_runs(&frames, 4);
        assert_eq!((plan.runs, plan.longest), (2, 3), "one page of the smallest run that does");
        assert_eq!(plan.give_back[2..], [3, 2, 4, 0]);
        assert_eq!(fewest_runs(&frames, 2).give_back[4..], [1, 5]);
        assert_eq!(fewest_runs(&frames, 9).give_back.len(), 6);
        assert_eq!(fewest_runs(&[], 3).give_back.len(), 0);
    }

    #[test]
    fn aligned_bricks_come_first_and_the_rest_behind() {
        // Pairs: 4, 5 (indices 4, 1), 8, 9 (0, 3), 10, 11 (5, 6). Others: 3 (2), 7 (7).
        let frames = [8, 5, 3, 9, 4, 10, 11, 7];
        let kept = |keep| {
            let plan = plan_of_bricks(&frames, keep, 2);
            let kept = plan.give_back.iter().rev().take(keep).map(|nth| frames[*nth]);
            (kept.collect::<Vec<u64>>(), plan.kept, plan.give_back.len())
        };
        assert_eq!(kept(4), (vec![8, 9, 10, 11], 2, 8), "the longest run of bricks");
        assert_eq!(kept(8), (vec![4, 5, 8, 9, 10, 11, 3, 7], 3, 8));
        assert_eq!(plan_of_bricks(&frames, 8, 2).runs, 4);
        let odd = plan_of_bricks(&[3, 4, 5, 6], 4, 4);
        assert_eq!((odd.kept, odd.runs, odd.give_back), (0, 1, vec![3, 2, 1, 0]));
        let ahead = plan_of_bricks(&[3, 4, 5, 6, 7], 5, 4);
        assert_eq!((ahead.kept, ahead.longest), (1, 4), "4 to 7, then 3");
    }

    fn fewest_by_force(frames: &[u64], keep: usize) -> usize {
        let mut sorted = frames.to_vec();
        sorted.sort_unstable();
        let lens: Vec<usize> = sorted.chunk_by(|a, b| *b == a + 1).map(<[u64]>::len).collect();
        (0..1_u32 << lens.len())
            .filter(|set| {
                let held: usize = lens
                    .iter()
                    .enumerate()
                    .filter(|(i, _)| set >> i & 1 == 1)
                    .map(|(_, n)| n)
                    .sum();
                held >= keep
            })
            .map(u32::count_ones)
            .min()
            .unwrap_or(0) as usize
    }

    proptest! {
        #[test]
        fn no_choice_has_fewer_runs(
            set in proptest::collection::hash_set(0_u64..24, 1..16),
            share in 0.0..1.0_f64,
        ) {
            let frames: Vec<u64> = set.into_iter().collect();
            let keep = ((frames.len() as f64 * share) as usize).max(1);
            let plan = fewest_runs(&frames, keep);
            let mut all = plan.give_back.clone();
            all.sort_unstable();
            prop_assert_eq!(all, (0..frames.len()).collect::<Vec<_>>());
            let kept: Vec<u64> =
                plan.give_back.iter().rev().take(keep).map(|i| frames[*i]).collect();
            prop_assert!(kept.is_sorted());
            let runs: Vec<usize> = kept.chunk_by(|a, b| *b == a + 1).map(<[u64]>::len).collect();
            prop_assert_eq!(runs.len(), plan.runs);
            prop_assert_eq!(runs.into_iter().max().unwrap(), plan.longest);
            prop_assert_eq!(plan.runs, fewest_by_force(&frames, keep));
        }
    }
}
