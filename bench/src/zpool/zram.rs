//! [`Zram`]: a compressed block device of this run's own, to compare with.
//!
//! Made by `hot_add`, so that it is never one in use, and removed when dropped, on failure and
//! interruption too. Written and read by direct I/O: what it does it does in the caller's system
//! time. Units: pages of the machine, bytes. Source: Documentation/admin-guide/blockdev/zram.rst,
//! `BLKDISCARD` in linux/fs.h.
//!
//! # Safety
//! One ioctl that reads two words of this file's.
#![allow(unsafe_code)]

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use glebe::error::OsError;
use glebe::sys::page_size;

const CONTROL: &str = "/sys/class/zram-control";

/// `_IO(0x12, 119)`.
const BLKDISCARD: libc::c_ulong = 0x1277;

/// How long the device node may take to come.
const PATIENCE: Duration = Duration::from_secs(3);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Why there is no device.
#[derive(Debug, thiserror::Error)]
pub(super) enum Absent {
    /// Not on this machine, or not for this user.
    #[error("{0}")]
    Not(String),
    /// The kernel refused what it usually does.
    #[error(transparent)]
    Os(#[from] OsError),
}

/// What `mm_stat` says, in bytes but for the counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MmStat {
    /// Of the pages stored.
    pub(super) original: u64,
    /// Of what they were made to.
    pub(super) stored: u64,
    /// Of the pages that hold that; handles and descriptors of zspages are not in it.
    pub(super) used: u64,
    /// Pages that are one word, which take nothing.
    pub(super) same_pages: u64,
}

/// A device, removed when dropped.
#[derive(Debug)]
pub(super) struct Zram {
    /// Closed before the device is removed.
    file: Option<File>,
    sys: PathBuf,
    number: u32,
    page: u64,
}

impl Zram {
    /// A device of `pages` with LZ4, or why there is none.
    pub(super) fn new(pages: usize) -> Result<Self, Absent> {
        let add = Path::new(CONTROL).join("hot_add");
        let failed = |e| OsError::new("read", add.display().to_string(), e);
        let number = fs::read_to_string(&add).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => Absent::Not("no zram here: modprobe zram".into()),
            io::ErrorKind::PermissionDenied => Absent::Not("zram takes root".into()),
            _ => Absent::Os(failed(e)),
        })?;
        let number =
            number.trim().parse().map_err(|_| failed(io::ErrorKind::InvalidData.into()))?;
        let sys = PathBuf::from(format!("/sys/block/zram{number}"));
        let page = page_size().bytes().get();
        let mut zram = Self { file: None, sys, number, page };
        let chosen = zram.set("comp_algorithm", "lz4");
        chosen.map_err(|_| Absent::Not("this kernel's zram has no LZ4".into()))?;
        zram.set("disksize", &(pages as u64 * page).to_string())?;
        zram.file = Some(zram.open()?);
        Ok(zram)
    }

    /// Opens the node once it is there.
    fn open(&self) -> Result<File, OsError> {
        let path = PathBuf::from(format!("/dev/zram{}", self.number));
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_DIRECT | libc::O_CLOEXEC);
        patiently(|| {
            let is_block = fs::metadata(&path)?.file_type().is_block_device();
            // Else an ordinary file would be written to.
            if is_block {
                options.open(&path)
            } else {
                Err(io::ErrorKind::NotFound.into())
            }
        })
        .map_err(|e| OsError::new("open", path.display().to_string(), e))
    }

    fn set(&self, name: &str, value: &str) -> Result<(), OsError> {
        let path = self.sys.join(name);
        fs::write(&path, value).map_err(|e| OsError::new("write", path.display().to_string(), e))
    }

    fn file(&self) -> &File {
        self.file.as_ref().expect("open from new to drop")
    }

    /// Writes whole pages from number `first`.
    pub(super) fn write(&self, first: usize, pages: &[u8]) -> Result<(), OsError> {
        let done = self.file().write_all_at(pages, first as u64 * self.page);
        done.map_err(|e| self.failed("pwrite", e))
    }

    /// Reads whole pages from number `first`.
    pub(super) fn read(&self, first: usize, pages: &mut [u8]) -> Result<(), OsError> {
        let done = self.file().read_exact_at(pages, first as u64 * self.page);
        done.map_err(|e| self.failed("pread", e))
    }

    /// Drops pages from number `first`.
    pub(super) fn discard(&self, first: usize, pages: usize) -> Result<(), OsError> {
        let range = [first as u64 * self.page, pages as u64 * self.page];
        // SAFETY: the ioctl reads two words, which live until it returns, and writes none.
        let rc = unsafe { libc::ioctl(self.file().as_raw_fd(), BLKDISCARD, range.as_ptr()) };
        match rc {
            0 => Ok(()),
            _ => Err(self.failed("ioctl(BLKDISCARD)", io::Error::last_os_error())),
        }
    }

    /// Compacts by hand, which frees pages until no class can free one.
    pub(super) fn compact(&self) -> Result<(), OsError> {
        self.set("compact", "1")
    }

    /// What the kernel counts.
    pub(super) fn stat(&self) -> Result<MmStat, OsError> {
        let path = self.sys.join("mm_stat");
        let failed = |e| OsError::new("read", path.display().to_string(), e);
        let text = fs::read_to_string(&path).map_err(failed)?;
        parse(&text).ok_or_else(|| failed(io::ErrorKind::InvalidData.into()))
    }

    fn failed(&self, call: &'static str, e: io::Error) -> OsError {
        OsError::new(call, format!("zram{}", self.number), e)
    }
}

