//! [`MemoryFile`] is a file in memory that programs may share: a memfd, or a file on tmpfs.
//!
//! Offsets and lengths are bytes, in whole pages. A touch of an *allocated* page raises no SIGBUS,
//! unless another program cuts or punches the file. A page that was allocated but never written
//! counts as a hole, not as *data*. Source: fallocate(2), lseek(2).
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::{File, FileType, OpenOptions};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::error::OsError;
use crate::internal::sys::call::{answer, call};
use crate::internal::sys::files::file;
use crate::internal::sys::machine::limits;
use crate::internal::sys::memory::memfd;
use crate::internal::sys::processes::signals;
use crate::units::Bytes;

const BLOCK: u64 = 512;

#[derive(Debug)]
pub struct MemoryFile {
    file: File,
    is_sealed: bool,
}

fn refused(call: &'static str, subject: impl Into<String>, source: io::Error) -> OsError {
    OsError::new(call, subject, source)
}

impl MemoryFile {
    /// Creates a memfd of `len` zero bytes, without pages. Its length is sealed.
    pub fn new(len: Bytes) -> Result<Self, OsError> {
        let made = memfd::make(None);
        let file = made.map_err(|source| refused("memfd_create", len.to_string(), source))?;
        set_len(&file, len)?;
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: the descriptor is open.
        let sealed = || unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) };
        call("fcntl", || "F_ADD_SEALS".into(), sealed)?;
        Ok(Self { file, is_sealed: true })
    }

    /// Creates a file of `len` zero bytes with mode 0600 in the folder of `path`, without a name.
    pub fn new_for(path: &Path, len: Bytes) -> Result<Result<Self, String>, OsError> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let mut options = OpenOptions::new();
        options.read(true).write(true).mode(0o600);
        options.custom_flags(libc::O_TMPFILE | libc::O_CLOEXEC);
        match file::open(folder.unwrap_or(Path::new(".")), &options) {
            Ok(file) => Self::adopt(file)?
                .map(|made| set_len(&made.file, len).map(|()| made))
                .map_or_else(|other| Ok(Err(other)), |made| made.map(Ok)),
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                Ok(Err("on a file system without unnamed files, not on tmpfs".to_owned()))
            }
            Err(source) => Err(refused("open", path.display().to_string(), source)),
        }
    }

    /// Gives a file of [`new_for`](Self::new_for) its name; EEXIST if `path` exists.
    pub fn link_at(&self, path: &Path) -> Result<(), OsError> {
        let shown = || path.display().to_string();
        let name = CString::new(path.as_os_str().as_bytes());
        let name = name.map_err(|source| refused("linkat", shown(), source.into()))?;
        let (at, follow) = (libc::AT_FDCWD, libc::AT_SYMLINK_FOLLOW);
        // Without a privilege, the kernel links a descriptor only by this path.
        let own = CString::new(format!("/proc/self/fd/{}", self.file.as_raw_fd()));
        let own = own.map_err(|source| refused("linkat", shown(), source.into()))?;
        // SAFETY: both paths end with zero.
        let linked = || unsafe { libc::linkat(at, own.as_ptr(), at, name.as_ptr(), follow) };
        call("linkat", shown, linked)
    }

    /// Opens a file. Refuses a symbolic link except `/proc/PID/fd/N`, which may name a memfd.
    pub fn open(path: &Path) -> Result<Result<Self, String>, OsError> {
        let refused = |source| refused("open", path.display().to_string(), source);
        // Opening a device may have effects, so an O_PATH descriptor is checked first. The file is
        // opened through this descriptor, since the path may change.
        let follow = if names_descriptor(path) { 0 } else { libc::O_NOFOLLOW };
        let mut look = OpenOptions::new();
        look.read(true).custom_flags(libc::O_PATH | follow | libc::O_CLOEXEC);
        let place = file::open(path, &look).map_err(refused)?;
        if let Some(other) = other_than_memory(&place)? {
            return Ok(Err(other));
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_CLOEXEC | libc::O_NONBLOCK);
        let anew = PathBuf::from(format!("/proc/self/fd/{}", place.as_raw_fd()));
        Self::adopt(file::open(&anew, &options).map_err(refused)?)
    }

    /// Adopts a file. The inner error describes an unsuitable file.
    pub fn adopt(file: File) -> Result<Result<Self, String>, OsError> {
        if let Some(other) = other_than_memory(&file)? {
            return Ok(Err(other));
        }
        // SAFETY: the descriptor is open.
        let asked = answer("fcntl", || unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) });
        let flags = asked.map_err(|source| refused("fcntl", "F_GETFL", source))?;
        if flags & libc::O_ACCMODE != libc::O_RDWR {
            return Ok(Err("not open to read and write".to_owned()));
        }
        // SAFETY: the descriptor is open.
        let asked = answer("fcntl", || unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) });
        let seals = asked.map_err(|source| refused("fcntl", "F_GET_SEALS", source))?;
        if seals & (libc::F_SEAL_WRITE | libc::F_SEAL_FUTURE_WRITE) != 0 {
            return Ok(Err(format!("sealed against writing (seals {seals:#x})")));
        }
        Ok(Ok(Self { file, is_sealed: seals & libc::F_SEAL_SHRINK != 0 }))
    }

    pub fn as_file(&self) -> &File {
        &self.file
    }

    pub fn is_sealed(&self) -> bool {
        self.is_sealed
    }

    pub fn len(&self) -> Result<Bytes, OsError> {
        let told = file::metadata(&self.file).map_err(|e| refused("fstat", "a descriptor", e))?;
        Ok(Bytes::new(told.len()))
    }

    pub fn allocated(&self) -> Result<Bytes, OsError> {
        let told = file::metadata(&self.file).map_err(|e| refused("fstat", "a descriptor", e))?;
        Ok(Bytes::new(told.blocks().saturating_mul(BLOCK)))
    }

    pub fn device(&self) -> Result<u64, OsError> {
        let told = file::metadata(&self.file).map_err(|e| refused("fstat", "a descriptor", e))?;
        Ok(told.dev())
    }

    pub fn allocate(&self, offset: u64, len: u64) -> Result<(), OsError> {
        self.fallocate(libc::FALLOC_FL_KEEP_SIZE, offset, len)
    }

    /// Removes pages. Their mappings then read as zero.
    pub fn punch(&self, offset: u64, len: u64) -> Result<(), OsError> {
        self.fallocate(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, offset, len)
    }

    fn fallocate(&self, mode: libc::c_int, offset: u64, len: u64) -> Result<(), OsError> {
        let subject = || format!("{offset:#x}, {}", Bytes::new(len));
        let mut without_signals = None;
        loop {
            let done = answer("fallocate", || {
                let (offset, len) = (offset as libc::off_t, len as libc::off_t);
                // SAFETY: the descriptor is open.
                unsafe { libc::fallocate(self.file.as_raw_fd(), mode, offset, len) }
            });
            match done {
                Ok(_) => return Ok(()),
                // Some kernels undo an interrupted call. With a fast timer, no call would end.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                    without_signals.get_or_insert_with(signals::Blocked::new);
                }
                Err(source) => return Err(refused("fallocate", subject(), source)),
            }
        }
    }

    /// Returns start and end of the first run of data in `from..end`.
    pub fn next_data(&self, from: u64, end: u64) -> Result<Option<(u64, u64)>, OsError> {
        let Some(start) = self.seek(libc::SEEK_DATA, from)?.filter(|start| *start < end) else {
            return Ok(None);
        };
        let stop = self.seek(libc::SEEK_HOLE, start)?.unwrap_or(end);
        Ok(Some((start, stop.clamp(start + 1, end))))
    }

    fn seek(&self, whence: libc::c_int, from: u64) -> Result<Option<u64>, OsError> {
        let made = answer("lseek", || {
            // SAFETY: the descriptor is open.
            unsafe { libc::lseek(self.file.as_raw_fd(), from as libc::off_t, whence) }
        });
        match made {
            Ok(at) => Ok(Some(at.unsigned_abs())),
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => Ok(None),
            Err(source) => Err(refused("lseek", format!("{from:#x}"), source)),
        }
    }
}

