//! Makes one row from each attempt at a system call.
#![allow(unsafe_code)]

use std::io;
use std::path::Path;

use super::Mechanism;
use crate::error::OsError;
use crate::internal::sys::files::file;
use crate::internal::sys::machine::hugetlb;
use crate::internal::sys::machine::numa;
use crate::internal::sys::memory::io_uring::Ring;
use crate::internal::sys::memory::madvise::{advise, Advice};
use crate::internal::sys::memory::memfd::MemFile;
use crate::internal::sys::memory::mmap::{map, unmap, Backing};
use crate::internal::sys::memory::pagemap::{Entry, Pagemap};
use crate::internal::sys::memory::uffd::{Faults, Uffd};
use crate::internal::sys::page_size;
use crate::internal::sys::processes::membarrier;
use crate::internal::sys::processes::rseq::{self, Rseq};
use crate::units::Bytes;

/// Key, name, calls, needs, and the attempt.
type Attempt =
    (&'static str, &'static str, &'static str, &'static str, fn() -> Result<(), OsError>);

/// The third string names system calls that a seccomp profile may refuse; empty if the kernel may
/// refuse with the same error. The fourth is the remedy if no profile is the cause.
const ATTEMPTS: &[Attempt] = &[
    ("memfd", "memfd_create", "memfd_create", "Linux 3.17", || {
        MemFile::new(page_size().bytes()).map(drop)
    }),
    (
        "memfd.hugetlb",
        "memfd of huge pages (memfd_create with MFD_HUGETLB)",
        "memfd_create",
        "Linux 4.14 with CONFIG_HUGETLBFS=y",
        || MemFile::hugetlb(hugetlb::smallest().bytes(), hugetlb::smallest()).map(drop),
    ),
    (
        "numa.policy",
        "memory policy of a range (mbind)",
        "mbind",
        "a kernel with CONFIG_NUMA=y",
        bind,
    ),
    (
        "pagemap.pfn",
        "page frame numbers in /proc/self/pagemap",
        "",
        "CAP_SYS_ADMIN: run as root, or setcap cap_sys_admin+ep PROGRAM",
        frame,
    ),
    ("pagemap.scan", "PAGEMAP_SCAN: runs of pages by state", "", "Linux 6.7", scan),
    ("madv.free", "MADV_FREE: contents may go under pressure", "madvise", "Linux 4.5", || {
        advised(Advice::Free)
    }),
    (
        "madv.populate_write",
        "MADV_POPULATE_WRITE: populate with an error, not a SIGBUS",
        "madvise",
        "Linux 5.14",
        || advised(Advice::PopulateWrite),
    ),
    (
        "madv.wipeonfork",
        "MADV_WIPEONFORK: a forked child sees zeros",
        "madvise",
        "Linux 4.14",
        || advised(Advice::WipeOnFork),
    ),
    (
        "madv.collapse",
        "MADV_COLLAPSE: huge pages at once, best effort",
        "madvise",
        "Linux 6.1 with CONFIG_TRANSPARENT_HUGEPAGE=y",
        collapse,
    ),
    (
        "uffd.user",
        "userfaultfd of user-mode faults",
        "userfaultfd",
        "Linux 5.11 with CONFIG_USERFAULTFD=y, or what uffd.kernel asks for",
        || uffd(Faults::User),
    ),
    (
        "uffd.kernel",
        "userfaultfd of system calls' faults too",
        "",
        "sysctl -w vm.unprivileged_userfaultfd=1, CAP_SYS_PTRACE, or what uffd.user asks for",
        || uffd(Faults::All),
    ),
    (
        "uffd.device",
        "userfaultfd by its device file",
        "",
        "Linux 6.1 with CONFIG_USERFAULTFD=y, then as root: chmod o+rw /dev/userfaultfd",
        device,
    ),
    (
        "uffd.sigbus",
        "SIGBUS with the address of a lost page",
        "userfaultfd",
        "Linux 4.14, and what uffd.user asks for",
        || Uffd::open_sigbus().map(drop),
    ),
    (
        "uffd.zeropage",
        "zero page into a hole (UFFDIO_ZEROPAGE)",
        "userfaultfd",
        "Linux 4.3 on an architecture that has it, and what uffd.user asks for",
        zero_page,
    ),
    (
        "rseq.kernel",
        "restartable sequences in the kernel",
        "rseq",
        "Linux 4.18 with CONFIG_RSEQ=y",
        rseq::is_known,
    ),
    (
        "rseq.libc",
        "restartable sequences registered by the C library",
        "",
        "glibc 2.35, dynamically linked, GLIBC_TUNABLES=glibc.pthread.rseq=1",
        registered,
    ),
    (
        "membarrier.rseq",
        "a barrier that restarts every restartable sequence of the process",
        "membarrier",
        "Linux 5.10 with CONFIG_MEMBARRIER=y and CONFIG_RSEQ=y",
        membarrier::is_known,
    ),
    (
        "io_uring",
        "io_uring",
        "io_uring_setup and io_uring_register",
        "Linux 5.1 with CONFIG_IO_URING=y; a larger RLIMIT_MEMLOCK (ulimit -l), or CAP_IPC_LOCK",
        || ring().map(drop),
    ),
    (
        "io_uring.buffers",
        "long-term pin by registered buffers",
        "io_uring_setup and io_uring_register",
        "what io_uring asks for; a larger RLIMIT_MEMLOCK (ulimit -l), or CAP_IPC_LOCK",
        pin,
    ),
];

