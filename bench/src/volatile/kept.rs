//! Whether a working set is kept: a file of six tenths of the limit that is read at random, over
//! and over, beside volatile memory that wants the rest and half as much again.
//!
//! For each byte that becomes volatile [`READS`] of the working set are read.
//! What of it the kernel had dropped by then is looked up before each read, and counted by the
//! kernel too (`workingset_refault_file` of `memory.stat`, which counts all files). Beside: the
//! same reads with nothing else, and with as much page cache of another file in the place of the
//! volatile memory. The files are sparse, so that nobody waits for a device. Unit: pages.

use std::fmt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

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

/// What uses memory beside the working set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Beside {
    /// Nothing.
    Nothing,
    /// Volatile memory, of this engine.
    Volatile(Which),
    /// With a cap that leaves room for the working set.
    Capped(Which),
    /// Pages of another file.
    PageCache,
}

impl Beside {
    /// The engine, if there is one.
    pub(super) fn engine(self) -> Option<Which> {
        match self {
            Self::Volatile(which) | Self::Capped(which) => Some(which),
            Self::Nothing | Self::PageCache => None,
        }
    }
}

/// What a child is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    pub(super) beside: Beside,
    /// Times that something becomes volatile.
    pub(super) steps: u64,
    pub(super) dir: PathBuf,
    /// The group's `memory.stat`.
    pub(super) stat: PathBuf,
}

/// What it came to.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Kept {
    /// Pages of the working set that were read.
    pub(super) reads: u64,
    /// Those of them that were not in memory.
    pub(super) refaults: u64,
    /// As the kernel counts them, of all files.
    pub(super) kernel_refaults: u64,
    /// Pages of volatile memory that were lost.
    pub(super) purged: u64,
    /// Of all that was volatile.
    pub(super) judged: Judged,
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { reads, purged, kernel_refaults, .. } = self;
        write!(f, "of {reads} read, {purged} purged in the last run; the kernel counts ")?;
        write!(f, "{kernel_refaults} in all files")
    }
}

/// In the child.
pub(super) fn inside(plan: &Plan) -> Result<Kept, Error> {
    let len = Bytes::new(LIMIT.get() / 100 * WORKING_SET_PERCENT / STEP.get() * STEP.get());
    let working_set = nameless(&plan.dir, len)?;
    let cached = Cached::of(&working_set)?;
    let other = nameless(&plan.dir, BESIDE)?;
    let mut region = region(plan.beside, len)?.map(Marked::new);
    let mut bytes = vec![0; STEP.as_usize()];
    for at in (0..len.get() * WARM_UP).step_by(BLOCK.as_usize()) {
        read(&working_set, &mut bytes[..BLOCK.as_usize()], at % len.get())?;
    }
    let mut random = Random::new(5);
    let mut kept = Kept::default();
    let mut before = 0;
    let mut at = 0;
    // Until all that is beside has been used once, there is nothing to take it from.
    let begin = BESIDE.get() / STEP.get();
    for step in 0..begin + plan.steps {
        if step == begin {
            before = refaults(&plan.stat)?;
            kept = Kept::default();
        }
        for _ in 0..STEP.get() * READS / BLOCK.get() {
            let from = random.below(len.get() / BLOCK.get()) * BLOCK.get();
            kept.refaults += cached.absent(Bytes::new(from), BLOCK)?;
            read(&working_set, &mut bytes[..BLOCK.as_usize()], from)?;
            kept.reads += BLOCK.pages_up(page_size()).get();
        }
        if let Some(region) = &mut region {
            let [first, pages] = [at, STEP.get()].map(|len| len / page_size().bytes().get());
            kept.purged += region.unmark(first..first + pages)?;
            region.write(first..first + pages)?;
            region.mark(first..first + pages)?;
        } else if plan.beside == Beside::PageCache {
            read(&other, &mut bytes, at)?;
        }
        at = (at + STEP.get()) % BESIDE.get();
    }
    kept.kernel_refaults = refaults(&plan.stat)? - before;
    kept.judged = region.map_or(Judged::default(), |region| region.judged);
    Ok(kept)
}

/// The volatile memory beside a working set of `len`.
fn region(beside: Beside, len: Bytes) -> Result<Option<Region>, Error> {
    let Some(which) = beside.engine() else { return Ok(None) };
    let options = Region::options().engine(which.engine());
    let rest = LIMIT.saturating_sub(len).saturating_sub(SLACK);
    let options = if beside == Beside::Capped(which) { options.cap(rest) } else { options };
    Ok(Some(options.map(BESIDE)?))
}

fn read(file: &std::fs::File, block: &mut [u8], at: u64) -> Result<(), OsError> {
    file.read_exact_at(block, at).map_err(|e| OsError::new("pread", at.to_string(), e))
}

fn refaults(stat: &Path) -> Result<u64, OsError> {
    const KEY: &str = "workingset_refault_file ";
    let refused = |e| OsError::new("read", stat.display().to_string(), e);
    let text = std::fs::read_to_string(stat).map_err(refused)?;
    let found = text.lines().find_map(|line| line.strip_prefix(KEY)?.trim().parse().ok());
    let missing = || refused(std::io::Error::new(std::io::ErrorKind::InvalidData, KEY));
    found.ok_or_else(missing)
}