fn other_than_memory(file: &File) -> Result<Option<String>, OsError> {
    let meta = file::metadata(file).map_err(|e| refused("fstat", "a descriptor", e))?;
    if !meta.is_file() {
        return Ok(Some(kind_of(meta.file_type()).to_owned()));
    }
    let mut stat = MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: the descriptor is open; the kernel fills the local.
    let told = || unsafe { libc::fstatfs(file.as_raw_fd(), stat.as_mut_ptr()) };
    call("fstatfs", || "a descriptor".into(), told)?;
    // SAFETY: the kernel filled the structure; zeros are valid too.
    let kind = unsafe { stat.assume_init() }.f_type;
    let other = || format!("on a file system of type {kind:#x}, not on tmpfs");
    Ok((kind != libc::TMPFS_MAGIC).then(other))
}

fn names_descriptor(path: &Path) -> bool {
    let number = |text: &str| !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
    let text = path.to_str().and_then(|text| text.strip_prefix("/proc/"));
    let parts = text.and_then(|text| text.split_once("/fd/"));
    parts.is_some_and(|(process, fd)| (process == "self" || number(process)) && number(fd))
}

pub(in crate::internal::sys) fn is_tmpfs(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    let mut stat = MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: the path ends with zero; the kernel fills the local; zeros are valid.
    unsafe {
        let told = answer("statfs", || libc::statfs(path.as_ptr(), stat.as_mut_ptr()));
        told.is_ok() && stat.assume_init().f_type == libc::TMPFS_MAGIC
    }
}

/// Returns the length in bytes, or `None` on failure. Safe in a signal handler.
pub fn len_of(descriptor: RawFd) -> Option<u64> {
    let mut stat = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the kernel fills the local, and zeros are valid.
    unsafe {
        let told = libc::fstat(descriptor, stat.as_mut_ptr()) == 0;
        told.then(|| stat.assume_init().st_size.unsigned_abs())
    }
}

fn set_len(file: &File, len: Bytes) -> Result<(), OsError> {
    // Beyond this limit ftruncate(2) raises SIGXFSZ.
    if limits::limit(libc::RLIMIT_FSIZE).is_some_and(|limit| len > limit) {
        let source = io::Error::from_raw_os_error(libc::EFBIG);
        return Err(refused("ftruncate", len.to_string(), source));
    }
    file::set_len(file, len.get()).map_err(|source| refused("ftruncate", len.to_string(), source))
}

fn kind_of(kind: FileType) -> &'static str {
    match kind {
        _ if FileType::is_dir(&kind) => "a directory",
        _ if kind.is_symlink() => "a symbolic link",
        _ if kind.is_fifo() => "a FIFO",
        _ if kind.is_socket() => "a socket",
        _ if kind.is_char_device() || kind.is_block_device() => "a device",
        _ => "no plain file",
    }
}
