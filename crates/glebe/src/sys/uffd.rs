//! A userfaultfd descriptor: opened, greeted, told of a range, and asked to fill its holes.
//!
//! Owns the descriptor; what it registered ends when it is dropped. A descriptor opened for user
//! mode only cannot see faults that the kernel takes on the process's behalf: with the SIGBUS
//! feature nothing is lost by that, since those calls return EFAULT either way.
//! Source: userfaultfd(2), ioctl_userfaultfd(2), `include/uapi/linux/userfaultfd.h`.
//!
//! # Safety
//! The calls pass pointers to structures of this file, laid out as the kernel's. Registering
//! changes what a touch of a page does, so [`Uffd::arm`] is unsafe, and so is its
//! counterpart.
#![allow(unsafe_code)]

mod pages;

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::ptr;

use crate::error::OsError;
use crate::sys::call::answer;
use crate::sys::fault::point;
use crate::sys::sigbus::fill;
use crate::sys::{file, page_size};
use crate::units::Bytes;

pub(crate) use pages::{Pager, MISSING, UNMOVABLE};

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

const _: () = assert!(size_of::<Api>() == 24 && size_of::<Register>() == 32);
const _: () = assert!(size_of::<Span>() == 16);

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
        let fd = answer("userfaultfd", || unsafe {
            libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | only)
        })?;
        // SAFETY: the kernel just made it and nobody else has it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) }))
    }

    /// A new descriptor from the device file (Linux 6.1).
    pub(crate) fn open_device() -> io::Result<Self> {
        let device = file::open(Path::new(DEVICE), OpenOptions::new().read(true))?;
        // SAFETY: USERFAULTFD_IOC_NEW takes flags, returns a descriptor or -1; another kind of
        // file answers ENOTTY.
        let fd = answer("ioctl", || unsafe {
            libc::ioctl(device.as_raw_fd(), libc::_IO(TYPE, 0), libc::O_CLOEXEC)
        })?;
        // SAFETY: the kernel just made it and nobody else has it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// The bare number, for a signal handler.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// A descriptor in whose ranges a touch of a missing page is SIGBUS, by whichever way is
    /// open: the system call for user mode, that for all faults, the device file.
    pub(crate) fn open_sigbus() -> Result<Self, OsError> {
        Self::open_for(FEATURE_SIGBUS, "UFFD_FEATURE_SIGBUS")
    }

    /// As [`Uffd::open_sigbus`], with all of these features.
    fn open_for(features: u64, names: &str) -> Result<Self, OsError> {
        let opened = Self::open(Faults::User).or_else(|first| {
            Self::open(Faults::All).or_else(|_| Self::open_device()).map_err(|_| first)
        });
        opened
            .and_then(|uffd| {
                let mut api = Api { api: UFFD_API, features, ioctls: 0 };
                // SAFETY: the kernel reads and writes one `Api`.
                unsafe { uffd.control(libc::_IOWR::<Api>(TYPE, 0x3F), &mut api) }.map(|()| uffd)
            })
            .map_err(|source| OsError::new("userfaultfd", names, source))
    }

    /// One ioctl.
    ///
    /// # Safety
    /// `arg` is what the request wants, and the caller may have it done.
    unsafe fn control<T>(&self, request: libc::Ioctl, arg: &mut T) -> io::Result<()> {
        let arg = ptr::from_mut(arg);
        // SAFETY: passed on to the caller.
        answer("ioctl", || unsafe { libc::ioctl(self.0.as_raw_fd(), request, arg) }).map(drop)
    }

    /// Asks for faults on missing pages of a range; returns the set of ioctls, by bit, that the
    /// range takes.
    ///
    /// # Safety
    /// The caller owns the range and nobody touches a missing page of it afterwards who is not
    /// ready for the fault.
    pub(crate) unsafe fn register(&self, addr: usize, len: Bytes) -> Result<u64, OsError> {
        // SAFETY: passed on to the caller.
        unsafe { self.register_for(addr, len, REGISTER_MODE_MISSING) }
    }

    /// As [`Uffd::register`], for the faults of a mode.
    ///
    /// # Safety
    /// As there.
    unsafe fn register_for(&self, addr: usize, len: Bytes, mode: u64) -> Result<u64, OsError> {
        let (start, len_bytes) = (addr as u64, len.get());
        let mut arg = Register { start, len: len_bytes, mode, ioctls: 0 };
        // SAFETY: the kernel reads and writes one `Register`; the range is the caller's.
        let made = unsafe { self.control(libc::_IOWR::<Register>(TYPE, 0), &mut arg) };
        made.map(|()| arg.ioctls).map_err(|source| refused("UFFDIO_REGISTER", addr, len, source))
    }

    /// As [`Uffd::register`].
    ///
    /// # Safety
    /// As there.
    pub(crate) unsafe fn arm(&self, addr: usize, len: Bytes) -> Result<(), OsError> {
        // SAFETY: passed on to the caller.
        unsafe { self.register(addr, len) }.map(drop)
    }

    /// Ends what [`Uffd::arm`] began; a missing page there is a page of zeros at its next touch.
    ///
    /// # Safety
    /// The caller owns the range and expects holes in it to become zeros unseen.
    pub(crate) unsafe fn disarm(&self, addr: usize, len: Bytes) -> Result<(), OsError> {
        let mut arg = Span { start: addr as u64, len: len.get() };
        // SAFETY: the kernel reads one `Span`; the range is the caller's.
        let made = unsafe { self.control(libc::_IOR::<Span>(TYPE, 1), &mut arg) };
        made.map_err(|source| refused("UFFDIO_UNREGISTER", addr, len, source))
    }

    /// Puts the page of zeros into every hole of an armed range; what is there stays.
    pub(crate) fn fill_holes(&self, addr: usize, len: Bytes) -> Result<(), OsError> {
        let page = page_size().bytes().as_usize();
        let made = loop {
            // SAFETY: it only adds pages of zeros where the caller armed the range and there was
            // nothing.
            let fill = || unsafe { fill::zero(self.descriptor(), addr, len.as_usize(), page) };
            match point("ioctl").and_then(|()| fill().map_err(io::Error::from_raw_os_error)) {
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {}
                made => break made,
            }
        };
        made.map_err(|source| refused("UFFDIO_ZEROPAGE", addr, len, source))
    }
}

fn refused(call: &'static str, addr: usize, len: Bytes, source: io::Error) -> OsError {
    OsError::new(call, format!("{addr:#x}, {len}"), source)
}
