//! [`CallListener`] learns of the calls by which a process tree asks for huge pages of a pool.
//!
//! These are mmap(2) of anonymous memory with MAP_HUGETLB, and shmget(2) with SHM_HUGETLB.
//! A filter makes the kernel hold such a call until this process lets it go on; the call itself is
//! unchanged. Calls of other architectures, such as those of 32-bit programs, pass at once. The
//! arguments are numbers, so no other thread can change them meanwhile. If the listener closes,
//! held and later calls fail with ENOSYS.
//!
//! Source: seccomp(2), seccomp_unotify(2).
#![allow(unsafe_code)]

mod filter;
mod spawn;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use crate::internal::sys::call::answer;
use crate::internal::sys::processes::process;
use crate::units::{Bytes, PageSize};
pub use spawn::{spawn, NotSpawned};

/// First kernel that lets a held call go on (SECCOMP_USER_NOTIF_FLAG_CONTINUE).
const LINUX: (u32, u32) = (5, 5);

/// Where both calls have the logarithm of the page size in their flags (MAP_HUGE_SHIFT).
const SIZE_SHIFT: u32 = 26;
const SIZE_MASK: u64 = 63;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolCall {
    Mmap,
    Shmget,
}

/// A held call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldCall {
    id: u64,
    /// The thread that made the call; 0 if this PID namespace does not show it.
    pub thread: u32,
    pub call: PoolCall,
    /// Key of the segment; `None` if the call maps memory, or the segment has no key.
    pub key: Option<i32>,
    /// False if the call only looks for a segment.
    pub creates: bool,
    pub len: Bytes,
    /// `None` for the pool's default size.
    pub page: Option<PageSize>,
    /// True if the call itself reserves its pages, false if each touch takes a page.
    pub reserves: bool,
}

/// Returns why this kernel cannot hold calls.
pub fn lack() -> Option<String> {
    if filter::ARCHITECTURE.is_none() {
        return Some("system calls are not watched on this processor".to_owned());
    }
    let release = process::release();
    if version(&release).is_some_and(|version| version < LINUX) {
        let (major, minor) = LINUX;
        return Some(format!("Linux {major}.{minor} can hold system calls, this is {release}"));
    }
    let error = sizes().err()?;
    Some(format!("the kernel does not hold system calls for another process (seccomp): {error}"))
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// Returns the words that hold the kernel's longest message.
fn sizes() -> io::Result<usize> {
    // SAFETY: zeros are a valid structure.
    let mut sizes: libc::seccomp_notif_sizes = unsafe { std::mem::zeroed() };
    let at = &raw mut sizes;
    let operation = libc::SECCOMP_GET_NOTIF_SIZES;
    // SAFETY: the kernel fills the local.
    answer("seccomp", || unsafe { libc::syscall(libc::SYS_seccomp, operation, 0, at) })?;
    let own = size_of::<libc::seccomp_notif>().max(size_of::<libc::seccomp_notif_resp>());
    let longest = own.max(sizes.seccomp_notif.into()).max(sizes.seccomp_notif_resp.into());
    Ok(longest.div_ceil(size_of::<u64>()))
}

/// Readable while a call is held; hangs up when the last process with the filter has ended
/// (Linux 5.9).
#[derive(Debug)]
pub struct CallListener {
    fd: OwnedFd,
    words: usize,
}

impl CallListener {
    fn new(fd: OwnedFd) -> io::Result<Self> {
        Ok(Self { fd, words: sizes()? })
    }

    /// Returns a held call, if one is there. Waits for one unless the listener is readable: for
    /// ever on Linux 6.1, if the listener has hung up.
    ///
    /// # Errors
    /// If the kernel refuses the request.
    pub fn next(&self) -> io::Result<Option<HeldCall>> {
        let mut room = vec![0_u64; self.words];
        let (fd, at) = (self.fd.as_raw_fd(), room.as_mut_ptr());
        // SAFETY: the room is zeroed, and as long as the kernel's message.
        let got =
            answer("ioctl", || unsafe { libc::ioctl(fd, libc::SECCOMP_IOCTL_NOTIF_RECV, at) });
        match got.map_err(|error| (error.raw_os_error(), error)) {
            // The call has ended by a signal.
            Err((Some(libc::ENOENT | libc::EINTR), _)) => return Ok(None),
            Err((_, error)) => return Err(error),
            Ok(_) => {}
        }
        // SAFETY: the room is at least as long, aligned, and numbers of any value are valid.
        let message = unsafe { room.as_ptr().cast::<libc::seccomp_notif>().read() };
        Ok(held(&message))
    }

    /// Returns false if a call has ended, by a signal or with its thread.
    pub fn is_held(&self, held: &HeldCall) -> bool {
        let (fd, id) = (self.fd.as_raw_fd(), &raw const held.id);
        let request = libc::SECCOMP_IOCTL_NOTIF_ID_VALID;
        // SAFETY: the kernel reads the number.
        let asked = answer("ioctl", || unsafe { libc::ioctl(fd, request, id) });
        // Other errors say nothing about the call.
        asked.map_or_else(|error| error.raw_os_error() != Some(libc::ENOENT), |_| true)
    }

    /// Lets a call go on. Returns false if it has ended meanwhile.
    ///
    /// # Errors
    /// If the kernel refuses the request.
    pub fn proceed(&self, held: &HeldCall) -> io::Result<bool> {
        let mut room = vec![0_u64; self.words];
        let flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
        let response = libc::seccomp_notif_resp { id: held.id, val: 0, error: 0, flags };
        // SAFETY: the room is at least as long as the response, and aligned.
        unsafe { room.as_mut_ptr().cast::<libc::seccomp_notif_resp>().write(response) };
        let (fd, at) = (self.fd.as_raw_fd(), room.as_mut_ptr());
        // SAFETY: the room is as long as the kernel's message.
        let sent =
            answer("ioctl", || unsafe { libc::ioctl(fd, libc::SECCOMP_IOCTL_NOTIF_SEND, at) });
        match sent {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            sent => sent.map(|_| true),
        }
    }
}

impl AsFd for CallListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn held(message: &libc::seccomp_notif) -> Option<HeldCall> {
    let (data, is_call) = (&message.data, |call| i64::from(message.data.nr) == call);
    let (call, key, flags, without) = if is_call(libc::SYS_mmap) {
        (PoolCall::Mmap, libc::IPC_PRIVATE, data.args[3], libc::MAP_NORESERVE)
    } else if is_call(libc::SYS_shmget) {
        // The kernel reads 32 bits.
        (PoolCall::Shmget, data.args[0] as i32, data.args[2], libc::SHM_NORESERVE)
    } else {
        return None;
    };
    let log = flags >> SIZE_SHIFT & SIZE_MASK;
    Some(HeldCall {
        id: message.id,
        thread: message.pid,
        call,
        key: (key != libc::IPC_PRIVATE).then_some(key),
        creates: call == PoolCall::Mmap || flags & libc::IPC_CREAT as u64 != 0,
        len: Bytes::new(data.args[1]),
        page: if log == 0 { None } else { PageSize::new(1 << log) },
        reserves: flags & without as u64 == 0,
    })
}

#[cfg(all(test, any(target_arch = "x86_64", target_arch = "aarch64")))]
mod tests;
