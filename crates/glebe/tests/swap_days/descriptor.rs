//! Simulates a device that refuses: replaces the open file behind the descriptor of a store, region
//! or area.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    Works,
    RefusesWrites,
    RefusesReads,
    RefusesAll,
}

/// A descriptor of the library, and a duplicate. Call `set(Works)` before the descriptor's owner
/// (store, region or area) is dropped, because another file may then get the number.
pub struct Descriptor {
    number: RawFd,
    works: OwnedFd,
}

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
            // SAFETY: the descriptor is open, because its owner lives.
            let works = unsafe { BorrowedFd::borrow_raw(number) }.try_clone_to_owned().unwrap();
            Descriptor { number, works }
        })
        .collect()
}

impl Descriptor {
    pub fn open(&self, options: &OpenOptions) -> File {
        options.open(format!("/proc/self/fd/{}", self.works.as_raw_fd())).unwrap()
    }

    pub fn numbers(&self) -> (RawFd, RawFd) {
        (self.number, self.works.as_raw_fd())
    }

    pub fn set(&self, device: Device) {
        // SAFETY: takes no pointers.
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
        // SAFETY: takes no pointers, and the number stays open for its owner.
        let done = unsafe { libc::dup3(other, self.number, libc::O_CLOEXEC) };
        assert_eq!(done, self.number, "{}", std::io::Error::last_os_error());
    }
}

pub fn is_refusal(error: &glebe::swap::SwapError) -> bool {
    let text = error.to_string();
    text.contains("Bad file descriptor") && (text.contains("pwrite") || text.contains("pread"))
}

pub fn free_blocks(dir: &Path) -> u64 {
    let dir = CString::new(dir.to_str().unwrap()).unwrap();
    // SAFETY: `dir` is a C string, and the call fills a local.
    unsafe {
        let mut stat: libc::statvfs = std::mem::zeroed();
        assert_eq!(libc::statvfs(dir.as_ptr(), &raw mut stat), 0);
        stat.f_bfree
    }
}
