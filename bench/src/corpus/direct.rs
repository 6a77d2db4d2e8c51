//! Opening files without following links or waiting, and reading them past the page cache.
//!
//! `O_DIRECT` wants offset, length and address aligned to the device's block, which a page is a
//! multiple of. A buffer that is not so aligned is read through one of the thread's own.
//! A file system in memory takes the flag and has no device: it does not count as direct.
//! Source: open(2), mountinfo in proc(5).

use std::cell::RefCell;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use glebe::sys::page_size;

use super::Stamp;

/// File systems whose files are memory, whatever way they are read.
const IN_MEMORY: [&str; 3] = ["tmpfs", "ramfs", "rootfs"];

/// Opens a regular file to read; a link, or a pipe that took its place, is an error at once.
pub(super) fn open(path: &Path, direct: bool) -> io::Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    let flags = if direct { flags | libc::O_DIRECT } else { flags };
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::ErrorKind::InvalidInput.into()),
    }
}

/// Opens past the page cache the file that `stamp` was taken of, and reads its first page once.
pub(super) fn open_probed(path: &Path, stamp: &Stamp) -> io::Result<File> {
    let file = open(path, true)?;
    if Stamp::of(&file.metadata()?) != *stamp || is_in_memory(stamp.device) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let mut page = vec![0; page_size().bytes().get() as usize];
    read(&file, 0, &mut page)?;
    Ok(file)
}

/// Whether the file can be read past the page cache; `None` if it cannot be read at all.
pub(super) fn works(path: &Path) -> Option<bool> {
    let stamp = Stamp::of(&open(path, false).ok()?.metadata().ok()?);
    Some(open_probed(path, &stamp).is_ok())
}

/// One read of a page from `start`; short only at the end of the file.
pub(super) fn read(file: &File, start: u64, page: &mut [u8]) -> io::Result<usize> {
    thread_local! {
        static ALIGNED: RefCell<Vec<u8>> = RefCell::new(vec![0; 2 * page_bytes()]);
    }
    if page.as_ptr().align_offset(page_bytes()) == 0 {
        return read_once(file, start, page);
    }
    ALIGNED.with_borrow_mut(|buffer| {
        let skip = buffer.as_ptr().align_offset(page_bytes());
        let aligned = &mut buffer[skip..][..page.len()];
        let len = read_once(file, start, aligned)?;
        page[..len].copy_from_slice(&aligned[..len]);
        Ok(len)
    })
}

/// A second read after a short one would start unaligned.
fn read_once(file: &File, start: u64, page: &mut [u8]) -> io::Result<usize> {
    loop {
        match file.read_at(page, start) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

/// Half the descriptors this process may have open.
pub(super) fn files_max() -> usize {
    /// Where the limit cannot be read: half the usual one.
    const USUAL: usize = 512;
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let soft = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    match soft.and_then(|rest| rest.split_whitespace().next()) {
        Some("unlimited") => usize::MAX,
        Some(number) => number.parse::<usize>().map_or(USUAL, |n| n / 2),
        None => USUAL,
    }
}

fn is_in_memory(device: u64) -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    kind_of(&mounts, device).is_some_and(|kind| IN_MEMORY.contains(&kind))
}

/// The type of the file system with number `device` (third field, as `major:minor`; the type is the
/// first field after a lone hyphen). `None` for file systems that show another number to stat(2).
fn kind_of(mounts: &str, device: u64) -> Option<&str> {
    let number = format!("{}:{}", libc::major(device), libc::minor(device));
    let line = mounts.lines().find(|line| line.split(' ').nth(2) == Some(&number))?;
    line.split_once(" - ")?.1.split(' ').next()
}

fn page_bytes() -> usize {
    page_size().bytes().get() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_type_of_a_file_system_by_its_number() {
        let mounts = "21 1 254:0 / / rw - ext4 /dev/root rw\n\
                      22 21 0:5 / /tmp rw shared:1 master:2 - tmpfs none rw\n";
        assert_eq!(kind_of(mounts, libc::makedev(0, 5)), Some("tmpfs"));
        assert_eq!(kind_of(mounts, libc::makedev(254, 0)), Some("ext4"));
        assert_eq!(kind_of(mounts, libc::makedev(254, 1)), None);
        assert_eq!(kind_of("", 0), None);
    }
}
