//! Tests whether a working set stays in memory beside volatile memory. The working set is a file of
//! six tenths of [`LIMIT`], read at random; file and volatile memory need about 1.4 times `LIMIT`.
//!
//! Each read first counts its pages that are not in memory. The file is sparse, so no device delays
//! reads. Unit: pages.

use std::os::unix::fs::FileExt;
use std::path::Path;

use glebe::page_size;
use glebe::reclaim::{Policy, Reclaimer};
use glebe::units::Bytes;
use memmap2::MmapRaw;
use serde::{Deserialize, Serialize};

use super::bare::Cached;
use super::marked::{Judged, Marked};
use super::{contest, ratios, Measurement, Which, LIMIT, NOTHING_PURGED};
use crate::pressure::nameless;
use crate::report::Report;
use crate::reserve::keyed::Random;
use crate::Outcome;

const CASE: &str = "working_set_refaults";
const UNIT: &str = "pages";
const WORKING_SET: Bytes = Bytes::mib(57);
/// Bytes of volatile memory.
const BESIDE: Bytes = Bytes::mib(80);
/// Bytes that a fixed cap leaves to the program.
const SLACK: Bytes = Bytes::mib(12);
const STEP: Bytes = Bytes::mib(1);
/// Bytes of the file read per volatile byte written, so that the file is used more.
const READS: u64 = 4;
const BLOCK: Bytes = Bytes::new(64 << 10);
const WARM_UP: u64 = 3;

/// Memory beside the working set: none, or volatile memory of an engine with a cap.
pub(super) type Beside = Option<(Which, Cap)>;

/// A limit on marked memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Cap {
    None,
    /// Leaves room for the working set.
    Fixed,
    /// A reclaimer, which does not know the working set.
    Reclaimer,
}

impl Cap {
    const ALL: [Self; 3] = [Self::None, Self::Fixed, Self::Reclaimer];

    /// Returns the suffix of a contestant's name, and the name of the ratio.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::None => ("", "working_set_kept"),
            Self::Fixed => (", capped", "working_set_kept_capped"),
            Self::Reclaimer => (", reclaimer", "working_set_kept_reclaimer"),
        }
    }
}

const NOTHING: &str = "nothing beside it";

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Kept {
    reads: u64,
    /// Pages of `reads` that were not in memory.
    refaults: u64,
    purged: u64,
    judged: Judged,
}

pub(super) fn measure(engines: &[Which], report: &mut Report) -> Outcome {
    let (count, steps) = report.plan((1, 150), (5, 700));
    let dir = report.options.scratch();
    let job = |(who, beside)| (who, Measurement::Kept { beside, steps, dir: dir.clone() });
    let ours = Cap::ALL.into_iter().flat_map(|cap| {
        let who = move |which: &Which| format!("{}{}", which.who(), cap.names().0);
        engines.iter().map(move |which| (who(which), Some((*which, cap))))
    });
    let jobs: Vec<_> = ours.chain([(NOTHING.into(), None)]).map(job).collect();
    contest((CASE, UNIT), count, &jobs, report, |who, kept: Kept, report| {
        report.add(CASE, who, UNIT, kept.refaults as f64);
        let note = format!("of {} read, {} purged in the last run", kept.reads, kept.purged);
        report.remark(CASE, who, UNIT, &note);
        kept.judged.report(report);
        // Only memory without a cap has to lose pages.
        if Which::ALL.iter().any(|which| which.who() == who) {
            report.check(NOTHING_PURGED, u64::from(kept.purged == 0));
        }
    })?;
    for (suffix, name) in Cap::ALL.map(Cap::names) {
        ratios(name, engines, report, |which, report| {
            let own = report.median(CASE, &format!("{}{suffix}", which.who()));
            (report.median(CASE, NOTHING) + 1.0) / (own + 1.0)
        });
    }
    report.note(
        "working_set_refaults: pages of the working set that were not in memory when they were \
         read, a run each; the ratios are (those with nothing beside it + 1) / (those with \
         volatile memory beside it + 1). A cap that leaves room for the working set is what is \
         recommended where its size is known, and a reclaimer where it is not.",
    );
    Ok(())
}

pub(super) fn inside(beside: Beside, steps: u64, dir: &Path) -> Outcome<Kept> {
    let len = WORKING_SET.get();
    let working_set = nameless(dir, WORKING_SET)?;
    let cached = Cached(MmapRaw::map_raw(&working_set)?);
    let build = |(which, cap): (Which, Cap)| {
        let rest = LIMIT.saturating_sub(WORKING_SET).saturating_sub(SLACK);
        let options = if cap == Cap::Fixed { which.options().cap(rest) } else { which.options() };
        options.build(BESIDE).map(Marked::new)
    };
    let mut region = beside.map(build).transpose()?;
    let reclaimer = match (&region, beside) {
        (Some(region), Some((_, Cap::Reclaimer))) => {
            let reclaimer = Reclaimer::new(Policy::default())?;
            reclaimer.add(region.region())?;
            reclaimer.start()?;
            Some(reclaimer)
        }
        _ => None,
    };
    let mut block = vec![0; BLOCK.as_usize()];
    for at in (0..len * WARM_UP).step_by(BLOCK.as_usize()) {
        working_set.read_exact_at(&mut block, at % len)?;
    }
    let mut random = Random::new(5);
    let mut kept = Kept::default();
    let step_pages = STEP.pages_down(page_size()).get();
    // Counting starts with the second pass over the volatile memory.
    let begin = BESIDE.get() / STEP.get();
    for step in 0..begin + steps {
        if step == begin {
            kept = Kept::default();
        }
        for _ in 0..STEP.get() * READS / BLOCK.get() {
            let from = random.below(len / BLOCK.get()) * BLOCK.get();
            kept.refaults += cached.absent(Bytes::new(from), BLOCK)?;
            working_set.read_exact_at(&mut block, from)?;
            kept.reads += BLOCK.pages_up(page_size()).get();
        }
        if let Some(region) = &mut region {
            let first = step % begin * step_pages;
            let pages = first..first + step_pages;
            kept.purged += region.unmark(pages.clone())?;
            region.write(pages.clone())?;
            region.mark(pages)?;
        }
    }
    drop(reclaimer);
    kept.judged = region.map_or(Judged::default(), |region| region.judged);
    Ok(kept)
}
