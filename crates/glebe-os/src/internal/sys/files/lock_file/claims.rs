//! *Claims* are numbers that a process holds for as long as it lives. This module also stores a
//! record of any length, in a file of its own beside the lock.
//!
//! A claim is a lock on one byte far behind the lock, held by a mapping that fork does not pass on
//! ([`Tied`]). The claim ends with its process, by SIGKILL too and in any namespace; closing a
//! descriptor does not end it. A killed process may lose the lock a moment before its claim. A
//! second copy of this library in the process has its own claim.
//!
//! ```text
//! word   generation of the process, 32 bits | its number, 32 bits     0 = none
//! ```

use super::{LockFile, Locked};
use crate::error::OsError;
use crate::internal::sync::Ordering;
use crate::internal::sys::files::file;
use crate::internal::sys::files::ofd_lock::{is_locked, Tied};
use crate::internal::sys::processes::fork::ForkGuard;

/// Bytes that are read at most.
const RECORD_MAX: u64 = 1 << 20;
/// Byte of the first claim.
const FIRST: u64 = 1 << 40;

fn byte(number: u32) -> u64 {
    FIRST + u64::from(number)
}

/// The caller holds another lock that guards this file.
impl LockFile {
    /// Reads the record; empty if there is none. Creates a missing file.
    pub fn text(&'static self) -> Result<Vec<u8>, OsError> {
        let file = self.opened()?;
        let len = file::metadata(&file).map_err(|source| self.refused("fstat", source))?.len();
        let mut bytes = vec![0; len.min(RECORD_MAX) as usize];
        let read = file::read_some_at(&file, &mut bytes, 0);
        bytes.truncate(read.map_err(|source| self.refused("pread", source))?);
        Ok(bytes)
    }

    /// Writes `bytes` at offset `at`; atomically within one page.
    pub fn set_text(&'static self, at: u64, bytes: &[u8]) -> Result<(), OsError> {
        let file = self.opened()?;
        file::write_at(&file, bytes, at).map_err(|source| self.refused("pwrite", source))
    }

    /// Cuts the record to `len` bytes.
    pub fn cut_text(&'static self, len: u64) -> Result<(), OsError> {
        let file = self.opened()?;
        file::set_len(&file, len).map_err(|source| self.refused("ftruncate", source))
    }
}

impl Locked {
    /// Returns the number that this process claimed last; a forked child has none of its parent's.
    pub fn own_claim(&self) -> Option<u32> {
        let word = self.inside.file.claim.load(Ordering::Acquire);
        let is_own = word != 0 && word >> 32 == generation();
        is_own.then_some(word as u32)
    }

    /// Claims `number` until this process ends. Returns false if it is already claimed.
    pub fn claim(&self, number: u32) -> Result<bool, OsError> {
        let file = self.inside.file;
        let Some(tied) = Tied::try_take_anyway(|| file.opened(), byte(number))? else {
            return Ok(false);
        };
        tied.keep();
        file.claim.store(generation() << 32 | u64::from(number), Ordering::Release);
        Ok(true)
    }

    /// Returns true if this or another process has claimed `number`.
    pub fn is_claimed(&self, number: u32) -> Result<bool, OsError> {
        is_locked(self.description.file(), byte(number)..byte(number) + 1)
    }
}

fn generation() -> u64 {
    ForkGuard::new().generation() & u64::from(u32::MAX)
}

#[cfg(test)]
mod tests;
