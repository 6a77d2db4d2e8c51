//! [`ScratchFile`] is an unnamed file on disk, whose blocks are freed when the process ends.
//!
//! If O_TMPFILE fails, the file gets a name that is removed at once. I/O bypasses the page cache
//! (O_DIRECT) where possible; elsewhere each write waits for the device. Offsets, lengths and
//! addresses are multiples of [`ALIGN`]. A forked child closes the file if possible, so it keeps no
//! blocks of a killed parent. Source: open(2), fcntl(2), pwrite(2), setrlimit(2).
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::error::OsError;
use crate::internal::sync::{MappedWord, Ordering};
use crate::internal::sys::call::answer;
use crate::internal::sys::files::file;
use crate::internal::sys::machine::limits;
use crate::internal::sys::memory::memfd::parents::Parents;
use crate::internal::sys::processes::atfork;
use crate::units::Bytes;

/// Alignment in bytes that suffices for O_DIRECT on usual devices.
pub const ALIGN: usize = 4 << 10;
const NAMES: u64 = 16;

#[derive(Debug)]
pub struct ScratchFile {
    // Declared first, so that it drops before the descriptor closes.
    _parents: Option<Parents>,
    file: File,
    is_direct: bool,
    dir: PathBuf,
}

impl ScratchFile {
    pub fn new(dir: &Path) -> Result<Self, OsError> {
        // If `follow_forks` fails, children get the file too, which is no reason to fail.
        let notes = Parents::follow_forks().is_ok();
        let made = atfork::without_forks(|| {
            let file = Self::open(dir)?;
            let parents = notes.then(|| Parents::note_unforked(file.as_raw_fd()));
            Ok((parents, file))
        });
        let refused = |source| OsError::new("open", dir.display().to_string(), source);
        let (_parents, file) = made.map_err(refused)?;
        let is_direct = Self::bypass_cache(&file).is_ok();
        Ok(Self { _parents, file, is_direct, dir: dir.to_owned() })
    }

    fn open(dir: &Path) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).mode(0o600);
        options.custom_flags(libc::O_TMPFILE | libc::O_CLOEXEC);
        file::open(dir, &options).or_else(|_| Self::open_unlinked(dir))
    }

    fn open_unlinked(dir: &Path) -> io::Result<File> {
        static NEXT: MappedWord = MappedWord::new(0);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        options.custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC);
        let mut last = io::Error::from(io::ErrorKind::AlreadyExists);
        for _ in 0..NAMES {
            let nth = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = dir.join(format!(".glebe-{}-{nth}", std::process::id()));
            match file::open(&path, &options) {
                Ok(made) => return file::remove(&path).map(|()| made),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => last = error,
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }

    /// Sets O_DIRECT after the open, because open(2) with O_DIRECT may create the file and then
    /// fail.
    fn bypass_cache(file: &File) -> io::Result<()> {
        let fd = file.as_raw_fd();
        // SAFETY: the descriptor is open.
        let flags = answer("fcntl", || unsafe { libc::fcntl(fd, libc::F_GETFL) })?;
        // SAFETY: the descriptor is open.
        let set = || unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_DIRECT) };
        answer("fcntl", set).map(drop)
    }

    fn refused(&self, call: &'static str, offset: Bytes, source: io::Error) -> OsError {
        let subject = format!("a file in {}, at {:#x}", self.dir.display(), offset.get());
        OsError::new(call, subject, source)
    }

    /// Writes `bytes`. On return the device or its driver has them. Refuses a write beyond
    /// `RLIMIT_FSIZE`, which would raise a signal.
    pub fn write(&self, bytes: &[u8], offset: Bytes) -> Result<(), OsError> {
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

    pub fn read(&self, bytes: &mut [u8], offset: Bytes) -> Result<usize, OsError> {
        let read = file::read_some_at(&self.file, bytes, offset.get());
        read.map_err(|source| self.refused("pread", offset, source))
    }

    pub fn cut(&self, len: Bytes) {
        self.file.set_len(len.get()).expect("a file of one's own");
    }

    pub fn is_direct(&self) -> bool {
        self.is_direct
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let file = ScratchFile::open_unlinked(&dir).unwrap();
        let unlinked = ScratchFile { _parents: None, file, is_direct: false, dir: dir.clone() };
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
