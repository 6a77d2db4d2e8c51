//! An io_uring used for one thing: a long-term pin on a buffer, with no device needed.
//!
//! Owns the ring's descriptor and no mapping of its queues. A registered buffer is held until it
//! is unregistered; closing the ring gives it up as well, but later, from a kernel worker.
//! Source: io_uring_setup(2), io_uring_register(2).
//!
//! # Safety
//! The calls pass a parameter block of the kernel's size and an iovec; the pages of the iovec are
//! only pinned, never written, since no request is ever submitted.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::sys::fault::point;
use crate::units::Bytes;

const REGISTER_BUFFERS: libc::c_uint = 0;
const UNREGISTER_BUFFERS: libc::c_uint = 1;

/// The most that one buffer may have.
const BUFFER_MAX: Bytes = Bytes::gib(1);
/// The most buffers that a ring may have.
const BUFFERS_MAX: usize = 1 << 14;

/// `struct io_uring_params` in words; all zero asks for the defaults.
type Params = [u32; 30];

/// An open ring.
#[derive(Debug)]
pub(crate) struct Ring(OwnedFd);

impl Ring {
    /// A ring of the smallest size.
    pub(crate) fn new() -> io::Result<Self> {
        let mut params: Params = [0; 30];
        point("io_uring_setup")?;
        // SAFETY: the kernel reads and writes one parameter block, returns a descriptor or -1
        // (always with close-on-exec).
        let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, params.as_mut_ptr()) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel just made it and nobody else has it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) }))
    }

    /// Pins `len` bytes at `start`, populating them.
    pub(crate) fn pin(&self, start: *mut u8, len: usize) -> io::Result<()> {
        let iovec = libc::iovec { iov_base: start.cast(), iov_len: len };
        self.register(REGISTER_BUFFERS, &raw const iovec, 1)
    }

    /// Pins `len` bytes at `start`, in as many buffers as that takes, populating them.
    pub(crate) fn pin_all(&self, start: *mut u8, len: Bytes) -> io::Result<()> {
        let (most, len) = (BUFFER_MAX.as_usize(), len.as_usize());
        let buffers = len.div_ceil(most);
        if buffers > BUFFERS_MAX {
            let what = format!("{buffers} buffers of {BUFFER_MAX}; at most {BUFFERS_MAX} are had");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let iovec = |at: usize| libc::iovec {
            iov_base: start.wrapping_add(at).cast(),
            iov_len: most.min(len - at),
        };
        let iovecs: Vec<libc::iovec> = (0..len).step_by(most).map(iovec).collect();
        self.register(REGISTER_BUFFERS, iovecs.as_ptr(), iovecs.len() as u32)
    }

    /// Gives up the pin at once.
    pub(crate) fn unpin(&self) -> io::Result<()> {
        self.register(UNREGISTER_BUFFERS, std::ptr::null(), 0)
    }

    fn register(&self, op: libc::c_uint, arg: *const libc::iovec, n: u32) -> io::Result<()> {
        point("io_uring_register")?;
        // SAFETY: `arg` holds `n` iovecs for the length of the call; a bad range is EFAULT.
        let rc =
            unsafe { libc::syscall(libc::SYS_io_uring_register, self.0.as_raw_fd(), op, arg, n) };
        if rc < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}
