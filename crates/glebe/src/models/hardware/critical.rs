//! [`Critical`] models restartable sequences as steps that a barrier can abort.
//!
//! A tenant thread locks its cpu for each step, which has at most one store. The barrier locks each
//! cpu in turn and aborts its sequence. So a sequence may stop after any store, and tenant and
//! barrier see each other's earlier stores.
#![allow(unsafe_code)] // Safety: callers of `fill` vouch for `len` bytes at `from`.

use std::cell::Cell;

use crate::reserve::words::{GranuleWord, OPEN_MASK};
use glebe_os::error::OsError;
use glebe_os::internal::sync::{fence, lock, AtomicU64, Mutex, Ordering};

pub(crate) const META_WORDS: usize = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    Refused,
    Lost,
    Aborted,
}

#[derive(Clone, Copy)]
pub(crate) struct Guard<'a> {
    pub(crate) word: &'a AtomicU64,
    pub(crate) mask: u64,
    pub(crate) expect: u64,
}

pub(crate) struct Fill<'a> {
    pub(crate) target: &'a AtomicU64,
    pub(crate) claim: u64,
    pub(crate) commit: u64,
    pub(crate) meta_at: &'a [AtomicU64; META_WORDS],
    pub(crate) meta: [u64; META_WORDS],
    pub(crate) to: &'a [AtomicU64],
    pub(crate) from: *const u8,
    pub(crate) len: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    Barrier,
    /// The kernel refuses the barrier.
    Refused,
    Reload,
    Closers,
    Epoch,
    Writers,
}

#[derive(Debug)]
pub(crate) struct Critical {
    /// For each cpu, true if its sequence was aborted; empty in [`Critical::counted`].
    cpus: Box<[Mutex<bool>]>,
    fault: Fault,
}

loom::thread_local! {
    static CPU: Cell<usize> = Cell::new(0);
}

pub(crate) fn run_on(cpu: usize) {
    CPU.with(|now| now.set(cpu));
}

type Step<T> = Result<T, Outcome>;

impl Critical {
    pub(crate) fn restartable(cpus: usize, fault: Fault) -> Self {
        Self { cpus: (0..cpus).map(|_| Mutex::new(false)).collect(), fault }
    }

    pub(crate) fn counted(fault: Fault) -> Self {
        Self::restartable(0, fault)
    }

    pub(crate) fn counts_writers(&self) -> bool {
        self.cpus.is_empty() && self.fault != Fault::Writers
    }

    pub(crate) fn barrier(&self) -> Result<(), OsError> {
        if self.fault == Fault::Refused {
            return Err(OsError::new("membarrier", "", std::io::Error::other("refused")));
        }
        if self.fault != Fault::Barrier {
            for cpu in &self.cpus {
                *lock(cpu) = true;
            }
        }
        fence(Ordering::SeqCst);
        Ok(())
    }

    fn cpu(&self) -> Option<&Mutex<bool>> {
        if self.cpus.is_empty() {
            return None;
        }
        Some(&self.cpus[CPU.with(Cell::get)])
    }

    fn begin(&self, guard: Guard<'_>) -> Step<()> {
        let Some(cpu) = self.cpu() else { return Ok(()) };
        let epoch = GranuleWord(u64::MAX).open_expect();
        let mask = match self.fault {
            Fault::Closers => guard.mask & epoch,
            Fault::Epoch => guard.mask & !epoch,
            _ => guard.mask,
        };
        assert_eq!(guard.mask, OPEN_MASK);
        let mut aborted = lock(cpu);
        *aborted = false;
        if guard.word.load(Ordering::Acquire) & mask == guard.expect & mask {
            Ok(())
        } else {
            Err(Outcome::Refused)
        }
    }

    fn step<T>(&self, act: impl FnOnce() -> Step<T>) -> Step<T> {
        let Some(cpu) = self.cpu() else { return act() };
        let aborted = lock(cpu);
        if *aborted {
            return Err(Outcome::Aborted);
        }
        act()
    }

    pub(crate) fn exchange(
        &self,
        guard: Guard<'_>,
        target: &AtomicU64,
        old: u64,
        new: u64,
    ) -> Outcome {
        let exchange = || {
            let done = target.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed);
            done.map(|_| Outcome::Done).map_err(|_| Outcome::Lost)
        };
        let (Ok(end) | Err(end)) = self.begin(guard).and_then(|()| self.step(exchange));
        end
    }

    /// # Safety
    /// `from` is readable for `len` bytes.
    pub(crate) unsafe fn fill(&self, guard: Guard<'_>, fill: &Fill<'_>) -> Outcome {
        // SAFETY: the caller vouches for this slice.
        let bytes = unsafe { std::slice::from_raw_parts(fill.from, fill.len) };
        let (Ok(end) | Err(end)) = self.begin(guard).and_then(|()| self.copy(fill, bytes));
        end
    }

    fn copy(&self, fill: &Fill<'_>, bytes: &[u8]) -> Step<Outcome> {
        self.step(|| {
            let now = fill.target.load(Ordering::Relaxed);
            if now != fill.claim && self.fault != Fault::Reload {
                return Err(Outcome::Lost);
            }
            fence(Ordering::SeqCst); // orders the claim before the bytes
            Ok(())
        })?;
        let store = |at: &AtomicU64, word| {
            self.step(|| {
                at.store(word, Ordering::Relaxed);
                Ok(())
            })
        };
        for (at, word) in fill.meta_at.iter().zip(fill.meta) {
            store(at, word)?;
        }
        for (at, word) in fill.to.iter().zip(bytes.chunks_exact(size_of::<u64>())) {
            store(at, u64::from_ne_bytes(word.try_into().expect("eight bytes")))?;
        }
        self.step(|| {
            fill.target.store(fill.commit, Ordering::Release);
            Ok(Outcome::Done)
        })
    }
}
