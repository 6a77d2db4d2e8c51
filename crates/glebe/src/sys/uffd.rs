//! A userfaultfd descriptor: opened, greeted, told of a range, and asked to fill its holes.
//!
//! Owns the descriptor; what it registered ends when it is dropped. A descriptor opened for user
//! mode only cannot see faults that the kernel takes on the process's behalf: with the SIGBUS
//! feature nothing is lost by that, since those calls return EFAULT either way.
//! Source: userfaultfd(2), ioctl_userfaultfd(2), `include/uapi/linux/userfaultfd.h`.
//!
//! # Safety
//! The calls pass pointers to structures of this file, laid out as the kernel's. Registering
//! changes what a touch of a page does, so [`Uffd::register_missing`] is unsafe, and so is its
//! counterpart.
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;

use crate::error::OsError;
use crate::sys::fault::point;
use crate::sys::{file, page_size};
use crate::units::Bytes;

/// Version of the interface; there has been only one.
const UFFD_API: u64 = 0xAA;
/// `_UFFDIO` ioctl type.
const TYPE: u32 = 0xAA;
const REGISTER_MODE_MISSING: u64 = 1 << 0;
const USER_MODE_ONLY: libc::c_int = 1;
/// A touch of a missing page is SIGBUS, not a message to a reader of the descriptor.
const FEATURE_SIGBUS: u64 = 1 << 7;
const DEVICE: &str = "/dev/userfaultfd";

/// `struct uffdio_api`.
#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_register`.
#[repr(C)]
struct Register {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

/// `struct uffdio_range`.
#[repr(C)]
struct Span {
    start: u64,
    len: u64,
}

/// `struct uffdio_zeropage`.
#[repr(C)]
struct ZeroPage {
    range: Span,
    mode: u64,
    /// Bytes filled, or a negated error number.
    filled: i64,
}

const _: () = assert!(size_of::<Api>() == 24 && size_of::<Register>() == 32);
const _: () = assert!(size_of::<Span>() == 16 && size_of::<ZeroPage>() == 32);

/// Which faults the descriptor is to see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Faults {
    /// Those taken in user mode; needs Linux 5.11, no privilege.
    User,
    /// Those of system calls as well; needs a privilege, a sysctl or the device file.
    All,
}

/// An open userfaultfd.
#[derive(Debug)]
pub(crate) struct Uffd(OwnedFd);

impl Uffd {
    /// A new descriptor from the system call, closed on exec.
    pub(crate) fn open(faults: Faults) -> io::Result<Self> {
        let only = if faults == Faults::User { USER_MODE_ONLY } else { 0 };
        // SAFETY: takes flags, returns a descriptor or -1.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | only) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel just made it and nobody else has it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) }))
    }

