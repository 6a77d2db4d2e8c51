//! What a process holds whose objects come from an `Allocator`, found in a process apart: this
//! program started again, in which nothing else happens.
//!
//! Units: bytes of resident memory, beyond what was resident before the first object.
//! Source: smaps_rollup in proc(5), prctl(2).
//!
//! # Safety
//! prctl and getppid take no pointer here.
#![allow(unsafe_code)]

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use glebe::error::OsError;
use serde::{Deserialize, Serialize};

use super::malloc::{Allocator, Block};
use super::trace::{Change, Trace};
use super::workload::{Step, Workload};
use super::Error;
use crate::{clock, interrupt};

/// The hidden subcommand that does a job: the parent's number, the job.
pub const SUBCOMMAND: &str = "apart";

const LOOK_EVERY: Duration = Duration::from_millis(10);
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

/// Resident memory after each step.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Resident {
    pub(super) bytes: Vec<u64>,
    /// Objects that came back different.
    pub(super) wrong: u64,
}

/// In the child: does the job and writes the answer.
///
/// # Errors
/// Words that are no job, or what the kernel refuses.
pub fn inside(parent: u32, job: &str, out: &mut dyn Write) -> Result<(), Error> {
    // SAFETY: no pointers.
    let is = unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::getppid()
    };
    if is != parent as libc::pid_t {
        let gone = io::Error::other("the parent is gone");
        return Err(OsError::new("getppid", parent.to_string(), gone).into());
    }
    let job: Job = serde_json::from_str(job)?;
    let workload = Workload::of_trace(&Trace::load()?, job.nth);
    let steps = if job.halves { &workload.halves } else { &workload.directories };
    let mut wrong = 0;
    let bytes = hold(&workload, steps, job.allocator, &mut wrong)?;
    let answer = serde_json::to_string(&Resident { bytes, wrong })?;
    Ok(writeln!(out, "{answer}").and_then(|()| out.flush())?)
}

fn hold(
    workload: &Workload,
    steps: &[Step],
    allocator: Allocator,
    wrong: &mut u64,
) -> Result<Vec<u64>, Error> {
    // Written, so that it is resident before.
    let mut blocks: Vec<Option<(Block, Change)>> = (0..workload.blocks).map(|_| None).collect();
    // What loading the trace left in the heap that this program uses.
    Allocator::Glibc.trim();
    let before = resident()?;
    let mut after = Vec::with_capacity(steps.len());
    for step in steps {
        for &change in &step.changes {
            let new = match change.len {
                0 => None,
                _ => allocator.copy(workload.object(change, &mut [])?),
            };
            if change.len > 0 && new.is_none() {
                return Err(io::Error::from(io::ErrorKind::OutOfMemory).into());
            }
            let new = new.map(|copy| (copy, change));
            if let Some((old, change)) = std::mem::replace(&mut blocks[change.block], new) {
                *wrong += u64::from(workload.object(change, &mut [])? != old.bytes());
            }
        }
        allocator.trim();
        after.push(resident()?.saturating_sub(before));
    }
    Ok(after)
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

/// Ends with its parent's interest in it.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Has a child do `job`.
pub(super) fn ask(job: Job) -> Result<Resident, Error> {
    let failed = |e| OsError::new("execve", "/proc/self/exe", e);
    let mut command = Command::new("/proc/self/exe");
    let (pid, words) = (std::process::id().to_string(), serde_json::to_string(&job)?);
    command.arg0("glebe").args([SUBCOMMAND, &pid, &words]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let mut running = Running(command.spawn().map_err(failed)?);
    let start = clock::wall();
    let status = loop {
        interrupt::check();
        match running.0.try_wait().map_err(failed)? {
            Some(status) => break status,
            None if clock::wall() - start > PATIENCE => {
                return Err(failed(io::ErrorKind::TimedOut.into()).into());
            }
            None => std::thread::sleep(LOOK_EVERY),
        }
    };
    let mut answer = String::new();
    // Less than a pipe holds, so that the child never waited for this.
    if let Some(out) = running.0.stdout.as_mut() {
        out.read_to_string(&mut answer)?;
    }
    match status.success() {
        true => Ok(serde_json::from_str(&answer)?),
        false => Err(failed(io::Error::other(format!("it ended with {status}"))).into()),
    }
}
