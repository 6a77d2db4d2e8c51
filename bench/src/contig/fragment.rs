//! A child of this program that takes the machine's memory in small pages: `Fragmenter` gives every
//! other one back, so that what is free lies in single pages; `Busy` writes to them at random,
//! checks what it wrote, and tells how long it was kept waiting. Both last until dropped.
//!
//! The child ends before anybody is killed for it: it stops taking where `LEFT`
//! would no longer be available to the machine or to its memory cgroup, is the first that the
//! kernel would kill, and dies with its parent. What it holds the kernel may move: a machine that
//! compacts has long runs again after some time, which is what on-demand requests then pay for.
//! Units: bytes, microseconds. Source: proc_pid_oom_score_adj(5), prctl(2).
//!
//! # Safety
//! prctl and getppid take no pointer; the memory is mapped here and nobody else refers to it.
#![allow(unsafe_code)]

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use glebe::error::OsError;
use glebe::sys::cgroup::{Limits, Resource};
use glebe::sys::madvise::{advise, Advice};
use glebe::sys::mmap::{map, Backing};
use glebe::sys::{meminfo, page_size};
use glebe::units::Bytes;

use super::memory::LEFT;
use crate::reserve::keyed::Random;
use crate::{clock, interrupt};

/// The hidden subcommand that is the child: its parent's number, bytes to take at most, and
/// `--busy` if it shall write to them.
pub const SUBCOMMAND: &str = "fragment";
const BUSY: &str = "--busy";

/// Writes between two looks at the clock.
const WRITES: u64 = 64;

/// Bytes taken between two looks at what is left.
const STEP: Bytes = Bytes::mib(64);

/// The child, until it is dropped.
#[derive(Debug)]
struct Taking(Child);

impl Taking {
    /// Starts it and waits until it has taken up to `most` bytes; how much it holds then.
    fn start(most: Bytes, mode: Option<&str>) -> Result<(Self, Bytes, Answers), OsError> {
        let mut command = Command::new("/proc/self/exe");
        let (pid, most) = (std::process::id().to_string(), most.get().to_string());
        command.arg0("glebe").args([SUBCOMMAND, &pid, &most]).args(mode);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut started = Self(command.spawn().map_err(failed)?);
        let Some(answers) = started.0.stdout.take() else {
            return Err(failed(io::ErrorKind::BrokenPipe.into()));
        };
        let mut answers = BufReader::new(answers).lines();
        for line in answers.by_ref() {
            interrupt::check();
            match line.map_err(failed)?.split_once(' ') {
                Some(("held", bytes)) => {
                    let bytes = bytes.parse().map_err(|e| failed(io::Error::other(e)))?;
                    return Ok((started, Bytes::new(bytes), answers));
                }
                Some(("taken", _)) => {}
                _ => break,
            }
        }
        Err(failed(io::Error::other("it ended early")))
    }
}

type Answers = io::Lines<BufReader<ChildStdout>>;

fn failed(error: io::Error) -> OsError {
    OsError::new("execve", "/proc/self/exe", error)
}

impl Drop for Taking {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Memory in single pages for as long as this lives.
#[derive(Debug)]
pub(super) struct Fragmenter {
    _child: Taking,
    /// Bytes of small pages that are held, as many again being free between them.
    pub(super) held: Bytes,
}

impl Fragmenter {
    /// Starts the child and waits until it has taken up to `most` bytes and given half back.
    ///
    /// # Errors
    /// If it cannot be started, or ends early.
    pub(super) fn start(most: Bytes) -> Result<Self, OsError> {
        let (child, held, _) = Taking::start(most, None)?;
        Ok(Self { _child: child, held })
    }
}

/// A program that writes to its memory at random, for as long as this lives.
#[derive(Debug)]
pub(crate) struct Busy {
    child: Taking,
    answers: Answers,
    pub(crate) held: Bytes,
}

/// What a busy program did since it was asked last.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Told {
    /// Words that were not as written.
    pub(crate) wrong: u64,
    /// The longest that some writes took.
    pub(crate) worst_us: f64,
}

impl Busy {
    /// Starts the child and waits until it has taken up to `most` bytes.
    ///
    /// # Errors
    /// If it cannot be started, or ends early.
    pub(crate) fn start(most: Bytes) -> Result<Self, OsError> {
        let (child, held, answers) = Taking::start(most, Some(BUSY))?;
        Ok(Self { child, answers, held })
    }

    /// What it did since this was called last.
    ///
    /// # Errors
    /// If it has ended.
    pub(crate) fn told(&mut self) -> Result<Told, OsError> {
        let asked = self.child.0.stdin.as_mut().map(|stdin| stdin.write_all(b"\n"));
        asked.transpose().map_err(failed)?;
        let line = self.answers.next().transpose().map_err(failed)?.unwrap_or_default();
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["wrong", wrong, "worst_us", worst] => {
                let (wrong, worst_us) = (wrong.parse().ok(), worst.parse().ok());
                wrong.zip(worst_us).map(|(wrong, worst_us)| Told { wrong, worst_us })
            }
            _ => None,
        }
        .ok_or_else(|| failed(io::Error::other(format!("it ended early: {line}"))))
    }
}

/// In the child: takes, gives every other page back unless it is `busy` with them, says so, and
/// goes on until it is ended.
///
/// # Errors
/// What the kernel refuses, or that the parent is gone.
pub fn inside(parent: u32, most: u64, busy: bool, out: &mut dyn Write) -> Result<(), OsError> {
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
    if busy {
        tell(out, "held", taken)?;
        return write_at_random(at, taken, out);
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

/// Writes a word of each page at random: its number, and how often it was written. Tells what it
/// saw for each line that comes in, until no more can.
fn write_at_random(at: usize, len: Bytes, out: &mut dyn Write) -> Result<(), OsError> {
    let pages = len.pages_down(page_size());
    let (asked, ended) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let (asks, ends) = (Arc::clone(&asked), Arc::clone(&ended));
    let listener = std::thread::spawn(move || {
        for _ in io::stdin().lines() {
            asks.fetch_add(1, Ordering::Relaxed);
        }
        ends.store(true, Ordering::Relaxed);
    });
    let mut times = vec![0_u32; pages.as_usize()];
    let mut random = Random::new(1);
    let (mut wrong, mut worst, mut answered) = (0, Duration::ZERO, 0);
    while !times.is_empty() && !ended.load(Ordering::Relaxed) {
        let begin = clock::wall();
        for _ in 0..WRITES {
            let page = random.below(pages.get());
            let count = &mut times[page as usize];
            let word = (at + page as usize * page_size().bytes().as_usize()) as *mut u64;
            let value = |count: u32| (u64::from(count) << 32) + u64::from(count > 0) * page;
            // SAFETY: the first word of a page of the caller's mapping, which is writable, and
            // which nobody else has a pointer to.
            wrong += u64::from(unsafe { word.read_volatile() } != value(*count));
            *count += 1;
            // SAFETY: as above.
            unsafe { word.write_volatile(value(*count)) };
        }
        worst = worst.max(clock::wall() - begin);
        if asked.load(Ordering::Relaxed) > answered {
            answered += 1;
            let told = writeln!(out, "wrong {wrong} worst_us {}", worst.as_micros());
            told.and_then(|()| out.flush())
                .map_err(|e| OsError::new("write", "standard output", e))?;
            (wrong, worst) = (0, Duration::ZERO);
        }
    }
    let _ = listener.join();
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
        assert!(inside(std::process::id(), 1 << 20, false, &mut out).is_err());
        assert!(out.is_empty());
    }
}
