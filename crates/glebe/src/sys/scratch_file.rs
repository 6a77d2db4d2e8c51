//! [`ScratchFile`]: a file on disk without a name, for this process alone, whose blocks go with it.
//!
//! Made by O_TMPFILE, or where the file system has none by a new name that is removed at once.
//! Written and read past the page cache (O_DIRECT) where the file system takes that; else each
//! write waits for the device (fdatasync(2)), so that its errors are the write's own. Offsets,
//! lengths and addresses are multiples of [`ALIGN`]. A forked child holds the descriptor, and so
//! the blocks, until it ends. A write beyond `RLIMIT_FSIZE` would be a signal, and is refused.
//! Source: open(2), pwrite(2), setrlimit(2).

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::error::OsError;
use crate::sync::{MappedWord, Ordering};
use crate::sys::{file, limits};
use crate::units::Bytes;

/// What file systems ask of O_DIRECT, at most.
pub(crate) const ALIGN: usize = 4 << 10;
/// Names to try where there are no files without one.
const NAMES: u64 = 16;

/// See the module.
#[derive(Debug)]
pub(crate) struct ScratchFile {
    file: File,
    is_direct: bool,
    dir: PathBuf,
}

impl ScratchFile {
    /// Makes an empty file in a directory.
    ///
    /// # Errors
    /// What open(2) or unlink(2) refuses.
    pub(crate) fn new(dir: &Path) -> Result<Self, OsError> {
        let refused = |source| OsError::new("open", dir.display().to_string(), source);
        // EINVAL says that there is no O_DIRECT.
        let direct = Self::open(dir, libc::O_DIRECT).ok();
        let is_direct = direct.is_some();
        let file = direct.map_or_else(|| Self::open(dir, 0), Ok).map_err(refused)?;
        Ok(Self { file, is_direct, dir: dir.to_owned() })
    }

    fn open(dir: &Path, flags: i32) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).mode(0o600);
        options.custom_flags(libc::O_TMPFILE | libc::O_CLOEXEC | flags);
        file::open(dir, &options).or_else(|_| Self::open_unlinked(dir, flags))
    }

    fn open_unlinked(dir: &Path, flags: i32) -> io::Result<File> {
        static NEXT: MappedWord = MappedWord::new(0);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        options.custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC | flags);
        let mut last = io::Error::from(io::ErrorKind::AlreadyExists);
        for _ in 0..NAMES {
            let nth = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = dir.join(format!(".glebe-{}-{nth}", std::process::id()));
            match file::open(&path, &options) {
                // Not used while it has a name.
                Ok(made) => return file::remove(&path).map(|()| made),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => last = error,
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }

    fn refused(&self, call: &'static str, offset: Bytes, source: io::Error) -> OsError {
        let subject = format!("a file in {}, at {:#x}", self.dir.display(), offset.get());
        OsError::new(call, subject, source)
    }

    /// Writes `bytes`, which are on the device when this returns, or known to its driver.
    ///
    /// # Errors
    /// What pwrite(2) or fdatasync(2) refuses; EFBIG beyond the process's limit.
    pub(crate) fn write(&self, bytes: &[u8], offset: Bytes) -> Result<(), OsError> {
        let end = offset + Bytes::new(bytes.len() as u64);
        if limits::limit(libc::RLIMIT_FSIZE).is_some_and(|limit| end > limit) {
            let source = io::Error::from_raw_os_error(libc::EFBIG);
            return Err(self.refused("pwrite", offset, source));
        }
        let written = file::write_at(&self.file, bytes, offset.get());
        written.map_err(|source| self.refused("pwrite", offset, source))?;
        if !self.is_direct {
            let synced = file::sync_data(&self.file);
            synced.map_err(|source| self.refused("fdatasync", offset, source))?;
        }
        Ok(())
    }

    /// Fills `bytes` from the file; of how many, since it may end before.
    ///
    /// # Errors
    /// What pread(2) refuses.
    pub(crate) fn read(&self, bytes: &mut [u8], offset: Bytes) -> Result<usize, OsError> {
        let read = file::read_some_at(&self.file, bytes, offset.get());
        read.map_err(|source| self.refused("pread", offset, source))
    }

    /// Cuts the file, for tests.
    #[cfg(test)]
    pub(crate) fn cut(&self, len: Bytes) {
        self.file.set_len(len.get()).expect("a file of one's own");
    }

    /// Whether it is written past the page cache.
    pub(crate) fn is_direct(&self) -> bool {
        self.is_direct
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes at an aligned address.
    fn aligned(space: &mut [u8], len: usize) -> &mut [u8] {
        let at = space.as_ptr().align_offset(ALIGN);
        &mut space[at..at + len]
    }

    fn has_no_name(dir: &Path) {
        let names = file::names(dir).unwrap();
        assert!(names.is_empty(), "{names:?}");
    }

    #[test]
    fn bytes_come_back_and_no_name_is_left() {
        let dir = std::env::temp_dir().join(format!("glebe-scratch-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let unlinked = ScratchFile::open_unlinked(&dir, 0).unwrap();
        let unlinked = ScratchFile { file: unlinked, is_direct: false, dir: dir.clone() };
        for made in [ScratchFile::new(&dir).unwrap(), unlinked] {
            has_no_name(&dir);
            let (mut space, mut back) = (vec![7; 4 * ALIGN], vec![0; 4 * ALIGN]);
            made.write(aligned(&mut space, 2 * ALIGN), Bytes::new(ALIGN as u64)).unwrap();
            let back = aligned(&mut back, 3 * ALIGN);
            assert_eq!(made.read(back, Bytes::ZERO).unwrap(), 3 * ALIGN);
            assert!(back[..ALIGN].iter().all(|byte| *byte == 0));
            assert!(back[ALIGN..].iter().all(|byte| *byte == 7));
            made.cut(Bytes::new(2 * ALIGN as u64));
            assert_eq!(made.read(back, Bytes::new(ALIGN as u64)).unwrap(), ALIGN);
            println!("past the page cache: {}", made.is_direct());
        }
        let refused = ScratchFile::new(&dir.join("none")).unwrap_err();
        assert!(refused.to_string().contains("none"), "{refused}");
        std::fs::remove_dir(&dir).unwrap();
    }
}
