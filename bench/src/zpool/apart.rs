//! What a process holds whose objects come from an `Allocator`, found in a process apart: this
//! program started again, in which nothing else happens.
//!
//! Units: bytes of resident memory, beyond what was resident before the first object.
//! Source: smaps_rollup in proc(5).

use std::fs;
use std::io::{self, Write};
use std::time::Duration;

use glebe::error::OsError;
use serde::{Deserialize, Serialize};

use super::malloc::{Allocator, Block};
use super::trace::{Change, Trace};
use super::workload::{Step, Workload};
use super::Error;
use crate::child::Child;

const PATIENCE: Duration = Duration::from_secs(120);

/// What to hold.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Job {
    /// By whose malloc.
    pub(super) allocator: Allocator,
    /// Of the trace, one run of blocks in so many.
    pub(super) nth: usize,
    /// Random deletion, not that of directories.
    pub(super) halves: bool,
}

/// What is held after all steps.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Resident {
    pub(super) bytes: u64,
    /// Objects that came back different.
    pub(super) wrong: u64,
}

/// In the child: does the job and writes the answer.
///
/// # Errors
/// Words that are no job, or what the kernel refuses.
pub fn inside(job: &str, out: &mut dyn Write) -> Result<(), Error> {
    let job: Job = serde_json::from_str(job)?;
    let workload = Workload::of_trace(&Trace::load()?, job.nth);
    let steps = if job.halves { &workload.halves } else { &workload.directories };
    let answer = serde_json::to_string(&hold(&workload, steps, job.allocator)?)?;
    Ok(writeln!(out, "{answer}").and_then(|()| out.flush())?)
}

fn hold(workload: &Workload, steps: &[Step], allocator: Allocator) -> Result<Resident, Error> {
    // Written, so that it is resident before.
    let mut blocks: Vec<Option<(Block, Change)>> = (0..workload.blocks).map(|_| None).collect();
    // What loading the trace left in the heap that this program uses.
    Allocator::Glibc.trim();
    let before = resident()?;
    let mut wrong = 0;
    for step in steps {
        for &change in &step.changes {
            let mut new = None;
            if change.len > 0 {
                let copy = allocator.copy(workload.object(change, &mut [])?);
                new = Some((
                    copy.ok_or(io::ErrorKind::OutOfMemory).map_err(io::Error::from)?,
                    change,
                ));
            }
            if let Some((old, change)) = std::mem::replace(&mut blocks[change.block], new) {
                wrong += u64::from(workload.object(change, &mut [])? != old.bytes());
            }
        }
        allocator.trim();
    }
    Ok(Resident { bytes: resident()?.saturating_sub(before), wrong })
}

/// Bytes of this process that are in memory.
fn resident() -> Result<u64, OsError> {
    const PATH: &str = "/proc/self/smaps_rollup";
    let failed = |e| OsError::new("read", PATH, e);
    let text = fs::read_to_string(PATH).map_err(failed)?;
    let line = text.lines().find_map(|line| line.strip_prefix("Rss:"));
    let kib = line.and_then(|rest| rest.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    Ok(kib.ok_or_else(|| failed(io::ErrorKind::InvalidData.into()))? << 10)
}

/// Has a child do `job`.
pub(super) fn ask(job: Job) -> Result<Resident, Error> {
    let child = Child::start("apart", &[&serde_json::to_string(&job)?])?;
    let answer = child.wait(PATIENCE)?.answer()?;
    Ok(serde_json::from_str(&answer)?)
}
