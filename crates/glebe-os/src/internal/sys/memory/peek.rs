//! [`peek`] and [`poke`] copy memory that may be missing, without a signal.
//!
//! Both use process_vm_readv(2) and process_vm_writev(2), or a memfd if a filter refuses these
//! calls.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsRawFd;

use crate::error::OsError;
use crate::internal::sync::{MappedByte, Ordering};
use crate::internal::sys::fault::point;
use crate::internal::sys::files::file;
use crate::internal::sys::memory::memfd;

/// 1 once process_vm_readv(2) or process_vm_writev(2) was refused.
static REFUSED: MappedByte = MappedByte::new(0);

/// Copies `buf` to `addr` until memory is missing or read-only. Returns the number of bytes copied.
///
/// # Safety
/// The caller may write the range, and the program holds no reference to it.
pub unsafe fn poke(addr: usize, buf: &[u8]) -> Result<usize, OsError> {
    // SAFETY: the caller keeps the contract.
    either("process_vm_writev", |directly| unsafe {
        if directly {
            to_process(addr, buf)
        } else {
            from_file(addr, buf)
        }
    })
}

/// Copies from `addr` until memory is missing. Returns the number of bytes copied.
pub fn peek(addr: usize, buf: &mut [u8]) -> Result<usize, OsError> {
    let copy = |directly| if directly { by_process(addr, buf) } else { by_file(addr, buf) };
    either("process_vm_readv", copy)
}

/// Calls `copy(true)` or, if the kernel refuses that, `copy(false)`, which uses a memfd.
fn either(
    call: &'static str,
    mut copy: impl FnMut(bool) -> io::Result<usize>,
) -> Result<usize, OsError> {
    if REFUSED.load(Ordering::Relaxed) == 0 {
        match copy(true) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) => {
                REFUSED.store(1, Ordering::Relaxed);
            }
            other => return other.map_err(|source| OsError::new(call, "self", source)),
        }
    }
    copy(false).map_err(|source| OsError::new("memfd_create", "a copy", source))
}

fn repeat(len: usize, mut copy: impl FnMut(usize) -> io::Result<isize>) -> io::Result<usize> {
    let mut done = 0;
    while done < len {
        match usize::try_from(copy(done)?) {
            Ok(0) => break,
            Ok(copied) => done += copied,
            Err(_) => match io::Error::last_os_error() {
                error if error.raw_os_error() == Some(libc::EFAULT) => break,
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    }
    Ok(done)
}

fn by_process(addr: usize, buf: &mut [u8]) -> io::Result<usize> {
    repeat(buf.len(), |done| {
        let rest = &mut buf[done..];
        let to = libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() };
        let at = std::ptr::with_exposed_provenance_mut(addr + done);
        let from = libc::iovec { iov_base: at, iov_len: rest.len() };
        point("process_vm_readv")?;
        // SAFETY: `to` is a slice; the kernel checks `from`.
        Ok(unsafe { libc::process_vm_readv(libc::getpid(), &to, 1, &from, 1, 0) })
    })
}

/// # Safety
/// See [`poke`].
unsafe fn to_process(addr: usize, buf: &[u8]) -> io::Result<usize> {
    repeat(buf.len(), |done| {
        let rest = &buf[done..];
        let from = libc::iovec { iov_base: rest.as_ptr().cast_mut().cast(), iov_len: rest.len() };
        let at = std::ptr::with_exposed_provenance_mut(addr + done);
        let to = libc::iovec { iov_base: at, iov_len: rest.len() };
        point("process_vm_writev")?;
        // SAFETY: `from` is a slice; the caller vouches for `to`, and the kernel checks it.
        Ok(unsafe { libc::process_vm_writev(libc::getpid(), &from, 1, &to, 1, 0) })
    })
}

/// # Safety
/// See [`poke`].
unsafe fn from_file(addr: usize, buf: &[u8]) -> io::Result<usize> {
    let mut file = memfd::make(None)?;
    file::write(&mut file, buf)?;
    repeat(buf.len(), |done| {
        let at = std::ptr::with_exposed_provenance_mut(addr + done);
        point("pread")?;
        let rest = buf.len() - done;
        // SAFETY: the caller vouches for the range, and the kernel checks it.
        Ok(unsafe { libc::pread(file.as_raw_fd(), at, rest, done as libc::off_t) })
    })
}

fn by_file(addr: usize, buf: &mut [u8]) -> io::Result<usize> {
    let file = memfd::make(None)?;
    let done = repeat(buf.len(), |done| {
        let at = std::ptr::with_exposed_provenance(addr + done);
        point("write")?;
        // SAFETY: the kernel checks the range at `at`.
        Ok(unsafe { libc::write(file.as_raw_fd(), at, buf.len() - done) })
    })?;
    file::read_at(&file, &mut buf[..done], 0)?;
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::internal::sys::memory::mmap::{map, munmap, protect, Backing};
    use crate::internal::sys::page_size;
    use crate::units::Bytes;

    #[test]
    fn both_ways_stop_at_the_first_page_without_access() {
        let page = page_size().bytes().as_usize();
        let len = Bytes::new(4 * page as u64);
        let addr = map(len, Backing::Ordinary).unwrap();
        let at: *mut u8 = std::ptr::with_exposed_provenance_mut(addr);
        for i in 0..3 * page {
            // SAFETY: within the mapping just made.
            unsafe { at.add(i).write_volatile((i % 251) as u8) };
        }
        // An unmapped page could become another test's memory.
        // SAFETY: a page of this test's mapping; nothing refers to it.
        unsafe { protect(addr + 2 * page, page_size().bytes(), libc::PROT_NONE).unwrap() };
        let bytes: Vec<u8> = (7..4 * page).map(|i| (i % 251) as u8).collect();
        type Way = unsafe fn(usize, &[u8]) -> io::Result<usize>;
        for way in [to_process as Way, from_file as Way] {
            // SAFETY: this test's mapping; nothing refers to it.
            unsafe {
                assert_eq!(way(addr + 7, &bytes).unwrap(), 2 * page - 7);
                assert_eq!(way(addr + 2 * page, &bytes[..1]).unwrap(), 0);
            }
        }
        for way in [by_process, by_file] {
            let mut buf = vec![0xFF; 4 * page - 7];
            assert_eq!(way(addr + 7, &mut buf).unwrap(), 2 * page - 7);
            let right = |(i, byte): (usize, &u8)| *byte == ((i + 7) % 251) as u8;
            assert!(buf[..2 * page - 7].iter().enumerate().all(right));
            assert_eq!(way(addr + 2 * page, &mut buf[..1]).unwrap(), 0);
        }
        // SAFETY: this test's mapping.
        unsafe { munmap(addr, len).unwrap() };
    }
}
