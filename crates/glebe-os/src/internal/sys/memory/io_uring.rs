//! [`Ring`] is an io_uring that only pins buffers and makes no requests.
//!
//! Closing the ring unpins its buffers later, from a kernel worker. Source: io_uring_setup(2),
//! io_uring_register(2).
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::internal::sys::call::answer;
use crate::units::Bytes;

const REGISTER_BUFFERS: libc::c_uint = 0;
const UNREGISTER_BUFFERS: libc::c_uint = 1;
const UPDATE_BUFFERS: libc::c_uint = 16;

const BUFFER_MAX: Bytes = Bytes::gib(1);
/// Least length of a buffer. Only whole buffers can be unpinned.
const BUFFER_MIN: Bytes = Bytes::mib(2);
/// Number of buffers per ring that every kernel accepts.
const BUFFERS_EVERYWHERE: u64 = 1 << 10;
const BUFFERS_MAX: usize = 1 << 14;

/// Returns the length of each buffer, except the last, in [`Ring::pin_all`].
pub fn buffer_len(len: Bytes) -> Bytes {
    let least = len.get().div_ceil(BUFFERS_EVERYWHERE).checked_next_power_of_two();
    Bytes::new(least.unwrap_or(u64::MAX)).max(BUFFER_MIN).min(BUFFER_MAX)
}

/// `struct io_uring_rsrc_update2`.
#[repr(C)]
struct Update {
    first: u32,
    reserved: u32,
    iovecs: u64,
    tags: u64,
    count: u32,
    reserved_too: u32,
}

/// `struct io_uring_params` in words; zeros ask for the defaults.
type Params = [u32; 30];

#[derive(Debug)]
pub struct Ring(OwnedFd);

impl Ring {
    pub fn new() -> io::Result<Self> {
        let mut params: Params = [0; 30];
        // SAFETY: the kernel accesses only the parameters.
        let fd = answer("io_uring_setup", || unsafe {
            libc::syscall(libc::SYS_io_uring_setup, 1, params.as_mut_ptr())
        })?;
        // SAFETY: nothing else owns the new descriptor.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) }))
    }

    /// Pins `len` bytes at `start` and populates their pages.
    pub fn pin_all(&self, start: *mut u8, len: Bytes) -> io::Result<()> {
        let (most, len) = (buffer_len(len).as_usize(), len.as_usize());
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
        self.register(REGISTER_BUFFERS, iovecs.as_ptr().cast(), iovecs.len()).map(drop)
    }

    /// Unpins buffers by number (Linux 5.13). With `at`, the first buffer's address, pins them
    /// again: `each` bytes per buffer, `len` bytes in all.
    pub fn change(
        &self,
        buffers: std::ops::Range<usize>,
        at: Option<*mut u8>,
        (each, len): (Bytes, Bytes),
    ) -> io::Result<()> {
        let each = each.as_usize();
        let iovec = |nth: usize| match at {
            Some(at) => libc::iovec {
                iov_base: at.wrapping_add(nth * each).cast(),
                iov_len: each.min(len.as_usize() - nth * each),
            },
            None => libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 },
        };
        let iovecs: Vec<libc::iovec> = (0..buffers.len()).map(iovec).collect();
        let update = Update {
            first: buffers.start as u32,
            reserved: 0,
            iovecs: iovecs.as_ptr().expose_provenance() as u64,
            tags: 0,
            count: iovecs.len() as u32,
            reserved_too: 0,
        };
        match self.register(UPDATE_BUFFERS, (&raw const update).cast(), size_of::<Update>())? {
            done if done < buffers.len() => {
                Err(io::Error::other(format!("{done} of {} buffers were changed", buffers.len())))
            }
            _ => Ok(()),
        }
    }

    pub fn unpin(&self) -> io::Result<()> {
        self.register(UNREGISTER_BUFFERS, std::ptr::null(), 0).map(drop)
    }

    fn register(&self, op: libc::c_uint, arg: *const libc::c_void, n: usize) -> io::Result<usize> {
        // SAFETY: `arg` outlives the call, which returns EFAULT for a bad range.
        let done = answer("io_uring_register", || unsafe {
            libc::syscall(libc::SYS_io_uring_register, self.0.as_raw_fd(), op, arg, n)
        })?;
        Ok(done as usize)
    }
}
