//! [`install`] installs a signal handler that also calls the program's own.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::mem::{transmute, MaybeUninit};
use std::sync::OnceLock;

pub use libc::{SIGHUP as HUP, SIGUSR1 as USR1, SIGUSR2 as USR2, SIGWINCH as WINCH};

use crate::internal::sys::errno;

#[must_use]
pub fn real_time(number: i32) -> i32 {
    libc::SIGRTMIN() + number
}

struct Installed {
    act: fn(),
    before: libc::sigaction,
}

static INSTALLED: OnceLock<Installed> = OnceLock::new();

/// Makes `signal` call `act`, with `errno` kept, then the earlier handler. Works once per process.
/// `act` may do only what a signal handler may.
pub fn install(signal: i32, act: fn()) -> bool {
    let mut before = MaybeUninit::zeroed();
    // SAFETY: the call fills a local.
    let before = unsafe {
        if libc::sigaction(signal, std::ptr::null(), before.as_mut_ptr()) != 0 {
            return false;
        }
        before.assume_init()
    };
    // `INSTALLED` is set first, because the handler reads it.
    if INSTALLED.set(Installed { act, before }).is_err() {
        return false;
    }
    // SAFETY: zeros are a valid action, and the handler's type fits the flags.
    unsafe {
        let mut action = std::mem::zeroed::<libc::sigaction>();
        action.sa_sigaction = on_signal as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
        libc::sigaction(signal, &action, std::ptr::null_mut()) == 0
    }
}

extern "C" fn on_signal(signal: c_int, info: *mut c_void, context: *mut c_void) {
    let Some(Installed { act, before }) = INSTALLED.get() else { return };
    let kept = errno::get();
    act();
    errno::set(kept);
    type Plain = extern "C" fn(c_int);
    type Informed = extern "C" fn(c_int, *mut c_void, *mut c_void);
    match before.sa_sigaction {
        libc::SIG_DFL | libc::SIG_IGN => {}
        // SAFETY: the flags say that the handler has this type.
        handler if before.sa_flags & libc::SA_SIGINFO != 0 => unsafe {
            transmute::<usize, Informed>(handler)(signal, info, context);
        },
        // SAFETY: without SA_SIGINFO, the handler has this type.
        handler => unsafe { transmute::<usize, Plain>(handler)(signal) },
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    static CALLS: AtomicU32 = AtomicU32::new(0);

    extern "C" fn earlier(signal: c_int) {
        assert_eq!(signal, WINCH);
        CALLS.fetch_add(100, Ordering::Relaxed);
    }

    #[test]
    fn both_handlers_are_called_and_errno_is_kept() {
        // SAFETY: the handler's type fits.
        unsafe { libc::signal(WINCH, earlier as *const () as usize) };
        let act = || {
            errno::set(5);
            CALLS.fetch_add(1, Ordering::Relaxed);
        };
        assert!(install(WINCH, act) && !install(WINCH, act));
        errno::set(7);
        // SAFETY: the call takes no pointer.
        unsafe { libc::raise(WINCH) };
        assert_eq!((CALLS.load(Ordering::Relaxed), errno::get()), (101, 7));
    }
}
