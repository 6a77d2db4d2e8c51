//! SIGBUS: memory whose pages may be gone is touched, and a callback settles the touch.
//!
//! Owns the process's SIGBUS handler, installed by [`Handler::install`] and by nothing else, once
//! and for good. For a touch of a page that cannot be had (`BUS_ADRERR`) the handler
//! 1. asks the callbacks of the [watches](Handler::watch) that hold the address: one may bring the
//!    page back, and the touch is made again;
//! 2. else hands the signal to the handler that was there before, as it does with every other
//!    SIGBUS at once: memory failures (`BUS_MCEERR_*`), misalignment, what another process sent.
//!    Where there was none, the default is put back and the touch is made again, so that the
//!    process dies of it, at its instruction and with its address.
//!
//! The handler takes no lock, allocates nothing, keeps `errno`, and runs on the thread's alternate
//! stack where it has one. It may interrupt itself (`SA_NODEFER`: a callback may touch a lost page
//! of another range); other handlers wait for it, so that a small stack holds it: one signal frame
//! for each range. A thread that blocks SIGBUS gets no handler at all, the kernel kills it. A
//! system call that is given a lost page answers EFAULT and raises no signal.
//!
//! Cost: nothing where no page is lost; a lost one, the signal and one look at each watch.
//! Source: sigaction(2), signal-safety(7), `UFFD_FEATURE_SIGBUS` of userfaultfd(2), the kernel's
//! `force_sig_info_to_task`. Does not arm anything: that is `sys::uffd`.
//!
//! # Safety
//! The handler trusts what the kernel passes to it, and the callbacks and their data for as long as
//! their watch lives, which a removal does not end before the last handler has left it.
#![allow(unsafe_code)]

mod chain;
pub mod fill;
mod stack;
mod watch;

use std::ops::Range;

use libc::{c_int, c_void, siginfo_t};

use crate::error::OsError;
use crate::sync::{MappedByte, Ordering};
use crate::sys::fault::point;

pub(crate) use stack::Stacks;
pub use watch::Watch;

/// Proof that the handler was installed.
#[derive(Clone, Copy, Debug)]
pub struct Handler(());

/// What a callback did about a touch.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The page is there now: the touch is to be made again.
    Resume,
    /// The page cannot be had: the earlier handler is to have it, told why.
    Fail(Reason),
    /// Nothing: the next watch or the earlier handler is to have it.
    Pass,
}

/// Why a page cannot be had: the earlier handler finds the number in `si_errno`.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// What is kept of it is damaged.
    Damaged = libc::EBADMSG,
    /// The device or the kernel refused it.
    Device = libc::EIO,
    /// There is no memory for it.
    NoMemory = libc::ENOMEM,
}

/// Decides, in the signal handler, about a touch of the address within a watched range. The last
/// argument is the watch's data.
pub type Decide = unsafe extern "C" fn(addr: usize, data: *const ()) -> Outcome;

impl Handler {
    /// Installs the handler, the first time it is called.
    ///
    /// # Errors
    /// sigaction(2) refuses (a filter denies it).
    pub fn install() -> Result<Self, OsError> {
        // No lock: a thread that forked while another held it would wait for ever in the child.
        static INSTALLED: MappedByte = MappedByte::new(0);
        if INSTALLED.load(Ordering::Acquire) == 0 {
            let installed = chain::install(on_sigbus);
            installed.map_err(|source| OsError::new("sigaction", "SIGBUS", source))?;
            INSTALLED.store(1, Ordering::Release);
        }
        Ok(Self(()))
    }

    /// Whether SIGBUS still goes to this handler first. If not, a later one of the program stands
    /// before it, which may or may not pass on what is not its own. One system call.
    ///
    /// # Errors
    /// sigaction(2) refuses.
    pub fn is_first(self) -> Result<bool, OsError> {
        let now = point("sigaction").and_then(|()| chain::current());
        let now = now.map_err(|source| OsError::new("sigaction", "SIGBUS", source))?;
        Ok(now.sa_sigaction == on_sigbus as *const () as usize)
    }

    /// Has `decide` asked about touches within `range` (addresses) until the watch is dropped.
    /// Of several watches of an address, the first that resumes decides.
    ///
    /// # Errors
    /// No memory for more watches.
    ///
    /// # Panics
    /// If the range is empty.
    ///
    /// # Safety
    /// Until the watch has been dropped, `decide` may be called with `data` on any thread and at
    /// any instruction that touches the range. It does what a signal handler may do
    /// (signal-safety(7)), touches no lost page of the range itself but by [`fill`], returns and
    /// does not unwind or jump, does not fork, and drops no watch. It says [`Outcome::Resume`] only
    /// if the page is there, or was.
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

/// The handler.
unsafe extern "C" fn on_sigbus(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the C library's own word of this thread; `info` and `context` are the kernel's, for
    // the time of this call.
    unsafe {
        let errno = libc::__errno_location();
        let kept = *errno;
        let outcome = match (*info).si_code {
            libc::BUS_ADRERR => watch::ask((*info).si_addr().addr()),
            _ => Outcome::Pass,
        };
        *errno = kept;
        if let Outcome::Fail(reason) = outcome {
            (*info).si_errno = reason as c_int;
        }
        if outcome != Outcome::Resume {
            chain::pass_on(signal, info, context);
        }
    }
}
