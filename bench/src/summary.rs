//! [`Summary`]: statistics of samples.
//!
//! A percentile is the sample of the nearest rank: at least that percentage of the samples are not
//! larger. So the median and `p99` are real samples. Cost: one sort.

use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Summary {
    /// The lower of two middle samples.
    pub(crate) median: f64,
    /// The maximum if there are fewer than 100 samples.
    pub(crate) p99: f64,
    pub(crate) max: f64,
    pub(crate) min: f64,
    pub(crate) mean: f64,
    /// Sample standard deviation (divisor `runs - 1`); 0 for one sample.
    pub(crate) stdev: f64,
    pub(crate) runs: u64,
}

impl Summary {
    /// Returns `None` if `samples` is empty or one is not finite.
    pub(crate) fn of(samples: &[f64]) -> Option<Self> {
        if samples.is_empty() || samples.iter().any(|s| !s.is_finite()) {
            return None;
        }
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let runs = sorted.len() as f64;
        let mean = sorted.iter().sum::<f64>() / runs;
        let squares: f64 = sorted.iter().map(|s| (s - mean) * (s - mean)).sum();
        Some(Self {
            min: sorted[0],
            median: nearest_rank(&sorted, 50),
            p99: nearest_rank(&sorted, 99),
            max: sorted[sorted.len() - 1],
            mean,
            stdev: (squares / (runs - 1.0).max(1.0)).sqrt(),
            runs: sorted.len() as u64,
        })
    }

    pub(crate) fn map(self, change: impl Fn(f64) -> f64) -> Self {
        let Self { median, p99, max, min, mean, stdev, runs } = self;
        let [median, p99, max, min, mean, stdev] = [median, p99, max, min, mean, stdev].map(change);
        Self { median, p99, max, min, mean, stdev, runs }
    }
}

/// Returns the sample of rank `ceil(percent / 100 * n)`, counted from 1.
fn nearest_rank(sorted: &[f64], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted[rank.max(1) - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_hand() {
        // Mean 5, squares 9+1+1+1+0+0+4+16 = 32, deviation sqrt(32 / 7).
        let s = Summary::of(&[9.0, 4.0, 2.0, 4.0, 7.0, 4.0, 5.0, 5.0]).unwrap();
        assert_eq!((s.min, s.median, s.p99, s.max), (2.0, 4.0, 9.0, 9.0));
        assert_eq!((s.mean, s.runs), (5.0, 8));
        assert!((s.stdev - 2.138_089_935_299_395).abs() < 1e-12, "{}", s.stdev);
    }

    #[test]
    fn ranks_at_the_edges() {
        let one_to = |n: u32| (1..=n).rev().map(f64::from).collect::<Vec<_>>();
        let of = |n| Summary::of(&one_to(n)).unwrap();
        assert_eq!((of(1).median, of(1).p99, of(1).stdev), (1.0, 1.0, 0.0));
        assert_eq!((of(2).median, of(3).median), (1.0, 2.0));
        assert_eq!((of(99).p99, of(100).p99, of(101).p99), (99.0, 99.0, 100.0));
        assert_eq!((of(200).p99, of(1000).p99, of(1000).median), (198.0, 990.0, 500.0));
    }

    #[test]
    fn refuses_what_has_no_order() {
        for samples in [&[][..], &[1.0, f64::NAN], &[f64::INFINITY]] {
            assert_eq!(Summary::of(samples), None);
        }
    }
}
