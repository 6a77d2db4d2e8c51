//! Makes children by fork and by clone.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use glebe_testing::time::slowed;

use super::memory::page;

const PATIENCE: Duration = Duration::from_secs(30);

pub fn child_says(make: fn() -> i32, check: impl FnOnce() -> bool) -> bool {
    let status = status_of(make, check);
    if libc::WIFSIGNALED(status) {
        println!("the child ended by signal {}", libc::WTERMSIG(status));
    }
    libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
}

pub fn status_of(make: fn() -> i32, check: impl FnOnce() -> bool) -> i32 {
    let pid = make();
    assert!(pid >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the child runs `check` and leaves by `_exit`; an alarm ends a hang.
    unsafe {
        if pid == 0 {
            libc::alarm(slowed(PATIENCE).as_secs() as libc::c_uint);
            let said = catch_unwind(AssertUnwindSafe(check)).unwrap_or(false);
            libc::_exit(i32::from(!said));
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(pid, &mut status, 0), pid);
        status
    }
}

pub fn fork() -> i32 {
    // SAFETY: the child only does what `status_of` does.
    unsafe { libc::fork() }
}

pub fn raw_clone() -> i32 {
    let none = ptr::null::<u8>();
    // SAFETY: without CLONE_VM the child is a copy, with its own stack.
    unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, none, none, none, none) as i32 }
}

static ADDRESS: AtomicUsize = AtomicUsize::new(0);

/// Stores the address of the SIGBUS and maps a page there, so that the touch ends.
extern "C" fn on_sigbus(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel's `info` is valid, and the page is lost.
    unsafe {
        let at = (*info).si_addr();
        ADDRESS.store(at.addr(), Ordering::Relaxed);
        let start = at.byte_sub(at.addr() % page());
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        libc::mmap(start, page(), libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
    }
}

/// Reads the byte at `at`. Returns the address of its SIGBUS, if any. Only for children, because
/// the handler stays.
pub fn sigbus_at(at: usize) -> Option<usize> {
    // SAFETY: the handler has the right signature, and the byte is in the caller's mapping.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = on_sigbus;
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(libc::SIGBUS, &action, ptr::null_mut()), 0);
        ADDRESS.store(0, Ordering::Relaxed);
        ptr::with_exposed_provenance::<u8>(at).read_volatile();
    }
    Some(ADDRESS.load(Ordering::Relaxed)).filter(|at| *at != 0)
}
