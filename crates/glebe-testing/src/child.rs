//! Forked children for unit tests.
//!
//! # Safety
//! The child of a process with threads may do only what a signal handler may; each caller says why
//! its child does no more.
#![allow(unsafe_code)]

const PATIENCE: u32 = 60;

/// Returns the result of `check` in a forked child; false if the child hangs or dies.
///
/// # Panics
/// If the kernel refuses a process.
///
/// # Safety
/// `check` allocates nothing, takes no lock and does not unwind.
pub unsafe fn in_child(check: impl FnOnce() -> bool) -> bool {
    // SAFETY: the caller keeps the contract for `check`; the child exits by _exit.
    unsafe {
        let pid = libc::fork();
        assert!(pid >= 0, "{}", std::io::Error::last_os_error());
        if pid == 0 {
            libc::alarm(PATIENCE);
            libc::_exit(i32::from(!check()));
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(pid, &mut status, 0), pid);
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
    }
}

pub fn map_at(addr: *mut u8, len: usize) -> bool {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: NOREPLACE keeps existing mappings.
    unsafe { libc::mmap(addr.cast(), len, protection, flags, -1, 0) == addr.cast() }
}
