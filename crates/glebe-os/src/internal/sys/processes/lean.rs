//! Makes system calls for a memory allocator. Only [`start_thread`] allocates.
//!
//! Lengths are bytes. Calls may change `errno`.
#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::ptr;

use super::signals::Blocked;
use crate::internal::sys::call::answer;
use crate::internal::sys::machine::limits;
use crate::units::Bytes;

/// Reserves addresses, which strict overcommit does not count and mlockall(2) does not populate.
pub fn reserve(len: usize) -> io::Result<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    answer("mmap", || {
        // SAFETY: the kernel chooses unused addresses.
        let at = unsafe { libc::mmap(ptr::null_mut(), len, libc::PROT_NONE, flags, -1, 0) };
        at.expose_provenance() as isize
    })
    .map(|at| at as usize)
}

/// Fails at the commit limit under strict overcommit.
///
/// # Safety
/// The caller owns the range.
pub unsafe fn make_writable(addr: usize, len: usize) -> io::Result<()> {
    let at = ptr::with_exposed_provenance_mut(addr);
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the caller keeps the contract.
    answer("mprotect", || unsafe { libc::mprotect(at, len, access) }).map(drop)
}

/// # Safety
/// The caller owns the range, and nothing refers to it.
pub unsafe fn unreserve(addr: usize, len: usize) {
    let at = ptr::with_exposed_provenance_mut(addr);
    // SAFETY: the caller keeps the contract.
    let _ = answer("munmap", || unsafe { libc::munmap(at, len) });
}

#[must_use]
pub fn machine_memory() -> Option<u64> {
    let mut info = MaybeUninit::<libc::sysinfo>::zeroed();
    // SAFETY: the kernel fills the structure; zeros are valid too.
    let info = unsafe {
        answer("sysinfo", || libc::sysinfo(info.as_mut_ptr())).ok()?;
        info.assume_init()
    };
    Some(info.totalram * u64::from(info.mem_unit))
}

#[must_use]
pub fn address_limit() -> Option<u64> {
    limits::limit(libc::RLIMIT_AS).map(Bytes::get)
}

/// Returns true if this process or an ancestor disabled transparent huge pages by prctl(2).
#[must_use]
pub fn huge_pages_forbidden() -> bool {
    let zero: libc::c_ulong = 0;
    // SAFETY: the call takes no pointer.
    let told = answer("prctl", || unsafe {
        libc::prctl(libc::PR_GET_THP_DISABLE, zero, zero, zero, zero)
    });
    told.is_ok_and(|told| told != 0)
}

const STACK_MAX: usize = 64 << 20;

/// Starts a detached thread with all signals blocked. The C library puts the thread-local variables
/// of all libraries on the stack, so the call doubles `stack` until the variables fit or `stack`
/// reaches `STACK_MAX`.
pub fn start_thread(stack: usize, body: fn()) -> io::Result<()> {
    match try_start_thread(stack, body) {
        Err(refused) if refused.raw_os_error() == Some(libc::EINVAL) && stack < STACK_MAX => {
            start_thread(stack * 2, body)
        }
        answer => answer,
    }
}

fn try_start_thread(stack: usize, body: fn()) -> io::Result<()> {
    extern "C" fn run(body: *mut libc::c_void) -> *mut libc::c_void {
        // SAFETY: `body` is the function passed below.
        unsafe { std::mem::transmute::<*mut libc::c_void, fn()>(body)() };
        ptr::null_mut()
    }
    crate::internal::sys::fault::point("clone")?;
    let _blocked = Blocked::new();
    let (mut attributes, mut thread) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: the attributes are initialized; `body` lives as long as the process.
    let refused = unsafe {
        let at = attributes.as_mut_ptr();
        let made = libc::pthread_attr_init(at);
        if made != 0 {
            return Err(io::Error::from_raw_os_error(made));
        }
        libc::pthread_attr_setdetachstate(at, libc::PTHREAD_CREATE_DETACHED);
        libc::pthread_attr_setstacksize(at, stack);
        let refused = libc::pthread_create(thread.as_mut_ptr(), at, run, body as *mut libc::c_void);
        libc::pthread_attr_destroy(at);
        refused
    };
    match refused {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::sync::Mutex;
    use std::time::Duration;

    use super::*;

    #[test]
    fn reserved_addresses_become_memory_of_zeros() {
        const LEN: usize = 1 << 20;
        let addr = reserve(LEN).unwrap();
        // SAFETY: the range was just reserved.
        unsafe {
            make_writable(addr, LEN).unwrap();
            let word = ptr::with_exposed_provenance_mut::<u64>(addr + LEN - 8);
            assert_eq!(word.read(), 0);
            word.write(7);
            assert_eq!(word.read(), 7);
            unreserve(addr, LEN);
        }
    }

    #[test]
    fn the_machine_has_as_much_memory_as_the_kernel_lists() {
        let listed = crate::internal::sys::machine::meminfo::read("MemTotal").unwrap();
        assert_eq!(machine_memory().unwrap() >> 20, listed.get() >> 20);
    }

    #[test]
    fn a_thread_runs_with_its_signals_waiting() {
        static TOLD: Mutex<Option<mpsc::Sender<String>>> = Mutex::new(None);
        let (tell, told) = mpsc::channel();
        *TOLD.lock().unwrap() = Some(tell);
        start_thread(256 << 10, || {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let tell = TOLD.lock().unwrap().take().unwrap();
            tell.send(status).unwrap();
        })
        .unwrap();
        let status = told.recv_timeout(Duration::from_secs(10)).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
        let waiting = u64::from_str_radix(line.trim(), 16).unwrap();
        assert_eq!(waiting >> (libc::SIGTERM - 1) & 1, 1);
    }
}
