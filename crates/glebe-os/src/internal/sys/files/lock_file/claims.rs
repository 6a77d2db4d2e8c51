//! [`Locked::claim`] claims a number until this process ends. [`LockFile::text`] reads a record of
//! up to 1 MiB.
//!
//! A claim is a lock on one byte, held by a mapping that forked children do not get ([`Tied`]). A
//! killed process's lock of the file may end a moment before its claim.
//!
//! ```text
//! claim   generation of the process, 32 bits | its number, 32 bits     0 = none
//! ```

use super::{LockFile, Locked};
use crate::error::OsError;
use crate::internal::sync::Ordering;
use crate::internal::sys::files::file;
use crate::internal::sys::files::ofd_lock::{is_locked, Tied};
use crate::internal::sys::processes::fork::ForkGuard;

const RECORD_MAX: u64 = 1 << 20;
const FIRST: u64 = 1 << 40;

fn byte(number: u32) -> u64 {
    FIRST + u64::from(number)
}

/// Callers hold another lock that guards this file.
impl LockFile {
    pub fn text(&'static self) -> Result<Vec<u8>, OsError> {
        let file = self.opened()?;
        let len = file::metadata(&file).map_err(|source| self.refused("fstat", source))?.len();
        let mut bytes = vec![0; len.min(RECORD_MAX) as usize];
        let read = file::read_some_at(&file, &mut bytes, 0);
        bytes.truncate(read.map_err(|source| self.refused("pread", source))?);
        Ok(bytes)
    }

    /// A kill does not split a write within one page.
    pub fn set_text(&'static self, at: u64, bytes: &[u8]) -> Result<(), OsError> {
        let file = self.opened()?;
        file::write_at(&file, bytes, at).map_err(|source| self.refused("pwrite", source))
    }

    pub fn cut_text(&'static self, len: u64) -> Result<(), OsError> {
        let file = self.opened()?;
        file::set_len(&file, len).map_err(|source| self.refused("ftruncate", source))
    }
}

impl Locked {
    /// Returns this process's last claim, not its parent's.
    pub fn own_claim(&self) -> Option<u32> {
        let word = self.inside.file.claim.load(Ordering::Acquire);
        let is_own = word != 0 && word >> 32 == generation();
        is_own.then_some(word as u32)
    }

    /// Returns false if `number` is already claimed.
    pub fn claim(&self, number: u32) -> Result<bool, OsError> {
        let file = self.inside.file;
        let Some(tied) = Tied::try_take_anyway(|| file.opened(), byte(number))? else {
            return Ok(false);
        };
        tied.keep();
        file.claim.store(generation() << 32 | u64::from(number), Ordering::Release);
        Ok(true)
    }

    pub fn is_claimed(&self, number: u32) -> Result<bool, OsError> {
        is_locked(self.description.file(), byte(number)..byte(number) + 1)
    }
}

fn generation() -> u64 {
    ForkGuard::new().generation() & u64::from(u32::MAX)
}

#[cfg(test)]
mod tests;
