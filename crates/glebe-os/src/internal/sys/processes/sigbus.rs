//! SIGBUS: a callback settles each touch of memory whose page may be missing.
//!
//! Owns the process's SIGBUS handler, which [`Handler::install`] installs once and for good. If a
//! page cannot be provided for a touch (`BUS_ADRERR`), the handler
//! 1. asks the callbacks of the [watches](Handler::watch) that hold the address. If one brings the
//!    page back, the touch is repeated;
//! 2. otherwise calls the earlier handler, which also gets all other SIGBUS: memory failures
//!    (`BUS_MCEERR_*`), misalignment, signals of other processes. If there was none, it restores
//!    the default and the touch is repeated, so the process dies at that instruction.
//!
//! The handler takes no lock, allocates nothing, keeps `errno`, and uses the thread's alternate
//! stack if there is one. It may interrupt itself (`SA_NODEFER`): a callback may touch a missing
//! page of another range. Other handlers wait, so the stack needs one signal frame per range. The
//! kernel kills a thread that blocks SIGBUS. A system call on a missing page returns EFAULT and
//! raises no signal. Not here: arming (`sys::memory::uffd`). Cost: for a missing page, the signal
//! and one look at each watch. Source: sigaction(2), signal-safety(7), `UFFD_FEATURE_SIGBUS` of
//! userfaultfd(2), the kernel's `force_sig_info_to_task`.
//!
//! # Safety
//! The handler trusts the kernel's arguments, and a watch's callback and data until the watch is
//! removed, which waits for the last handler in it.
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

/// A callback's decision about a touch.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The page is present now: repeat the touch.
    Resume,
    /// The page cannot be provided: call the earlier handler with the reason.
    Fail(Reason),
    /// No decision: ask the next watch, or call the earlier handler.
    Pass,
}

/// The reason why a page cannot be provided, in the earlier handler's `si_errno`.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The stored data of the page is damaged.
    Damaged = libc::EBADMSG,
    /// The device or the kernel refused to provide it.
    Device = libc::EIO,
    /// Memory is exhausted.
    NoMemory = libc::ENOMEM,
}

/// A callback that decides, in the signal handler, about a touch of `addr` in a watched range.
/// `data` is the watch's data.
pub type Decide = unsafe extern "C" fn(addr: usize, data: *const ()) -> Decision;

impl Handler {
    /// Installs the handler at the first call.
    ///
    /// # Errors
    /// If sigaction(2) fails (a filter denies it).
    pub fn install() -> Result<Self, OsError> {
        // No lock: a child forked while another thread held it would wait for ever.
        static INSTALLED: MappedByte = MappedByte::new(0);
        if INSTALLED.load(Ordering::Acquire) == 0 {
            let installed = chain::install(on_sigbus);
            installed.map_err(|source| OsError::new("sigaction", "SIGBUS", source))?;
            INSTALLED.store(1, Ordering::Release);
        }
        Ok(Self(()))
    }

    /// Returns true if SIGBUS still goes to this handler first. Otherwise a later handler of the
    /// program precedes it and may or may not pass signals on. Makes a system call.
    ///
    /// # Errors
    /// If sigaction(2) fails.
    pub fn is_first(self) -> Result<bool, OsError> {
        let now = point("sigaction").and_then(|()| chain::current());
        let now = now.map_err(|source| OsError::new("sigaction", "SIGBUS", source))?;
        Ok(now.sa_sigaction == on_sigbus as *const () as usize)
    }

    /// Asks `decide` about touches in `range` (addresses) until the watch is dropped. If several
    /// watches hold an address, the first that does not pass decides.
    ///
    /// # Errors
    /// If memory for more watches is missing.
    ///
    /// # Panics
    /// If the range is empty.
    ///
    /// # Safety
    /// Until the watch is dropped, `decide` may be called with `data` on any thread, at any
    /// instruction that touches the range. `decide` does only what a signal handler may do
    /// (signal-safety(7)). It touches missing pages of the range only by [`fill`]. It returns,
    /// without unwinding or jumping, does not fork, and drops no watch. It returns
    /// [`Decision::Resume`] only if the page is, or was, present.
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
    // SAFETY: errno is this thread's own; `info` and `context` are the kernel's, for this call.
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
