//! Whether a working set is kept: a file of six tenths of the limit that is read at random, over
//! and over, beside volatile memory that wants the rest and half as much again.
//!
//! For each byte that becomes volatile [`READS`] of the working set are read. What of it the kernel
//! had dropped by then is looked up before each read. The file is sparse, so that nobody waits for
//! a device. Unit: pages.

use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use glebe::error::OsError;
use glebe::sys::page_size;
use glebe::units::Bytes;
use glebe::volatile::Region;
use serde::{Deserialize, Serialize};

use super::marked::{Judged, Marked};
use super::page_cache::Cached;
use super::{Error, Which};
use crate::pressure::nameless;
use crate::reserve::keyed::Random;

pub(super) const LIMIT: Bytes = Bytes::mib(96);
/// Of the limit, in percent.
const WORKING_SET_PERCENT: u64 = 60;
/// With the working set half as much again as the limit.
const BESIDE: Bytes = Bytes::mib(80);
/// What the program needs besides, where a cap leaves room.
const SLACK: Bytes = Bytes::mib(12);
/// What becomes volatile in one step.
const STEP: Bytes = Bytes::mib(1);
/// In use clearly more than the volatile memory.
const READS: u64 = 4;
/// Read at once.
const BLOCK: Bytes = Bytes::new(64 << 10);
/// Passes over the working set before there is anything else.
const WARM_UP: u64 = 3;

/// What uses memory beside the working set: nothing, or volatile memory of an engine, with or
/// without a cap that leaves room for the working set.
pub(super) type Beside = Option<(Which, bool)>;

/// What a child is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    pub(super) beside: Beside,
    /// Times that something becomes volatile.
    pub(super) steps: u64,
    pub(super) dir: PathBuf,
}

/// What it came to.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Kept {
    /// Pages of the working set that were read.
    pub(super) reads: u64,
    /// Those of them that were not in memory.
    pub(super) refaults: u64,
    /// Pages of volatile memory that were lost.
    pub(super) purged: u64,
    /// Of all that was volatile.
    pub(super) judged: Judged,
}

/// In the child.
pub(super) fn inside(plan: &Plan) -> Result<Kept, Error> {
    let len = Bytes::new(LIMIT.get() / 100 * WORKING_SET_PERCENT / STEP.get() * STEP.get());
    let working_set = nameless(&plan.dir, len)?;
    let cached = Cached::of(&working_set)?;
    let mut region = region(plan.beside, len)?.map(Marked::new);
    let mut block = vec![0; BLOCK.as_usize()];
    for at in (0..len.get() * WARM_UP).step_by(BLOCK.as_usize()) {
        read(&working_set, &mut block, at % len.get())?;
    }
    let mut random = Random::new(5);
    let mut kept = Kept::default();
    let mut at = 0;
    // Until all that is beside has been used once, there is nothing to take it from.
    let begin = BESIDE.get() / STEP.get();
    for step in 0..begin + plan.steps {
        if step == begin {
            kept = Kept::default();
        }
        for _ in 0..STEP.get() * READS / BLOCK.get() {
            let from = random.below(len.get() / BLOCK.get()) * BLOCK.get();
            kept.refaults += cached.absent(Bytes::new(from), BLOCK)?;
            read(&working_set, &mut block, from)?;
            kept.reads += BLOCK.pages_up(page_size()).get();
        }
        if let Some(region) = &mut region {
            let [first, pages] = [at, STEP.get()].map(|len| len / page_size().bytes().get());
            kept.purged += region.unmark(first..first + pages)?;
            region.write(first..first + pages)?;
            region.mark(first..first + pages)?;
        }
        at = (at + STEP.get()) % BESIDE.get();
    }
    kept.judged = region.map_or(Judged::default(), |region| region.judged);
    Ok(kept)
}

/// The volatile memory beside a working set of `len`.
fn region(beside: Beside, len: Bytes) -> Result<Option<Region>, Error> {
    let Some((which, is_capped)) = beside else { return Ok(None) };
    let options = Region::options().engine(which.engine());
    let rest = LIMIT.saturating_sub(len).saturating_sub(SLACK);
    let options = if is_capped { options.cap(rest) } else { options };
    Ok(Some(options.build(BESIDE)?))
}

fn read(file: &std::fs::File, block: &mut [u8], at: u64) -> Result<(), OsError> {
    file.read_exact_at(block, at).map_err(|e| OsError::new("pread", at.to_string(), e))
}
