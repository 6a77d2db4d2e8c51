//! [`Handler`] owns the process's SIGBUS handler and lets callbacks handle accesses to missing
//! pages.
//!
//! If a page cannot be provided (`BUS_ADRERR`), the handler asks the callbacks of the
//! [watches](Handler::watch) that hold the address. The thread repeats the touch if a callback
//! brings the page back. All other SIGBUS go to the earlier handler, if any, or kill the process.
//!
//! The handler takes no lock, allocates nothing, keeps `errno`, and uses the alternate stack. It
//! may interrupt itself (`SA_NODEFER`): a callback may touch a missing page of another range, so
//! the stack needs one signal frame per range. A touch kills while SIGBUS is blocked. A system call
//! on a missing page returns EFAULT. Source: sigaction(2), signal-safety(7), userfaultfd(2).
//!
//! # Safety
//! The handler trusts the kernel's arguments, and a watch's callback and data until the watch is
//! removed. A removal waits until no handler is in the callback.
#![allow(unsafe_code)]

mod chain;
pub mod fill;
mod stack;
mod watch;

use std::ops::Range;

use libc::{c_int, c_void, siginfo_t};

use crate::error::OsError;
use crate::internal::sync::{MappedByte, Ordering};
use crate::internal::sys::fault::point;

pub use stack::Stacks;
pub use watch::Watch;

/// Proof that the handler is installed.
#[derive(Clone, Copy, Debug)]
pub struct Handler(());

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The page is present: repeat the touch.
    Resume,
    /// Call the earlier handler with the reason.
    Fail(Reason),
    /// Ask the next watch or the earlier handler.
    Pass,
}

/// The reason, which the earlier handler finds in `si_errno`.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    Damaged = libc::EBADMSG,
    Device = libc::EIO,
    NoMemory = libc::ENOMEM,
}

/// Decides about a touch of `addr`, in the signal handler.
pub type Decide = unsafe extern "C" fn(addr: usize, data: *const ()) -> Decision;

impl Handler {
    /// Installs the handler at the first call, and never removes it.
    pub fn install() -> Result<Self, OsError> {
        // A lock could make a forked child wait for ever.
        static INSTALLED: MappedByte = MappedByte::new(0);
        if INSTALLED.load(Ordering::Acquire) == 0 {
            let installed = chain::install(on_sigbus);
            installed.map_err(|source| OsError::new("sigaction", "SIGBUS", source))?;
            INSTALLED.store(1, Ordering::Release);
        }
        Ok(Self(()))
    }

    /// Returns true unless the program has installed its own handler since.
    pub fn is_first(self) -> Result<bool, OsError> {
        let now = point("sigaction").and_then(|()| chain::current());
        let now = now.map_err(|source| OsError::new("sigaction", "SIGBUS", source))?;
        Ok(now.sa_sigaction == on_sigbus as *const () as usize)
    }

    /// Asks `decide` about touches of missing pages in `range` (addresses) until the watch is
    /// dropped. Watches may overlap: [`Decision::Pass`] asks the next.
    ///
    /// # Safety
    /// Until the watch is dropped, `decide` may be called with `data` on any thread, at any
    /// instruction that touches the range. `decide` does only what a signal handler may do
    /// (signal-safety(7)). It touches missing pages of the range only by [`fill`]. It does not
    /// unwind, jump out, fork or drop a watch. It returns [`Decision::Resume`] only if the page is,
    /// or was, present.
    pub unsafe fn watch(
        self,
        range: Range<usize>,
        decide: Decide,
        data: *const (),
    ) -> Result<Watch, OsError> {
        assert!(!range.is_empty(), "watch of the empty range {range:#x?}");
        watch::add(range, decide, data)
    }
}

unsafe extern "C" fn on_sigbus(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: errno is this thread's own; the other pointers are the kernel's.
    unsafe {
        let errno = libc::__errno_location();
        let kept = *errno;
        let outcome = match (*info).si_code {
            libc::BUS_ADRERR => watch::ask((*info).si_addr().addr()),
            _ => Decision::Pass,
        };
        *errno = kept;
        if let Decision::Fail(reason) = outcome {
            (*info).si_errno = reason as c_int;
        }
        if outcome != Decision::Resume {
            chain::pass_on(signal, info, context);
        }
    }
}