impl Drop for Zram {
    fn drop(&mut self) {
        self.file = None;
        // Whoever looks at a new device, as udev does, may still have it open.
        let removed = patiently(|| {
            fs::write(self.sys.join("reset"), "1")?;
            fs::write(Path::new(CONTROL).join("hot_remove"), self.number.to_string())
        });
        if let Err(e) = removed {
            eprintln!("glebe-bench: zram{} is left behind: {e}", self.number);
        }
    }
}

/// Tries until it succeeds or [`PATIENCE`] is over.
fn patiently<T>(mut step: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let start = crate::clock::wall();
    loop {
        match step() {
            Err(_) if crate::clock::wall() - start < PATIENCE => std::thread::sleep(LOOK_EVERY),
            done => return done,
        }
    }
}

fn parse(text: &str) -> Option<MmStat> {
    let words: Vec<u64> = text.split_whitespace().map_while(|word| word.parse().ok()).collect();
    let [original, stored, used, _limit, _most, same_pages, ..] = words[..] else { return None };
    Some(MmStat { original, stored, used, same_pages })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zpool::aligned::Aligned;

    #[test]
    fn columns_of_the_statistics() {
        let text = " 9 8 7 6 5 4 3 2 1\n";
        let stat = MmStat { original: 9, stored: 8, used: 7, same_pages: 4 };
        assert_eq!(parse(text), Some(stat));
        assert_eq!(parse("1 2 3 4 5"), None);
    }

    #[test]
    fn pages_come_back_and_the_device_goes() {
        let zram = match Zram::new(64) {
            Ok(zram) => zram,
            Err(why) => {
                println!("skipped: {why}");
                return;
            }
        };
        let page = page_size().bytes().as_usize();
        let mut block = Aligned::new(4 * page);
        for (nth, byte) in block.bytes().iter_mut().enumerate() {
            *byte = (nth / 64) as u8;
        }
        zram.write(3, block.bytes()).unwrap();
        let stat = zram.stat().unwrap();
        assert_eq!(stat.original, 4 * page as u64);
        assert!(stat.stored > 0 && stat.used >= stat.stored, "{stat:?}");
        let wanted = block.bytes().to_vec();
        block.bytes().fill(0xff);
        zram.read(3, block.bytes()).unwrap();
        assert_eq!(block.bytes(), wanted);
        zram.discard(3, 4).unwrap();
        zram.compact().unwrap();
        assert_eq!(zram.stat().unwrap().stored, 0);
        let sys = zram.sys.clone();
        assert!(sys.is_dir());
        drop(zram);
        assert!(!sys.is_dir(), "{}", sys.display());
    }
}
