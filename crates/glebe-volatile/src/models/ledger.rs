//! [`Ledger`] models a shared file of one granule and its locks.

use std::io;

use glebe_os::error::OsError;
use glebe_os::extent::Extent;
use glebe_os::internal::sync::{MappedWord, Ordering};

const HOLDERS: usize = 2;
pub(crate) const CONTENTS: u64 = 7;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Killed {
    Never,
    BeforePunch,
    AfterPunch,
}

#[derive(Debug)]
pub(crate) struct Ledger {
    word: MappedWord,
    counts: [MappedWord; HOLDERS],
    alive: [MappedWord; HOLDERS],
    purge_lock: MappedWord,
    pub(crate) data: MappedWord,
}

impl Ledger {
    pub(crate) fn new(word: u64) -> Self {
        Self {
            word: MappedWord::new(word),
            counts: std::array::from_fn(|_| MappedWord::new(0)),
            alive: std::array::from_fn(|_| MappedWord::new(1)),
            purge_lock: MappedWord::new(0),
            data: MappedWord::new(CONTENTS),
        }
    }

    pub(crate) fn word(&self, _index: u64) -> &MappedWord {
        &self.word
    }

    pub(crate) fn counts(&self, holder: u32, _index: u64) -> &MappedWord {
        &self.counts[holder as usize]
    }

    pub(crate) fn holders(&self) -> u32 {
        HOLDERS as u32
    }

    pub(crate) fn is_used(&self, _holder: u32) -> bool {
        true
    }

    #[allow(clippy::unnecessary_wraps)]
    pub(crate) fn has_counts(&self, _holder: u32, _index: u64) -> Result<bool, OsError> {
        Ok(true)
    }

    #[allow(clippy::unnecessary_wraps)]
    pub(crate) fn is_alive(&self, holder: u32) -> Result<bool, OsError> {
        Ok(self.alive[holder as usize].load(Ordering::Acquire) != 0)
    }

    pub(crate) fn kill(&self, holder: u32) {
        self.alive[holder as usize].store(0, Ordering::Release);
    }

    /// A killed thread gets an error and must end.
    pub(crate) fn punch(&self, granules: Extent) -> Result<(), OsError> {
        let killed = KILLED.with(std::cell::Cell::get);
        if killed != Killed::BeforePunch && granules.len() > 0 {
            self.data.store(0, Ordering::SeqCst);
        }
        match killed {
            Killed::Never => Ok(()),
            _ => Err(OsError::new("fallocate", "killed", io::ErrorKind::Interrupted.into())),
        }
    }

    pub(crate) fn step(&self) {}

    pub(crate) fn try_lock(&self) -> bool {
        let (ok, failed) = (Ordering::AcqRel, Ordering::Acquire);
        self.purge_lock.compare_exchange(0, 1, ok, failed).is_ok()
    }

    pub(crate) fn unlock(&self) {
        self.purge_lock.store(0, Ordering::Release);
    }
}

loom::thread_local!(static KILLED: std::cell::Cell<Killed> = std::cell::Cell::new(Killed::Never));

pub(crate) fn be_killed(killed: Killed) {
    KILLED.with(|cell| cell.set(killed));
}
