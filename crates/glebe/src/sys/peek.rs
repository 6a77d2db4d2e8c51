//! Reading memory of the own process that may not be there: a count, never a signal.
//!
//! By process_vm_readv(2) on itself; where a filter refuses that, by a write to a memfd, which
//! reads the memory on the process's behalf as well. Both stop at the first page that a touch
//! would make SIGBUS. Cost: one system call, or four. Source: process_vm_readv(2), memfd_create(2).
//!
//! # Safety
//! The kernel checks the source; the destination is a slice.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use crate::error::OsError;
use crate::sync::{MappedByte, Ordering};
use crate::sys::fault::point;
use crate::sys::file;

/// Whether process_vm_readv(2) was refused once.
static REFUSED: MappedByte = MappedByte::new(0);

/// Copies from `addr` to `buf` as far as memory is there; how many bytes.
pub(crate) fn peek(addr: usize, buf: &mut [u8]) -> Result<usize, OsError> {
    if REFUSED.load(Ordering::Relaxed) == 0 {
        match by_process(addr, buf) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) => {
                REFUSED.store(1, Ordering::Relaxed);
            }
            other => {
                return other.map_err(|source| OsError::new("process_vm_readv", "self", source));
            }
        }
    }
    by_file(addr, buf).map_err(|source| OsError::new("memfd_create", "a copy", source))
}

fn by_process(addr: usize, buf: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < buf.len() {
        let rest = &mut buf[done..];
        let to = libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() };
        let at = std::ptr::with_exposed_provenance_mut(addr + done);
        let from = libc::iovec { iov_base: at, iov_len: rest.len() };
        point("process_vm_readv")?;
        // SAFETY: `to` is a slice of this length; `from` is checked by the kernel.
        let copied = unsafe { libc::process_vm_readv(libc::getpid(), &to, 1, &from, 1, 0) };
        match usize::try_from(copied) {
            Ok(0) => break,
            Ok(copied) => done += copied,
            Err(_) => match io::Error::last_os_error() {
                error if error.raw_os_error() == Some(libc::EFAULT) => break,
                error => return Err(error),
            },
        }
    }
    Ok(done)
}

fn by_file(addr: usize, buf: &mut [u8]) -> io::Result<usize> {
    point("memfd_create")?;
    // SAFETY: takes a name and flags, returns a descriptor or -1.
    let fd = unsafe { libc::memfd_create(c"glebe-peek".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just made it and nobody else has it.
    let file: File = unsafe { OwnedFd::from_raw_fd(fd) }.into();
    let mut done = 0;
    while done < buf.len() {
        let at = std::ptr::with_exposed_provenance(addr + done);
        point("write")?;
        // SAFETY: the kernel reads at `at` and checks that itself.
        let written = unsafe { libc::write(fd, at, buf.len() - done) };
        match usize::try_from(written) {
            Ok(0) => break,
            Ok(written) => done += written,
            Err(_) => match io::Error::last_os_error() {
                error if error.raw_os_error() == Some(libc::EFAULT) => break,
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    }
    file::read_at(&file, &mut buf[..done], 0)?;
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::mmap::{map, munmap, Backing};
    use crate::sys::page_size;
    use crate::units::Bytes;

    #[test]
    fn both_ways_stop_at_the_first_page_that_is_not_there() {
        let page = page_size().bytes().as_usize();
        let len = Bytes::new(4 * page as u64);
        let addr = map(len, Backing::Ordinary).unwrap();
        let at: *mut u8 = std::ptr::with_exposed_provenance_mut(addr);
        for i in 0..3 * page {
            // SAFETY: inside the mapping just made.
            unsafe { at.add(i).write_volatile((i % 251) as u8) };
        }
        // SAFETY: the third page is this test's; nothing refers to it.
        unsafe { munmap(addr + 2 * page, page_size().bytes()).unwrap() };
        for way in [by_process, by_file] {
            let mut buf = vec![0xFF; 4 * page - 7];
            assert_eq!(way(addr + 7, &mut buf).unwrap(), 2 * page - 7);
            let right = |(i, byte): (usize, &u8)| *byte == ((i + 7) % 251) as u8;
            assert!(buf[..2 * page - 7].iter().enumerate().all(right));
            assert_eq!(way(addr + 2 * page, &mut buf[..1]).unwrap(), 0);
        }
        // SAFETY: what is left of the mapping.
        unsafe { munmap(addr, len).unwrap() };
    }
}