pub(super) fn rows(root: &Path) -> impl Iterator<Item = Mechanism> {
    let disabled = file::text(root.join("proc/sys/kernel/io_uring_disabled"));
    let is_disabled = disabled.is_ok_and(|text| text.trim() != "0");
    ATTEMPTS.iter().map(move |(key, name, calls, needs, run)| {
        let row = Mechanism::yes(*key, *name, "");
        let Err(error) = run() else { return row };
        let remedy = match error.errno() {
            Some(libc::EPERM) if is_disabled && key.starts_with("io_uring") => {
                let sysctl = "sysctl -w kernel.io_uring_disabled=0";
                format!("{sysctl}; where that is not all: {}", allow(calls))
            }
            Some(libc::EPERM | libc::EACCES) if !calls.is_empty() => allow(calls),
            Some(libc::ENOSYS) if !calls.is_empty() => format!("{needs}; or {}", allow(calls)),
            _ => (*needs).to_owned(),
        };
        row.not(error, remedy)
    })
}

fn allow(calls: &str) -> String {
    format!("allow {calls} in the seccomp profile (docker run --security-opt seccomp=PROFILE.json)")
}

fn refused(call: &'static str, source: io::Error) -> OsError {
    OsError::new(call, "an attempt", source)
}

/// A present page, unmapped on drop.
struct Scratch(usize);

impl Scratch {
    fn new() -> Result<Self, OsError> {
        let page = Self(map(page_size().bytes(), Backing::Ordinary)?);
        // SAFETY: the page was just mapped writable, and nothing refers to it.
        unsafe { std::ptr::with_exposed_provenance_mut::<u8>(page.0).write_volatile(1) };
        Ok(page)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY: `new` mapped the page, which is unmapped once.
        let _ = unsafe { unmap(self.0, page_size().bytes()) };
    }
}

fn advised(advice: Advice) -> Result<(), OsError> {
    let page = Scratch::new()?;
    // SAFETY: the page is this call's, and its contents do not matter.
    unsafe { advise(page.0, page_size().bytes(), advice) }
}

/// Collapses an empty range, because a real collapse would cost a huge page.
fn collapse() -> Result<(), OsError> {
    // SAFETY: the range is empty.
    unsafe { advise(0, Bytes::ZERO, Advice::Collapse) }
}

fn bind() -> Result<(), OsError> {
    let page = Scratch::new()?;
    let mut last = Ok(());
    for node in numa::online() {
        // SAFETY: the page is this call's.
        last = unsafe { numa::bind(page.0, page_size().bytes(), &[node]) };
        if last.is_ok() {
            break;
        }
    }
    last
}

fn frame() -> Result<(), OsError> {
    let page = Scratch::new()?;
    let entries = Pagemap::open()?.entries(page.0, page_size().bytes(), page_size())?;
    match entries.first() {
        Some(Entry::Frame(_)) => Ok(()),
        _ => {
            let what = "the number reads as zero without CAP_SYS_ADMIN; presence can be read";
            Err(OsError::new("pread", "/proc/self/pagemap", io::Error::other(what)))
        }
    }
}

fn scan() -> Result<(), OsError> {
    let page = Scratch::new()?;
    Pagemap::open()?.huge_bytes(page.0, page_size().bytes()).map(drop)
}

fn uffd(faults: Faults) -> Result<(), OsError> {
    let name = match faults {
        Faults::User => "UFFD_USER_MODE_ONLY",
        Faults::All => "",
    };
    Uffd::open(faults).map(drop).map_err(|source| OsError::new("userfaultfd", name, source))
}

fn device() -> Result<(), OsError> {
    Uffd::open_device().map(drop).map_err(|source| refused("/dev/userfaultfd", source))
}

fn zero_page() -> Result<(), OsError> {
    const ZEROPAGE: u64 = 1 << 4;
    let (uffd, page) = (Uffd::open_sigbus()?, Scratch::new()?);
    // SAFETY: nobody touches the page again; unmapping it ends the registration.
    let ioctls = unsafe { uffd.register(page.0, page_size().bytes()) }?;
    match ioctls & ZEROPAGE {
        0 => Err(refused("UFFDIO_ZEROPAGE", io::Error::from(io::ErrorKind::Unsupported))),
        _ => Ok(()),
    }
}

fn ring() -> Result<Ring, OsError> {
    Ring::new().map_err(|source| refused("io_uring_setup", source))
}

fn pin() -> Result<(), OsError> {
    let (page, ring) = (Scratch::new()?, ring()?);
    let at = std::ptr::with_exposed_provenance_mut(page.0);
    let pinned = ring.pin_all(at, page_size().bytes()).and_then(|()| ring.unpin());
    pinned.map_err(|source| refused("io_uring_register", source))
}

fn registered() -> Result<(), OsError> {
    let source = |why| OsError::new("dlsym", "__rseq_offset", io::Error::other(why));
    Rseq::find().map(drop).map_err(source)
}
