//! [`allocate`] gets a buffer from a dma-heap, a device file.
//!
//! The kernel does not say which heaps give contiguous buffers, so callers inspect the buffer.
//! Source: `Documentation/userspace-api/dma-buf-heaps.rst`, `linux/dma-heap.h`.
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use crate::error::OsError;
use crate::internal::sys::call::answer;
use crate::internal::sys::files::file;
use crate::units::Bytes;

pub const ROOT: &str = "/dev/dma_heap";

#[must_use]
pub fn heaps() -> Vec<PathBuf> {
    let mut names = file::names(Path::new(ROOT)).unwrap_or_default();
    names.sort_unstable();
    names.into_iter().map(|name| Path::new(ROOT).join(name)).collect()
}

/// `struct dma_heap_allocation_data`.
#[repr(C)]
struct Allocation {
    len: u64,
    fd: u32,
    fd_flags: u32,
    heap_flags: u64,
}

/// `_IOWR('H', 0, struct dma_heap_allocation_data)`
const ALLOCATE: libc::Ioctl =
    ((3 << 30) | ((size_of::<Allocation>() as u32) << 16) | ((b'H' as u32) << 8)) as libc::Ioctl;

const _: () = assert!(size_of::<Allocation>() == 24);

pub fn allocate(path: &Path, len: Bytes) -> Result<File, OsError> {
    let refused = |call, source| OsError::new(call, path.display().to_string(), source);
    let heap = file::open(path, OpenOptions::new().read(true).write(true))
        .map_err(|source| refused("open", source))?;
    let fd_flags = (libc::O_RDWR | libc::O_CLOEXEC) as u32;
    let mut asked = Allocation { len: len.get(), fd: 0, fd_flags, heap_flags: 0 };
    // SAFETY: the kernel accesses one structure of the size in `ALLOCATE`.
    answer("ioctl", || unsafe { libc::ioctl(heap.as_raw_fd(), ALLOCATE, &raw mut asked) })
        .map_err(|source| refused("ioctl(DMA_HEAP_IOCTL_ALLOC)", source))?;
    // SAFETY: nothing else owns the new descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(asked.fd as libc::c_int) }.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_heap_is_an_error_with_its_path() {
        let none = Path::new(ROOT).join("no-such-heap");
        let error = allocate(&none, Bytes::mib(1)).unwrap_err();
        assert!(error.subject().ends_with("no-such-heap") && error.call() == "open", "{error}");
        let error = allocate(Path::new("/dev/null"), Bytes::mib(1)).unwrap_err();
        assert_eq!(error.errno(), Some(libc::ENOTTY), "{error}");
    }
}
