//! *Claims*: numbers that processes hold for as long as they live; and records of any length, in a
//! file of their own beside the lock.
//!
//! A claim is a record lock on one byte of the lock file, far behind the lock, so that the kernel
//! ends it with its process, also by SIGKILL, in whatever namespace that lived. It ends both in one
//! step: whoever has the lock next finds no claim of a process that had it and has ended. A forked
//! child has none of its parent's. Source: fcntl_locking(2).

use super::{get_lock, set_lock, LockFile, Locked, Span};
use crate::error::OsError;
use crate::sys::file;

/// The most bytes of a record that are read.
const RECORD_MAX: u64 = 1 << 20;
/// Where the bytes of claims begin.
pub(super) const FIRST: i64 = 1 << 40;

/// The byte of claim `number`.
fn byte(number: u32) -> Span {
    Span { start: FIRST + i64::from(number), len: 1 }
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
        match set_lock(&self.file, libc::F_WRLCK, byte(number)) {
            Ok(()) => Ok(true),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => {
                Ok(false)
            }
            Err(source) => Err(self.inside.file.refused("fcntl", source)),
        }
    }

    /// Whether another process has claimed a number. A claim of this one is not seen.
    pub(crate) fn is_claimed_by_another(&self, number: u32) -> Result<bool, OsError> {
        let told = get_lock(&self.file, byte(number));
        told.map(|holder| holder.is_some())
            .map_err(|source| self.inside.file.refused("fcntl", source))
    }
}

#[cfg(test)]
mod tests;
