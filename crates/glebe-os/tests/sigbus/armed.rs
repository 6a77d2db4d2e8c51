//! Makes anonymous memory that raises SIGBUS where its pages are lost.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use glebe_os::internal::sys::page_size;
use glebe_os::internal::sys::processes::sigbus::fill;

const TYPE: u32 = 0xAA;
const USER_MODE_ONLY: libc::c_int = 1;
const FEATURE_SIGBUS: u64 = 1 << 7;
const MODE_MISSING: u64 = 1;

pub fn page() -> usize {
    page_size().bytes().as_usize()
}

pub struct Armed {
    at: usize,
    pages: usize,
    uffd: OwnedFd,
}

impl Armed {
    /// Maps missing pages; returns `None` without userfaultfd.
    pub fn empty(pages: usize) -> Option<Self> {
        Self::new(pages).map_err(|why| println!("skipped: userfaultfd: {why}")).ok()
    }

    pub fn full(pages: usize, byte: u8) -> Option<Self> {
        let armed = Self::empty(pages)?;
        (0..pages).for_each(|i| armed.fill(i, byte));
        Some(armed)
    }

    fn new(pages: usize) -> io::Result<Self> {
        let len = pages * page();
        let check = |rc: libc::c_int| match rc {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        };
        // SAFETY: descriptor and mapping are new, and the arrays have the kernel's layout.
        unsafe {
            let fd = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | USER_MODE_ONLY);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            let uffd = OwnedFd::from_raw_fd(fd as RawFd);
            let mut api: [u64; 3] = [u64::from(TYPE), FEATURE_SIGBUS, 0];
            check(libc::ioctl(uffd.as_raw_fd(), libc::_IOWR::<[u64; 3]>(TYPE, 0x3F), &mut api))?;
            let (prot, flags) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let at = libc::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0);
            assert_ne!(at, libc::MAP_FAILED);
            let at = at.expose_provenance();
            let mut arg: [u64; 4] = [at as u64, len as u64, MODE_MISSING, 0];
            check(libc::ioctl(uffd.as_raw_fd(), libc::_IOWR::<[u64; 4]>(TYPE, 0), &mut arg))?;
            Ok(Self { at, pages, uffd })
        }
    }

    pub fn fd(&self) -> RawFd {
        self.uffd.as_raw_fd()
    }

    pub fn addr(&self, page_number: usize, offset: usize) -> usize {
        assert!(page_number <= self.pages);
        self.at + page_number * page() + offset
    }

    pub fn ptr(&self, page_number: usize, offset: usize) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.addr(page_number, offset))
    }

    pub fn range(&self) -> std::ops::Range<usize> {
        self.at..self.at + self.pages * page()
    }

    pub fn fill(&self, page_number: usize, byte: u8) {
        self.fill_from(page_number, &vec![byte; page()]);
    }

    pub fn fill_from(&self, page_number: usize, bytes: &[u8]) {
        assert_eq!(bytes.len(), page());
        let to = self.addr(page_number, 0);
        // SAFETY: this value owns the mapping, which has no references.
        unsafe { fill::copy(self.fd(), to, bytes.as_ptr(), page(), page()) }.unwrap();
    }

    pub fn lose(&self, page_number: usize) {
        // SAFETY: this value owns the mapping, which has no references.
        let rc =
            unsafe { libc::madvise(self.ptr(page_number, 0).cast(), page(), libc::MADV_DONTNEED) };
        assert_eq!(rc, 0);
    }
}

impl Drop for Armed {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping.
        unsafe { libc::munmap(self.ptr(0, 0).cast(), self.pages * page()) };
    }
}
