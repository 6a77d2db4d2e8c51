//! [`Trap`]: a page of bytes whose reader falls asleep halfway, until it is woken.
//!
//! The page straddles two pages of memory, of which the second cannot be read. Who reads on takes a
//! fault, and its handler sleeps on a futex; then it makes the half readable and the read goes on.
//! While a trap lives the process's handler of SIGSEGV is this file's; every other fault it hands
//! to the handler of before, which is back when the trap is dropped. One trap at a time.
//! Source: mprotect(2), sigaction(2), signal-safety(7), futex(2).
//!
//! ```text
//! Off -> Armed -> Asleep -> Woken     Asleep -> GaveUp: nobody woke it within NAPS
//! ```
//!
//! # Safety
//! The handler loads and stores statics, and makes system calls that a handler may make; it puts
//! errno back. The two pages are the trap's own mapping, which ends when nothing borrows from it.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::io;
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use glebe::error::OsError;
use glebe::sys::page_size;

const OFF: u32 = 0;
const ARMED: u32 = 1;
const ASLEEP: u32 = 2;
const WOKEN: u32 = 3;
const GAVE_UP: u32 = 4;

/// The bytes of the page.
pub(super) const FILL: u8 = 0x5a;
/// Naps of a second after which the sleeper goes on by itself.
const NAPS: u32 = 60;

static STATE: AtomicU32 = AtomicU32::new(OFF);
/// The half that cannot be read: address and bytes.
static HALF: AtomicUsize = AtomicUsize::new(0);
static HALF_BYTES: AtomicUsize = AtomicUsize::new(0);
/// The handler of before, for faults that are not the trap's.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The page, and the handler in force.
pub(super) struct Trap {
    at: *mut c_void,
    page: usize,
    before: libc::sigaction,
    _one: MutexGuard<'static, ()>,
}

// SAFETY: by a shared reference the pages are read only, and the state is atomic.
unsafe impl Sync for Trap {}

/// Wakes the sleeper when it is dropped, so that a scope that unwinds can end.
pub(super) struct Woken<'a>(pub(super) &'a Trap);

impl Drop for Woken<'_> {
    fn drop(&mut self) {
        self.0.wake();
    }
}

fn last_error(call: &'static str) -> OsError {
    OsError::new(call, "", io::Error::last_os_error())
}

