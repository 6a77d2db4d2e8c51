//! *Claims*: numbers that processes hold for as long as they live; and records of any length, in a
//! file of their own beside the lock.
//!
//! A claim is a lock on one byte of the lock file, far behind the lock. A mapping that fork does
//! not pass on holds it ([`Tied`]). It ends with its process, also by SIGKILL and in any namespace,
//! and no close ends it. A process that is killed may lose the lock a moment before its claim. A
//! second copy of this library in the process has a claim of its own.
//!
//! ```text
//! word   generation of the process, 32 bits | its number, 32 bits     0 = none
//! ```

use super::{LockFile, Locked};
use crate::error::OsError;
use crate::sync::Ordering;
use crate::sys::file;
use crate::sys::fork::ForkGuard;
use crate::sys::ofd_lock::{is_locked, Tied};

/// The most bytes of a record that are read.
const RECORD_MAX: u64 = 1 << 20;
/// Where the bytes of claims begin.
const FIRST: u64 = 1 << 40;

/// The byte of claim `number`.
fn byte(number: u32) -> u64 {
    FIRST + u64::from(number)
}

/// The caller has another lock, which keeps others from this file.
impl LockFile {
    /// The whole record; empty where there is none. The file is made if it is not there.
    pub(crate) fn text(&'static self) -> Result<Vec<u8>, OsError> {
        let file = self.opened()?;
        let len = file::metadata(&file).map_err(|source| self.refused("fstat", source))?.len();
        let mut bytes = vec![0; len.min(RECORD_MAX) as usize];
        let read = file::read_some_at(&file, &mut bytes, 0);
        bytes.truncate(read.map_err(|source| self.refused("pread", source))?);
        Ok(bytes)
    }

    /// Replaces part of the record, as a whole where it lies within one page.
    pub(crate) fn set_text(&'static self, at: u64, bytes: &[u8]) -> Result<(), OsError> {
        let file = self.opened()?;
        file::write_at(&file, bytes, at).map_err(|source| self.refused("pwrite", source))
    }

    /// Cuts the record off behind `len` bytes.
    pub(crate) fn cut_text(&'static self, len: u64) -> Result<(), OsError> {
        let file = self.opened()?;
        file::set_len(&file, len).map_err(|source| self.refused("ftruncate", source))
    }
}

impl Locked {
    /// The number that this process has claimed last. A forked child has none of its parent's.
    pub(crate) fn own_claim(&self) -> Option<u32> {
        let word = self.inside.file.claim.load(Ordering::Acquire);
        let is_own = word != 0 && word >> 32 == generation();
        is_own.then_some(word as u32)
    }

    /// Claims a number for this process until it ends, unless it is claimed.
    pub(crate) fn claim(&self, number: u32) -> Result<bool, OsError> {
        let file = self.inside.file;
        let Some(tied) = Tied::try_take_anyway(|| file.opened(), byte(number))? else {
            return Ok(false);
        };
        tied.keep();
        file.claim.store(generation() << 32 | u64::from(number), Ordering::Release);
        Ok(true)
    }

    /// Whether a process has claimed a number, this one or another.
    pub(crate) fn is_claimed(&self, number: u32) -> Result<bool, OsError> {
        is_locked(self.description.file(), byte(number)..byte(number) + 1)
    }
}

/// The lower half of the generation.
fn generation() -> u64 {
    ForkGuard::new().generation() & u64::from(u32::MAX)
}

#[cfg(test)]
mod tests;
