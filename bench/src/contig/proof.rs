//! What the library says of its memory against page frames that are read here.
//!
//! Frames are those of `/proc/self/pagemap`, read and put together apart from the library: its
//! runs, its longest run and its `verify()` must say what they say. Unit: base pages.

use glebe::contig::{Contig, Drift, Run};
use glebe::sys::page_size;
use glebe::units::Pages;

use super::Error;
use crate::peers::frames_of;

/// Pages of which the library says something else than the page map; `None` where frames are
/// hidden.
///
/// # Errors
/// If the library cannot read frames that were read here.
pub(super) fn compare(contig: &Contig) -> Result<Option<u64>, Error> {
    let pages = contig.len().pages_up(page_size());
    let Some(frames) = frames_of(contig.mapping().addr(), pages) else { return Ok(None) };
    let drifts = contig.verify()?;
    let claimed = claimed(contig.runs(), &drifts, frames.len());
    let mut disagreements =
        claimed.iter().zip(&frames).filter(|(claimed, frame)| claimed != frame).count() as u64;
    // Drift makes runs shorter than they were said to be.
    if drifts.is_empty() && contig.longest_run() != longest(&frames) {
        disagreements += 1;
    }
    Ok(Some(disagreements))
}

/// The longest run of `pages` from `address`, and the longest that their frames would make in the
/// best order; `None` where frames are hidden.
pub(super) fn of_frames(address: usize, pages: Pages) -> Option<(Pages, Pages)> {
    let frames = frames_of(address, pages)?;
    Some((longest(&frames), optimum(&frames)))
}

/// The frame of every page, by the library's runs and what it says has moved.
fn claimed(runs: &[Run], drifts: &[Drift], pages: usize) -> Vec<Option<u64>> {
    let mut frames = vec![None; pages];
    let mut put = |start: u64, len: u64, first: Option<u64>| {
        for page in 0..len {
            if let Some(frame) = frames.get_mut((start + page) as usize) {
                *frame = first.map(|first| first + page);
            }
        }
    };
    for run in runs {
        put(run.pages.start(), run.pages.len(), run.pfn.map(|pfn| pfn.get()));
    }
    for drift in drifts {
        put(drift.pages.start(), drift.pages.len(), drift.now.map(|pfn| pfn.get()));
    }
    frames
}

/// The longest run of ascending frames, in order of address.
fn longest(frames: &[Option<u64>]) -> Pages {
    let follows = |a: &Option<u64>, b: &Option<u64>| match (a, b) {
        (Some(a), Some(b)) => a + 1 == *b,
        _ => false,
    };
    let runs = frames.chunk_by(follows).filter(|run| run[0].is_some());
    Pages::new(runs.map(<[_]>::len).max().unwrap_or(0) as u64)
}

/// The longest run that could be made of the frames.
fn optimum(frames: &[Option<u64>]) -> Pages {
    let mut sorted: Vec<Option<u64>> = frames.to_vec();
    sorted.sort_unstable();
    longest(&sorted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use glebe::extent::Extent;
    use glebe::units::{Bytes, Pfn};

    #[test]
    fn the_optimum_is_of_the_same_frames_in_another_order() {
        let frames = [Some(7), Some(8), None, Some(3), Some(9), Some(4)];
        assert_eq!((longest(&frames), optimum(&frames)), (Pages::new(2), Pages::new(3)));
        assert_eq!((longest(&[]), optimum(&[None])), (Pages::ZERO, Pages::ZERO));
    }

    #[test]
    fn runs_and_drift_name_a_frame_for_every_page() {
        let extent = |start, len| Extent::new(start, len).unwrap();
        let run = |start, len, pfn| Run { pages: extent(start, len), pfn: Some(Pfn::new(pfn)) };
        let runs = [run(0, 3, 10), run(4, 1, 30)];
        let drift = Drift { pages: extent(1, 1), was: Pfn::new(11), now: Some(Pfn::new(50)) };
        let claimed = claimed(&runs, &[drift], 5);
        assert_eq!(claimed, [Some(10), Some(50), Some(12), None, Some(30)]);
    }

    #[test]
    fn the_library_agrees_about_its_own_memory() {
        let contig = Contig::options().threads(1).map(Bytes::mib(8)).unwrap();
        match compare(&contig).unwrap() {
            // Pages that nothing holds may move between two readings.
            Some(disagreements) if contig.pinned() => {
                assert_eq!(disagreements, 0);
                let pages = contig.len().pages_up(page_size());
                let (longest, optimum) = of_frames(contig.mapping().addr(), pages).unwrap();
                assert!(longest <= optimum && longest == contig.longest_run());
            }
            Some(_) => println!("skipped: the pages are held by nothing"),
            None => println!("skipped: page frames are hidden"),
        }
    }
}
