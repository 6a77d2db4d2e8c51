//! `Fragmenter`: a child of this program that takes the machine's memory in small pages and gives
//! every other one back, so that what is free lies in single pages, until it is dropped.
//!
//! It ends before anybody is killed for it: it stops taking where `LEFT`
//! would no longer be available to the machine or to its memory cgroup, is the first that the
//! kernel would kill, and dies with its parent. What it holds the kernel may move: a machine that
//! compacts has long runs again after some time, which is what on-demand requests then pay for.
//! Units: bytes. Source: proc_pid_oom_score_adj(5), prctl(2).
//!
//! # Safety
//! prctl and getppid take no pointer; the memory is mapped here and nobody refers to it.
#![allow(unsafe_code)]

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use glebe::error::OsError;
use glebe::sys::cgroup::{Limits, Resource};
use glebe::sys::madvise::{advise, Advice};
use glebe::sys::mmap::{map, Backing};
use glebe::sys::{meminfo, page_size};
use glebe::units::Bytes;

use super::memory::LEFT;
use crate::interrupt;

/// The hidden subcommand that is the child: its parent's number, and bytes to take at most.
pub const SUBCOMMAND: &str = "fragment";

/// Bytes taken between two looks at what is left.
const STEP: Bytes = Bytes::mib(64);

/// Memory in single pages for as long as this lives.
#[derive(Debug)]
pub(super) struct Fragmenter {
    child: Child,
    /// Bytes of small pages that are held, as many again being free between them.
    pub(super) held: Bytes,
}

impl Fragmenter {
    /// Starts the child and waits until it has taken up to `most` bytes and given half back.
    ///
    /// # Errors
    /// If it cannot be started, or ends early.
    pub(super) fn start(most: Bytes) -> Result<Self, OsError> {
        let failed = |e| OsError::new("execve", "/proc/self/exe", e);
        let mut command = Command::new("/proc/self/exe");
        let (pid, most) = (std::process::id().to_string(), most.get().to_string());
        command.arg0("glebe").args([SUBCOMMAND, &pid, &most]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let child = command.spawn().map_err(failed)?;
        let mut started = Self { child, held: Bytes::ZERO };
        let Some(answers) = started.child.stdout.take() else {
            return Err(failed(io::ErrorKind::BrokenPipe.into()));
        };
        for line in BufReader::new(answers).lines() {
            interrupt::check();
            match line.map_err(failed)?.split_once(' ') {
                Some(("held", bytes)) => {
                    let bytes = bytes.parse().map_err(|e| failed(io::Error::other(e)))?;
                    started.held = Bytes::new(bytes);
                    return Ok(started);
                }
                Some(("taken", _)) => {}
                _ => break,
            }
        }
        Err(failed(io::Error::other("it ended early")))
    }
}

impl Drop for Fragmenter {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// In the child: takes, gives back, says so, and waits to be ended.
///
/// # Errors
/// What the kernel refuses, or that the parent is gone.
pub fn inside(parent: u32, most: u64, out: &mut dyn Write) -> Result<(), OsError> {
    // SAFETY: no pointers.
    let is = unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::getppid()
    };
    if is != parent as libc::pid_t {
        let gone = io::Error::other("the parent is gone");
        return Err(OsError::new("getppid", parent.to_string(), gone));
    }
    const SCORE: &str = "/proc/self/oom_score_adj";
    std::fs::write(SCORE, "1000").map_err(|e| OsError::new("write", SCORE, e))?;
    let tell = |out: &mut dyn Write, word: &str, bytes: Bytes| {
        let told = writeln!(out, "{word} {}", bytes.get()).and_then(|()| out.flush());
        told.map_err(|e| OsError::new("write", "standard output", e))
    };
    let limits = Limits::find(Path::new("/"), Resource::Memory)?;
    let most = Bytes::new(most).min(meminfo::available()?);
    let len = most.pages_down(page_size()).bytes(page_size());
    if len == Bytes::ZERO {
        return tell(out, "held", Bytes::ZERO);
    }
    let at = map(len, Backing::Ordinary)?;
    // SAFETY: this function's own mapping, of which nobody has a pointer; so below.
    let advised = unsafe { advise(at, len, Advice::NoHugePage) };
    if let Err(error) = advised {
        // A kernel without huge pages has none to refuse.
        writeln!(io::stderr(), "glebe: {error}").ok();
    }
    let mut taken = Bytes::ZERO;
    while taken < len {
        let step = STEP.min(len - taken);
        let in_group = limits.tightest()?.map(|limit| limit.headroom());
        if !may_take(step, meminfo::available()?, in_group) {
            break;
        }
        // SAFETY: see above.
        if unsafe { advise(at + taken.as_usize(), step, Advice::PopulateWrite) }.is_err() {
            break;
        }
        taken = taken + step;
        tell(out, "taken", taken)?;
    }
    let page = page_size().bytes();
    let mut given = Bytes::ZERO;
    for offset in (0..taken.get()).step_by(2 * page.as_usize()) {
        // SAFETY: see above.
        unsafe { advise(at + offset as usize, page, Advice::DontNeed)? };
        given = given + page;
    }
    tell(out, "held", taken - given)?;
    // Until the parent closes its end, or kills.
    let _ = io::stdin().read_to_end(&mut Vec::new());
    Ok(())
}

/// Whether the machine and the group have what must be left after `step` more.
fn may_take(step: Bytes, available: Bytes, in_group: Option<Bytes>) -> bool {
    let enough = |has: Bytes| has.saturating_sub(step) >= LEFT;
    enough(available) && in_group.is_none_or(enough)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_must_be_left_is_left_to_the_machine_and_to_the_group() {
        let just = LEFT + STEP;
        let less = just - Bytes::new(1);
        assert!(may_take(STEP, just, None) && may_take(STEP, just, Some(just)));
        assert!(!may_take(STEP, less, None));
        assert!(!may_take(STEP, just, Some(less)) && !may_take(STEP, less, Some(just)));
        assert!(!may_take(STEP, Bytes::ZERO, None));
    }

    #[test]
    fn a_child_of_nobody_takes_nothing() {
        let mut out = Vec::new();
        assert!(inside(std::process::id(), 1 << 20, &mut out).is_err());
        assert!(out.is_empty());
    }
}
