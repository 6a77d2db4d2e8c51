//! Whether a working set is kept: files that are read over and over, six tenths of the limit, beside
//! volatile memory that wants the rest and half as much again.
//!
//! What the kernel drops of them is read again, and counted by the kernel as refaults
//! (`memory.stat`). Beside: the same reads with nothing else, and with as much page cache of another
//! file in the place of the volatile memory. The files are sparse, so that nobody waits for a
//! device. Unit: pages.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use glebe::error::OsError;
use glebe::sys::page_size;
use glebe::units::Bytes;
use glebe::volatile::Priority;
use serde::{Deserialize, Serialize};

use super::{Error, Which};
use crate::pressure::nameless;

pub(super) const LIMIT: Bytes = Bytes::mib(96);
/// Of the limit, in percent.
const WORKING_SET_PERCENT: u64 = 60;
/// With the working set half as much again as the limit.
const BESIDE: Bytes = Bytes::mib(80);
const BLOCK: Bytes = Bytes::mib(1);
/// Passes over the working set before refaults count.
const WARM_UP: u64 = 6;

/// What uses memory beside the working set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Beside {
    /// Nothing.
    Nothing,
    /// Volatile memory, of this engine.
    Volatile(Which),
    /// Pages of another file.
    PageCache,
}

/// What a child is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    pub(super) beside: Beside,
    /// Over the working set.
    pub(super) passes: u64,
    pub(super) dir: PathBuf,
    /// The group's `memory.stat`.
    pub(super) stat: PathBuf,
}

/// What it came to.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Kept {
    /// Pages of the working set that were read.
    pub(super) reads: u64,
    /// Those of them that the kernel had dropped; with page cache beside, its refaults too.
    pub(super) refaults: u64,
    /// Pages of volatile memory that were purged.
    pub(super) purged: u64,
}

/// In the child.
pub(super) fn inside(plan: &Plan) -> Result<Kept, Error> {
    let len = Bytes::new(LIMIT.get() / 100 * WORKING_SET_PERCENT / BLOCK.get() * BLOCK.get());
    let working_set = nameless(&plan.dir, len)?;
    let other = nameless(&plan.dir, BESIDE)?;
    let region = match plan.beside {
        Beside::Volatile(which) => Some(which.map(BESIDE)?),
        Beside::Nothing | Beside::PageCache => None,
    };
    let mut block = vec![0; BLOCK.as_usize()];
    let mut kept = Kept { reads: 0, refaults: 0, purged: 0 };
    let mut before = 0;
    let mut beside_at = 0;
    for pass in 0..WARM_UP + plan.passes {
        if pass == WARM_UP {
            before = refaults(&plan.stat)?;
            kept.purged = 0;
        }
        for at in (0..len.get()).step_by(block.len()) {
            read(&working_set, &mut block, at)?;
            let range = Bytes::new(beside_at)..Bytes::new(beside_at + BLOCK.get());
            if let Some(region) = &region {
                kept.purged += region.unmark(range.clone())?.pages().get();
                block.fill(0x5a);
                region.write(range.start, &block)?;
                region.mark(range, Priority::NORMAL)?;
            } else if plan.beside == Beside::PageCache {
                read(&other, &mut block, beside_at)?;
            }
            beside_at = (beside_at + BLOCK.get()) % BESIDE.get();
        }
    }
    kept.reads = plan.passes * len.pages_up(page_size()).get();
    kept.refaults = refaults(&plan.stat)? - before;
    Ok(kept)
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
