//! The file of a store, a region or an area, by its descriptor: another one in its place is a
//! device that refuses.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// What a device does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    Works,
    RefusesWrites,
    RefusesReads,
    RefusesAll,
}

/// A file without a name that this process has open; it works again before its owner is dropped.
pub struct Descriptor {
    number: RawFd,
    works: OwnedFd,
}

/// The files of this process in a folder.
pub fn descriptors_in(dir: &Path) -> Vec<Descriptor> {
    let links = fs::read_dir("/proc/self/fd").unwrap().map_while(Result::ok);
    let is_in = |link: &PathBuf| {
        fs::read_link(link).is_ok_and(|to| to.starts_with(dir))
            && fs::metadata(link).unwrap().is_file()
    };
    let all: Vec<_> = links.map(|link| link.path()).filter(is_in).collect();
    let number = |link: &PathBuf| link.file_name()?.to_str()?.parse::<RawFd>().ok();
    let numbers = all.iter().filter_map(number);
    numbers
        .map(|number| {
            // SAFETY: open while its owner lives, which the caller has.
            let works = unsafe { BorrowedFd::borrow_raw(number) }.try_clone_to_owned().unwrap();
            Descriptor { number, works }
        })
        .collect()
}

impl Descriptor {
    /// The file, opened once more.
    pub fn open(&self, options: &OpenOptions) -> File {
        options.open(format!("/proc/self/fd/{}", self.works.as_raw_fd())).unwrap()
    }

    /// The number that the owner knows, and one of the file itself.
    pub fn numbers(&self) -> (RawFd, RawFd) {
        (self.number, self.works.as_raw_fd())
    }

    pub fn set(&self, device: Device) {
        // SAFETY: takes no pointer.
        let flags = unsafe { libc::fcntl(self.works.as_raw_fd(), libc::F_GETFL) };
        let mut options = OpenOptions::new();
        options.custom_flags(flags & libc::O_DIRECT);
        let other = match device {
            Device::Works => return self.put(self.works.as_raw_fd()),
            Device::RefusesWrites => options.read(true),
            Device::RefusesReads => options.write(true),
            Device::RefusesAll => options.read(true).custom_flags(libc::O_PATH),
        };
        self.put(self.open(other).as_raw_fd());
    }

    fn put(&self, other: RawFd) {
        // SAFETY: takes no pointer; the number stays its owner's.
        let done = unsafe { libc::dup3(other, self.number, libc::O_CLOEXEC) };
        assert_eq!(done, self.number, "{}", std::io::Error::last_os_error());
    }
}

/// Whether an error is of a device that refuses so.
pub fn is_refusal(error: &glebe::swap::Error) -> bool {
    let text = error.to_string();
    text.contains("Bad file descriptor") && (text.contains("pwrite") || text.contains("pread"))
}

/// Free blocks of the file system of a folder.
pub fn free_blocks(dir: &Path) -> u64 {
    let dir = CString::new(dir.to_str().unwrap()).unwrap();
    // SAFETY: a string that ends, and a local that the call fills.
    unsafe {
        let mut stat: libc::statvfs = std::mem::zeroed();
        assert_eq!(libc::statvfs(dir.as_ptr(), &raw mut stat), 0);
        stat.f_bfree
    }
}