    /// A new descriptor from the open device file (`/dev/userfaultfd`, Linux 6.1).
    pub(crate) fn from_device(device: &File) -> io::Result<Self> {
        // SAFETY: USERFAULTFD_IOC_NEW takes flags, returns a descriptor or -1; another kind of
        // file answers ENOTTY.
        let fd = unsafe { libc::ioctl(device.as_raw_fd(), libc::_IO(TYPE, 0), libc::O_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel just made it and nobody else has it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Agrees on the version, turns on `wanted` and returns every feature there is. Once per
    /// descriptor.
    pub(crate) fn api(&self, wanted: u64) -> io::Result<u64> {
        let mut api = Api { api: UFFD_API, features: wanted, ioctls: 0 };
        // SAFETY: the kernel reads and writes one `Api`.
        match unsafe { libc::ioctl(self.0.as_raw_fd(), libc::_IOWR::<Api>(TYPE, 0x3F), &mut api) } {
            0 => Ok(api.features),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The bare number, for a signal handler.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Asks for faults on missing pages of `len` bytes at `start`; returns the set of ioctls,
    /// by bit, that the range takes.
    ///
    /// # Safety
    /// The caller owns the range and nobody touches a missing page of it afterwards who is not
    /// ready for the fault.
    pub(crate) unsafe fn register_missing(&self, start: *mut u8, len: usize) -> io::Result<u64> {
        let mut arg = Register {
            start: start as u64,
            len: len as u64,
            mode: REGISTER_MODE_MISSING,
            ioctls: 0,
        };
        let request = libc::_IOWR::<Register>(TYPE, 0);
        // SAFETY: the kernel reads and writes one `Register`; the range is the caller's.
        match unsafe { libc::ioctl(self.0.as_raw_fd(), request, &mut arg) } {
            0 => Ok(arg.ioctls),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// A descriptor in whose ranges a touch of a missing page is SIGBUS, by whichever way is
    /// open: the system call for user mode, that for all faults, the device file.
    pub(crate) fn open_sigbus() -> Result<Self, OsError> {
        point("userfaultfd")
            .and_then(|()| Self::open(Faults::User))
            .or_else(|first| {
                let device = || file::open(Path::new(DEVICE), OpenOptions::new().read(true));
                Self::open(Faults::All)
                    .or_else(|_| device().and_then(|file| Self::from_device(&file)))
                    .map_err(|_| first)
            })
            .and_then(|uffd| uffd.api(FEATURE_SIGBUS).map(|_| uffd))
            .map_err(|source| OsError::new("userfaultfd", "UFFD_FEATURE_SIGBUS", source))
    }

    /// As [`Uffd::register_missing`], with the range in the error.
    ///
    /// # Safety
    /// As there.
    pub(crate) unsafe fn arm(&self, addr: usize, len: Bytes) -> Result<(), OsError> {
        let at = std::ptr::with_exposed_provenance_mut(addr);
        point("ioctl")
            // SAFETY: passed on.
            .and_then(|()| unsafe { self.register_missing(at, len.as_usize()) })
            .map(drop)
            .map_err(|source| refused("UFFDIO_REGISTER", addr, len, source))
    }

    /// Ends what [`Uffd::arm`] began; a missing page there is a page of zeros at its next touch.
    ///
    /// # Safety
    /// The caller owns the range and expects holes in it to become zeros unseen.
    pub(crate) unsafe fn disarm(&self, addr: usize, len: Bytes) -> Result<(), OsError> {
        let mut arg = Span { start: addr as u64, len: len.get() };
        let request = libc::_IOR::<Span>(TYPE, 1);
        let made = point("ioctl").and_then(|()| {
            // SAFETY: the kernel reads one `Span`; the range is the caller's.
            match unsafe { libc::ioctl(self.0.as_raw_fd(), request, &mut arg) } {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        });
        made.map_err(|source| refused("UFFDIO_UNREGISTER", addr, len, source))
    }

    /// Puts the page of zeros into every hole of an armed range; what is there stays.
    pub(crate) fn fill_holes(&self, addr: usize, len: Bytes) -> Result<(), OsError> {
        let page = page_size().bytes().get();
        let (mut at, end) = (addr as u64, addr as u64 + len.get());
        while at < end {
            let span = Span { start: at, len: end - at };
            let mut arg = ZeroPage { range: span, mode: 0, filled: 0 };
            let request = libc::_IOWR::<ZeroPage>(TYPE, 4);
            let made = point("ioctl").and_then(|()| {
                // SAFETY: the kernel reads and writes one `ZeroPage`, and only adds pages of
                // zeros where the caller armed the range and there was nothing.
                match unsafe { libc::ioctl(self.0.as_raw_fd(), request, &mut arg) } {
                    0 => Ok(()),
                    _ => Err(io::Error::last_os_error()),
                }
            });
            let filled = u64::try_from(arg.filled).unwrap_or(0);
            at += filled;
            match made {
                Ok(()) => break,
                // Some were filled: the rest is asked for anew.
                Err(_) if filled > 0 => {}
                Err(error) => match error.raw_os_error() {
                    Some(libc::EEXIST) => at += page,
                    Some(libc::EAGAIN | libc::EINTR) => {}
                    _ => return Err(refused("UFFDIO_ZEROPAGE", addr, len, error)),
                },
            }
        }
        Ok(())
    }
}

fn refused(call: &'static str, addr: usize, len: Bytes, source: io::Error) -> OsError {
    OsError::new(call, format!("{addr:#x}, {len}"), source)
}