impl Trap {
    /// A trap that is not armed.
    ///
    /// # Errors
    /// If the kernel gives no memory or takes no handler.
    pub(super) fn new() -> Result<Self, OsError> {
        let one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let page = page_size().bytes().as_usize();
        let (access, kind) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, wherever the kernel likes.
        let at = unsafe { libc::mmap(ptr::null_mut(), 2 * page, access, kind, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(last_error("mmap"));
        }
        // SAFETY: the mapping is new, two pages long and writable.
        unsafe { ptr::write_bytes(at.cast::<u8>(), FILL, 2 * page) };
        STATE.store(OFF, Ordering::SeqCst);
        HALF.store(at.addr() + page, Ordering::SeqCst);
        HALF_BYTES.store(page, Ordering::SeqCst);
        match install() {
            Ok(before) => Ok(Self { at, page, before, _one: one }),
            Err(e) => {
                // SAFETY: mapped above, and nobody else knows of it.
                unsafe { libc::munmap(at, 2 * page) };
                Err(e)
            }
        }
    }

    /// From now on the next reader of [`Self::source`] falls asleep.
    ///
    /// # Errors
    /// If the kernel does not close the page.
    pub(super) fn arm(&mut self) -> Result<(), OsError> {
        // SAFETY: the second page of the trap's mapping; nothing borrows from it now.
        let rc = unsafe { libc::mprotect(self.at.byte_add(self.page), self.page, libc::PROT_NONE) };
        if rc != 0 {
            return Err(last_error("mprotect"));
        }
        STATE.store(ARMED, Ordering::SeqCst);
        Ok(())
    }

    /// The page.
    pub(super) fn source(&self) -> &[u8] {
        // SAFETY: the middle of two pages that are mapped, and never written, as long as the trap
        // lives. A read of the closed half ends, with the bytes that were written: the handler
        // opens it.
        unsafe { std::slice::from_raw_parts(self.at.cast::<u8>().add(self.page / 2), self.page) }
    }

    /// Whether a reader is asleep.
    pub(super) fn is_asleep(&self) -> bool {
        STATE.load(Ordering::SeqCst) == ASLEEP
    }

    /// Lets the reader go on, or not fall asleep any more; whether it was asleep until now.
    pub(super) fn wake(&self) -> bool {
        let slept = STATE.compare_exchange(ASLEEP, WOKEN, Ordering::SeqCst, Ordering::SeqCst);
        // Before it slept: then it is not to.
        let _ = STATE.compare_exchange(ARMED, WOKEN, Ordering::SeqCst, Ordering::SeqCst);
        futex(libc::FUTEX_WAKE, 1, ptr::null());
        slept.is_ok()
    }

    fn restore_handler(&self) {
        // SAFETY: the action is what sigaction gave.
        unsafe { libc::sigaction(libc::SIGSEGV, &raw const self.before, ptr::null_mut()) };
    }
}

impl Drop for Trap {
    fn drop(&mut self) {
        self.restore_handler();
        // SAFETY: the mapping is this trap's, and nothing borrows from it.
        unsafe { libc::munmap(self.at, 2 * self.page) };
        HALF_BYTES.store(0, Ordering::SeqCst);
        STATE.store(OFF, Ordering::SeqCst);
    }
}

/// On the word of the state. Also from the handler: no more than the call.
fn futex(operation: libc::c_int, value: u32, timeout: *const libc::timespec) {
    let operation = operation | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the word is a static; `timeout` is null or the address of a local of the caller.
    unsafe { libc::syscall(libc::SYS_futex, STATE.as_ptr(), operation, value, timeout) };
}

/// Puts the handler in force; what was in force before.
fn install() -> Result<libc::sigaction, OsError> {
    // SAFETY: an all-zero `sigaction` is a valid one, the structures are locals, and `on_fault` has
    // the signature that SA_SIGINFO asks for. The handler of before is known before it is replaced.
    unsafe {
        let mut before: libc::sigaction = mem::zeroed();
        if libc::sigaction(libc::SIGSEGV, ptr::null(), &raw mut before) != 0 {
            return Err(last_error("sigaction"));
        }
        BEFORE.get_or_init(|| before);
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        if libc::sigaction(libc::SIGSEGV, &raw const action, ptr::null_mut()) != 0 {
            return Err(last_error("sigaction"));
        }
        Ok(before)
    }
}

/// Sleeps if the fault is the trap's; any other comes again, to the handler of before.
extern "C" fn on_fault(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    let (half, bytes) = (HALF.load(Ordering::SeqCst), HALF_BYTES.load(Ordering::SeqCst));
    // SAFETY: the kernel passes the fault's description.
    let address = unsafe { (*info).si_addr() }.addr();
    if !(half..half + bytes).contains(&address) {
        // SAFETY: what the kernel gave for this signal; it was set before this handler was.
        unsafe {
            match BEFORE.get() {
                Some(before) => libc::sigaction(libc::SIGSEGV, before, ptr::null_mut()) as usize,
                None => libc::signal(libc::SIGSEGV, libc::SIG_DFL),
            };
        }
        return;
    }
    // SAFETY: the thread's own errno.
    let errno = unsafe { *libc::__errno_location() };
    if STATE.compare_exchange(ARMED, ASLEEP, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
        let nap = libc::timespec { tv_sec: 1, tv_nsec: 0 };
        for _ in 0..NAPS {
            if STATE.load(Ordering::SeqCst) != ASLEEP {
                break;
            }
            futex(libc::FUTEX_WAIT, ASLEEP, &raw const nap);
        }
        let _ = STATE.compare_exchange(ASLEEP, GAVE_UP, Ordering::SeqCst, Ordering::SeqCst);
    }
    // SAFETY: the trap's own page, written before it was closed; the thread's own errno.
    unsafe {
        libc::mprotect(ptr::with_exposed_provenance_mut(half), bytes, libc::PROT_READ);
        *libc::__errno_location() = errno;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handler() -> usize {
        // SAFETY: asks only, into a local.
        unsafe {
            let mut action: libc::sigaction = mem::zeroed();
            assert_eq!(libc::sigaction(libc::SIGSEGV, ptr::null(), &raw mut action), 0);
            action.sa_sigaction
        }
    }

    #[test]
    fn a_reader_sleeps_until_woken_and_the_handler_is_put_back() {
        // Within the lock: another test may have a trap.
        let mut trap = Trap::new().unwrap();
        let before = trap.before.sa_sigaction;
        assert_ne!(handler(), before);
        for _ in 0..2 {
            trap.arm().unwrap();
            let trap = &trap;
            std::thread::scope(|scope| {
                let _woken = Woken(trap);
                let reader = scope.spawn(|| trap.source().to_vec());
                while !trap.is_asleep() {
                    assert!(!reader.is_finished(), "it read what is closed");
                    std::thread::yield_now();
                }
                assert!(!reader.is_finished());
                assert!(trap.wake() && !trap.wake());
                assert!(reader.join().unwrap().iter().all(|&byte| byte == FILL));
            });
        }
        trap.arm().unwrap();
        assert!(!trap.wake(), "nobody slept");
        assert_eq!(trap.source()[trap.page - 1], FILL);
        trap.restore_handler();
        assert_eq!(handler(), before);
    }
}
