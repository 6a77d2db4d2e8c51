//! Refaults of a working set beside volatile memory, beside nothing, beside page cache; see
//! [`kept`] for the workload.

use super::{Benchmark, Job, NOTHING_PURGED};
use crate::summary::Summary;
use crate::volatile::kept::{self, Beside, Kept};
use crate::volatile::{Error, Which};

/// The case, and reads of the working set for each byte that becomes volatile: in use clearly
/// more than the volatile memory, and no more than that.
const CASES: [(&str, u64); 2] = [("working_set_refaults", 4), ("working_set_refaults_even", 1)];
const CONTESTANTS: [(&str, Beside); 6] = [
    ("glebe scan", Beside::Volatile(Which::Scan)),
    ("glebe tag", Beside::Volatile(Which::Tag)),
    ("glebe scan, capped", Beside::Capped(Which::Scan)),
    ("glebe tag, capped", Beside::Capped(Which::Tag)),
    (NOTHING, Beside::Nothing),
    ("page cache beside it", Beside::PageCache),
];
const NOTHING: &str = "nothing beside it";

/// What a contestant came to, a number a round.
#[derive(Default)]
struct Sums {
    refaults: Vec<f64>,
    reads: u64,
    kernel: u64,
    purged: u64,
}

impl Sums {
    fn add(&mut self, kept: Kept) {
        self.refaults.push(kept.refaults as f64);
        self.reads += kept.reads;
        self.kernel += kept.kernel_refaults;
        self.purged += kept.purged;
    }

    fn remark(&self, beside: Beside) -> String {
        let rounds = (self.refaults.len() as u64).max(1);
        let [reads, kernel, purged] = [self.reads, self.kernel, self.purged].map(|n| n / rounds);
        let lost = match (beside.volatile(), purged) {
            (None, _) => String::new(),
            (Some(_), 0) => "; nothing purged: nothing was shown".into(),
            (Some((_, true)), n) => format!("; {n} purged or dropped"),
            (Some((_, false)), n) => format!("; {n} purged"),
        };
        format!("of {reads} read{lost}; the kernel counts {kernel} in all files")
    }
}

/// Rows and ratios.
pub(super) fn measure(bench: &mut Benchmark<'_>) -> Result<(), Error> {
    for (case, reads) in CASES {
        let (rounds, steps) = match (bench.options.quick, reads) {
            (true, _) => (1, 150),
            (false, 1) => (2, 700),
            (false, _) => (5, 700),
        };
        let mut sums: Vec<Sums> = CONTESTANTS.iter().map(|_| Sums::default()).collect();
        for _ in 0..rounds {
            for ((_, beside), sums) in CONTESTANTS.into_iter().zip(&mut sums) {
                if beside.volatile().is_some_and(|(which, _)| bench.refused(which).is_some()) {
                    continue;
                }
                let dir = bench.dir();
                let kept = bench.ask::<Kept>(kept::LIMIT, |group| {
                    let stat = group.dir().join("memory.stat");
                    Job::Kept(kept::Plan { beside, reads, steps, dir, stat })
                })?;
                kept.into_iter().for_each(|kept| sums.add(kept));
            }
        }
        tell(bench, case, &sums);
    }
    bench.report.note(
        "working_set_refaults: pages of the working set that were not in memory when they were \
         read, a run each; the ratios are (those with nothing beside it + 1) / (those with \
         volatile memory beside it + 1). A cap that leaves room for the working set is what is \
         recommended where that matters. In the case _even the working set is read no more often \
         than the volatile memory is used, so that it is as good a victim.",
    );
    Ok(())
}

fn tell(bench: &mut Benchmark<'_>, case: &str, sums: &[Sums]) {
    for ((who, beside), sums) in CONTESTANTS.iter().zip(sums) {
        match beside.volatile().and_then(|(which, _)| bench.refused(which)) {
            Some(why) => bench.report.absent(case, who, "pages", &why),
            None => {
                bench.report.row(case, who, "pages", &sums.refaults);
                bench.report.remark(&sums.remark(*beside));
                if let (Beside::Volatile(_), false) = (beside, sums.refaults.is_empty()) {
                    bench.report.check(NOTHING_PURGED, u64::from(sums.purged == 0));
                }
            }
        }
    }
    let median = |wanted: &str| {
        let found = CONTESTANTS.iter().zip(sums).find(|((who, _), _)| *who == wanted);
        let summary = found.and_then(|(_, sums)| Summary::of(&sums.refaults));
        summary.map_or(f64::NAN, |summary| summary.median + 1.0)
    };
    let suffix = case.strip_prefix(CASES[0].0).unwrap_or("");
    for capped in ["", "_capped"] {
        let name = format!("working_set_kept{suffix}{capped}");
        let who = if capped.is_empty() { "" } else { ", capped" };
        let ratio =
            |which: Which| median(NOTHING) / median(&format!("glebe {}{who}", which.name()));
        bench.worse(&name, ratio);
    }
}
