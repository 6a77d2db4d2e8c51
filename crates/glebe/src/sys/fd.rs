//! Descriptors whose number outlives what they stand for. Source: dup(2).
//!
//! # Safety
//! The calls take descriptors that are open for their length.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use crate::sys::fault::point;

/// Puts `new` in the place of `old`, at its number, and closes what stood there. Allocates
/// nothing.
pub(crate) fn replace(old: BorrowedFd<'_>, new: &OwnedFd) -> io::Result<()> {
    loop {
        point("dup3")?;
        // SAFETY: both are open; who holds `old` goes on holding that number.
        if unsafe { libc::dup3(new.as_raw_fd(), old.as_raw_fd(), libc::O_CLOEXEC) } >= 0 {
            return Ok(());
        }
        // Busy while another thread opens a file.
        let error = io::Error::last_os_error();
        if !matches!(error.raw_os_error(), Some(libc::EINTR | libc::EBUSY)) {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek, Write};
    use std::os::fd::AsFd;

    fn file(text: &str) -> std::fs::File {
        // SAFETY: a name that ends; the descriptor was just made.
        let fd = unsafe {
            let fd = libc::memfd_create(c"fd".as_ptr(), libc::MFD_CLOEXEC);
            assert!(fd >= 0);
            std::os::fd::FromRawFd::from_raw_fd(fd)
        };
        let mut file: std::fs::File = fd;
        file.write_all(text.as_bytes()).unwrap();
        file.rewind().unwrap();
        file
    }

    #[test]
    fn the_number_stays_and_the_file_is_the_new_one() {
        let mut old = file("old");
        let number = old.as_raw_fd();
        replace(old.as_fd(), &file("new").into()).unwrap();
        let mut text = String::new();
        old.read_to_string(&mut text).unwrap();
        assert_eq!((text.as_str(), old.as_raw_fd()), ("new", number));
        // SAFETY: only asks.
        let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
        assert_eq!(flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
    }
}
