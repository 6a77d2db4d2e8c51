//! *Claims*: numbers that processes hold for as long as they live; and records of any length, in a
//! file of their own beside the lock.
//!
//! A claim is a lock on one byte of the lock file, far behind the lock, and of the same kind: it
//! ends with its process, also by SIGKILL, in whatever namespace that lived. The kernel ends both
//! in one step, with the memory of the process: whoever has the lock next finds no claim of a
//! process that had it and has ended. A forked child has none of its parent's. A second copy of
//! this library in the process has claims of its own, and sees those of the first as another's.

use super::{LockFile, Locked};
use crate::error::OsError;
use crate::sys::file;
use crate::sys::ofd_lock::{is_locked, Tied};

/// The most bytes of a record that are read.
const RECORD_MAX: u64 = 1 << 20;
/// Where the bytes of claims begin.
const FIRST: u64 = 1 << 40;

/// A number that this process, or one that it was forked from, has claimed.
#[derive(Debug)]
pub(super) struct Claim {
    number: u32,
    tied: Tied,
}

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
    /// Claims a number for this process; whether no other has it.
    pub(crate) fn claim(&self, number: u32) -> Result<bool, OsError> {
        if self.has_claimed(number) {
            return Ok(true);
        }
        let tied = Tied::try_take_anyway(&self.file, byte(number))?;
        let claim = tied.map(|tied| Claim { number, tied });
        Ok(claim.map(|claim| self.inside.file.claims.find_or_add(|_| false, || claim)).is_some())
    }

    /// Whether another process has claimed a number. A claim of this one is not seen.
    pub(crate) fn is_claimed_by_another(&self, number: u32) -> Result<bool, OsError> {
        Ok(!self.has_claimed(number) && is_locked(&self.file, byte(number)..byte(number) + 1)?)
    }

    fn has_claimed(&self, number: u32) -> bool {
        let mut claims = self.inside.file.claims.iter();
        claims.any(|claim| claim.number == number && !claim.tied.is_inherited())
    }
}

#[cfg(test)]
mod tests;
