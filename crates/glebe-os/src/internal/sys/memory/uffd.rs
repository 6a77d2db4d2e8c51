//! [`Uffd`] is a userfaultfd, which registers (*arms*) ranges and fills their missing pages.
//!
//! Dropping a `Uffd` ends its registrations. A system call that touches a missing page returns
//! EFAULT if the descriptor is for user mode or has the SIGBUS feature. Source: userfaultfd(2),
//! ioctl_userfaultfd(2).
#![allow(unsafe_code)]

mod pages;

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::ptr;

use crate::error::OsError;
use crate::internal::sys::call::answer;
use crate::internal::sys::fault::point;
use crate::internal::sys::files::file;
use crate::internal::sys::page_size;
use crate::internal::sys::processes::sigbus::fill;
use crate::units::Bytes;

pub use pages::{Pager, MISSING, SHARED, UNMOVABLE};

const UFFD_API: u64 = 0xAA;
const TYPE: u32 = 0xAA;
const REGISTER_MODE_MISSING: u64 = 1 << 0;
const USER_MODE_ONLY: libc::c_int = 1;
/// Makes a touch of a missing page raise SIGBUS and send no message.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Faults {
    /// Faults in user mode; Linux 5.11, no privilege.
    User,
    /// Faults in system calls too; needs a privilege, a sysctl or the device file.
    All,
}

#[derive(Debug)]
pub struct Uffd(OwnedFd);

impl Uffd {
    pub fn open(faults: Faults) -> io::Result<Self> {
        let only = if faults == Faults::User { USER_MODE_ONLY } else { 0 };
        // SAFETY: the call takes only flags.
        let fd = answer("userfaultfd", || unsafe {
            libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | only)
        })?;
        // SAFETY: nobody else has the new descriptor.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) }))
    }

    /// Opens a descriptor by the device file (Linux 6.1).
    pub fn open_device() -> io::Result<Self> {
        let device = file::open(Path::new(DEVICE), OpenOptions::new().read(true))?;
        // SAFETY: the call takes only flags.
        let fd = answer("ioctl", || unsafe {
            libc::ioctl(device.as_raw_fd(), libc::_IO(TYPE, 0), libc::O_CLOEXEC)
        })?;
        // SAFETY: nobody else has the new descriptor.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    pub fn descriptor(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Opens a descriptor that makes a touch of a missing page raise SIGBUS.
    pub fn open_sigbus() -> Result<Self, OsError> {
        Self::open_for(FEATURE_SIGBUS, "UFFD_FEATURE_SIGBUS")
    }

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

    /// # Safety
    /// `arg` is what the request expects, and the caller may make the request.
    unsafe fn control<T>(&self, request: libc::Ioctl, arg: &mut T) -> io::Result<()> {
        let arg = ptr::from_mut(arg);
        // SAFETY: the caller keeps the contract.
        answer("ioctl", || unsafe { libc::ioctl(self.0.as_raw_fd(), request, arg) }).map(drop)
    }

    /// Registers a range for faults on missing pages. Returns the supported ioctls, as bits.
    ///
    /// # Safety
    /// The caller owns the range, and every thread that accesses it handles the fault.
    pub unsafe fn register(&self, addr: usize, len: Bytes) -> Result<u64, OsError> {
        // SAFETY: the caller keeps the contract.
        unsafe { self.register_for(addr, len, REGISTER_MODE_MISSING) }
    }

    /// # Safety
    /// See [`Uffd::register`].
    unsafe fn register_for(&self, addr: usize, len: Bytes, mode: u64) -> Result<u64, OsError> {
        let (start, len_bytes) = (addr as u64, len.get());
        let mut arg = Register { start, len: len_bytes, mode, ioctls: 0 };
        // SAFETY: the kernel reads and writes one `Register`; the caller owns the range.
        let made = unsafe { self.control(libc::_IOWR::<Register>(TYPE, 0), &mut arg) };
        made.map(|()| arg.ioctls).map_err(|source| refused("UFFDIO_REGISTER", addr, len, source))
    }

    /// # Safety
    /// See [`Uffd::register`].
    pub unsafe fn arm(&self, addr: usize, len: Bytes) -> Result<(), OsError> {
        // SAFETY: the caller keeps the contract.
        unsafe { self.register(addr, len) }.map(drop)
    }

    /// Ends [`Uffd::arm`], so that a touch of a missing page finds zeros.
    ///
    /// # Safety
    /// The caller owns the range and expects zeros there.
    pub unsafe fn disarm(&self, addr: usize, len: Bytes) -> Result<(), OsError> {
        let mut arg = Span { start: addr as u64, len: len.get() };
        // SAFETY: the kernel reads one `Span`; the caller owns the range.
        let made = unsafe { self.control(libc::_IOR::<Span>(TYPE, 1), &mut arg) };
        made.map_err(|source| refused("UFFDIO_UNREGISTER", addr, len, source))
    }

    pub fn fill_holes(&self, addr: usize, len: Bytes) -> Result<(), OsError> {
        let page = page_size().bytes().as_usize();
        let made = loop {
            // SAFETY: the call only adds zeros where an armed range has no page.
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
