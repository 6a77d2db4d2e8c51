//! [`Purged`]: which pages an unmark found lost. Positions are base pages from the region's start.

use crate::extent::Extent;
use crate::units::Pages;

/// The pages that were lost, exactly: ascending runs with a page that was kept between any two.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "the contents of these pages are gone"]
pub struct Purged {
    runs: Vec<Extent>,
}

impl Purged {
    /// From runs in any order, which may overlap.
    #[inline]
    pub(super) fn from_runs(runs: Vec<Extent>) -> Self {
        Self { runs: if runs.is_empty() { runs } else { merged(runs) } }
    }

    /// The runs of lost pages, in pages from the region's start.
    #[must_use]
    pub fn runs(&self) -> &[Extent] {
        &self.runs
    }

    /// How many pages were lost.
    #[must_use]
    pub fn pages(&self) -> Pages {
        Pages::new(self.runs.iter().map(|run| run.len()).sum())
    }

    /// Whether nothing was lost.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Writes a bit for each page from `first` on, the lowest of the first byte for `first`: set
    /// where the page was lost, clear where not. Pages beyond either end of `bits` are left out.
    pub fn fill_bitmap(&self, bits: &mut [u8], first: Pages) {
        bits.fill(0);
        let covered = Extent::new(first.get(), bits.len() as u64 * u64::from(u8::BITS));
        for run in &self.runs {
            let Some(part) = covered.and_then(|covered| covered.intersection(*run)) else {
                continue;
            };
            for page in part.start()..part.end() {
                let bit = page - first.get();
                bits[(bit / u64::from(u8::BITS)) as usize] |= 1 << (bit % u64::from(u8::BITS));
            }
        }
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(start: u64, len: u64) -> Extent {
        Extent::new(start, len).unwrap()
    }

    #[test]
    fn runs_are_merged_and_in_order() {
        let purged =
            Purged::from_runs(vec![extent(8, 2), extent(1, 2), extent(2, 3), extent(5, 1)]);
        assert_eq!(purged.runs(), [extent(1, 5), extent(8, 2)]);
        assert_eq!(purged.pages(), Pages::new(7));
        assert!(Purged::from_runs(Vec::new()).is_empty());
    }

    #[test]
    fn a_bitmap_is_cut_at_both_ends() {
        let purged = Purged::from_runs(vec![extent(1, 5), extent(9, 2), extent(18, 9)]);
        let mut bits = [0xFF; 2];
        purged.fill_bitmap(&mut bits, Pages::new(4));
        assert_eq!(bits, [0b0110_0011, 0b1100_0000]);
        purged.fill_bitmap(&mut bits, Pages::new(u64::MAX));
        assert_eq!(bits, [0, 0]);
        purged.fill_bitmap(&mut [], Pages::ZERO);
    }
}
