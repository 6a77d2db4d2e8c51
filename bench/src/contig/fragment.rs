//! A child that takes the machine's memory in base pages. The task `fragment` gives every other
//! page back, which leaves free memory in single pages. The task `busy` writes to its pages at
//! random and checks them.
//!
//! The child leaves [`LEFT`] available to the machine and to its memory cgroup, and asks the kernel
//! to kill it first if memory runs out. The kernel may move the pages. Unit: bytes. Source:
//! proc_pid_oom_score_adj(5).
//!
//! # Safety
//! The child gives back only its own memory, and does not read it afterwards.
#![allow(unsafe_code)]

use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::mpsc::{self, TryRecvError};

use glebe::internal::sys::machine::cgroup::{Limits, Resource};
use glebe::internal::sys::machine::meminfo;
use glebe::internal::sys::page_size;
use glebe::units::Bytes;
use memmap2::{Advice, MmapMut, UncheckedAdvice};

use crate::child::Child;
use crate::memory::LEFT;
use crate::reserve::keyed::Random;
use crate::{clock, Outcome};

/// Writes between two checks whether the parent has sent a line.
const WRITES: u64 = 64;
const STEP: Bytes = Bytes::mib(64);

pub(crate) struct Taker {
    child: Child,
    /// Bytes held. With `fragment`, about as many bytes are free between the held pages.
    pub(crate) held: Bytes,
}

impl Taker {
    /// Starts `task` with up to `most` bytes, and waits until it has taken them.
    pub(crate) fn new(task: &str, most: Bytes) -> Outcome<Self> {
        let mut child = Child::start(task, &[&most.get().to_string()])?;
        let line = child.line()?.unwrap_or_default();
        let held = line.strip_prefix("held ").ok_or("a child of this program ended early")?;
        Ok(Self { child, held: Bytes::new(held.parse()?) })
    }

    /// Asks a `busy` child for the number of wrong words, and the longest time of [`WRITES`] writes
    /// in microseconds, since the last call.
    pub(crate) fn told(&mut self) -> Outcome<(u64, f64)> {
        self.child.tell("")?;
        let line = self.child.line()?.unwrap_or_default();
        let (wrong, worst) = line.split_once(' ').ok_or("the busy program ended early")?;
        Ok((wrong.parse()?, worst.parse()?))
    }
}

/// Takes memory in the child, prints how many bytes it holds, and keeps them until the parent
/// closes the pipe.
pub(crate) fn inside(most: u64, busy: bool, out: &mut dyn Write) -> Outcome {
    fs::write("/proc/self/oom_score_adj", "1000")?;
    let limits = Limits::find(Path::new("/"), Resource::Memory)?;
    let page = page_size();
    let len = Bytes::new(most).min(meminfo::available()?).pages_down(page).bytes(page).as_usize();
    if len == 0 {
        return Ok(writeln!(out, "held 0")?);
    }
    let mut memory = MmapMut::map_anon(len)?;
    // A kernel without transparent huge pages refuses the advice, and does not need it.
    let _ = memory.advise(Advice::NoHugePage);
    let mut taken = 0;
    while taken < len {
        let step = STEP.as_usize().min(len - taken);
        let in_group = limits.tightest()?.map(|limit| limit.headroom());
        if !may_take(Bytes::new(step as u64), meminfo::available()?, in_group)
            || memory.advise_range(Advice::PopulateWrite, taken, step).is_err()
        {
            break;
        }
        taken += step;
    }
    if busy {
        writeln!(out, "held {taken}")?;
        return write_at_random(&mut memory[..taken], out);
    }
    let page = page.bytes().as_usize();
    for offset in (0..taken).step_by(2 * page) {
        // SAFETY: this program has not written to the page, and does not read it afterwards.
        unsafe { memory.unchecked_advise_range(UncheckedAdvice::DontNeed, offset, page)? };
    }
    writeln!(out, "held {}", taken - (taken / page).div_ceil(2) * page)?;
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Writes the page number and a count of writes to the first word of random pages. Answers each
/// line of standard input with the number of wrong words and the longest time of [`WRITES`] writes.
fn write_at_random(memory: &mut [u8], out: &mut dyn Write) -> Outcome {
    let page = page_size().bytes().as_usize();
    let (asks, asked) = mpsc::channel();
    std::thread::spawn(move || io::stdin().lines().try_for_each(|_| asks.send(())));
    let mut times = vec![0_u32; memory.len() / page];
    let mut random = Random::new(1);
    let (mut wrong, mut worst_us) = (0, 0.0_f64);
    while !times.is_empty() {
        let begin = clock::wall();
        for _ in 0..WRITES {
            let nth = random.below(times.len() as u64);
            let count = &mut times[nth as usize];
            let word = &mut memory[nth as usize * page..][..size_of::<u64>()];
            let value =
                |count: u32| ((u64::from(count) << 32) + u64::from(count > 0) * nth).to_ne_bytes();
            wrong += u64::from(*word != value(*count));
            *count += 1;
            word.copy_from_slice(&value(*count));
        }
        worst_us = worst_us.max(clock::micros(clock::wall() - begin));
        match asked.try_recv() {
            Ok(()) => {
                writeln!(out, "{wrong} {worst_us}")?;
                (wrong, worst_us) = (0, 0.0);
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => break,
        }
    }
    Ok(())
}

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
}
