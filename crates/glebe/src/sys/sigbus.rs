//! SIGBUS: memory whose pages may be gone is touched, and the touch is settled or becomes an error.
//!
//! Owns the process's SIGBUS handler, installed by [`Handler::install`] and by nothing else, once
//! and for good. For a touch of a page that cannot be had (`BUS_ADRERR`) the handler
//! 1. asks the callbacks of the [watches](Handler::watch) that hold the address: one may bring the
//!    page back, and the touch is made again;
//! 2. ends a [`Handler::try_copy`] that made the touch, with the address;
//! 3. else hands the signal to the handler that was there before, as it does with every other
//!    SIGBUS at once: memory failures (`BUS_MCEERR_*`), misalignment, what another process sent.
//!    Where there was none, the default is put back and the touch is made again, so that the
//!    process dies of it, at its instruction and with its address.
//!
//! The handler takes no lock, allocates nothing, keeps `errno`, and runs on the thread's alternate
//! stack where it has one. It may interrupt itself (`SA_NODEFER`: a callback may call `try_copy`);
//! other handlers wait for it, so that a small stack holds it: two signal frames, one where no
//! callback copies. A thread that blocks SIGBUS gets no handler at all, the kernel kills it:
//! [`Handler::unblock`]. A system call that is given a lost page answers EFAULT and raises no
//! signal.
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
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod copy;
pub mod fill;
mod watch;

use std::cell::Cell;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr;

use libc::{c_int, c_void, siginfo_t};

use crate::error::OsError;
use crate::sync::{MappedByte, Ordering};
use crate::sys::fault::point;

pub use watch::Watch;

/// Whether [`Handler::try_copy`] is written for this processor. Where it is not, memory that may
/// be lost is read by a system call (process_vm_readv(2) on oneself), which answers EFAULT.
pub const CAN_COPY: bool = cfg!(any(target_arch = "x86_64", target_arch = "aarch64"));

/// Proof that the handler was installed.
#[derive(Clone, Copy, Debug)]
pub struct Handler(());

/// What made the touch.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Any instruction of the program.
    Program,
    /// [`Handler::try_copy`], which can end with an error.
    Copy,
}

/// What a callback did about a touch.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The page is there now: the touch is to be made again.
    Resume,
    /// Nothing: the next watch, the copy or the earlier handler is to have it.
    Pass,
}

/// Decides, in the signal handler, about a touch of the address within a watched range. The last
/// argument is the watch's data.
pub type Decide = unsafe extern "C" fn(addr: usize, by: By, data: *const ()) -> Outcome;

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
    /// (signal-safety(7)), touches no lost page of the range itself but by [`Self::try_copy`] or
    /// [`fill`], returns and does not unwind or jump, does not fork, and drops no watch. It says
    /// [`Outcome::Resume`] only if the page is there, or was.
    pub unsafe fn watch(
        self,
        range: Range<usize>,
        decide: Decide,
        data: *const (),
    ) -> Result<Watch, OsError> {
        assert!(!range.is_empty(), "watch of the empty range {range:#x?}");
        watch::add(range, decide, data)
    }

    /// Copies `len` bytes, until one of them cannot be had.
    ///
    /// Bytes that change meanwhile are copied as they are at some moment, each by itself. Whether
    /// the ranges are watched makes no difference, but that a callback may bring a page back.
    ///
    /// # Errors
    /// The address that was touched when the page was found to be gone, in the source or in the
    /// destination; some bytes before it may have been copied.
    ///
    /// # Safety
    /// Both ranges are mapped (pages that were mapped may be lost: punched, truncated, purged),
    /// `from` readable and `to` writable, they do not overlap, and nothing in the program holds a
    /// reference to what is written. SIGBUS is not blocked in the calling thread, and no handler
    /// installed later keeps the signal to itself: else the touch is deadly.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    #[inline]
    pub unsafe fn try_copy(self, to: *mut u8, from: *const u8, len: usize) -> Result<(), usize> {
        // SAFETY: forwarded to the caller; the handler was installed.
        match unsafe { copy::copy(to, from, len) } {
            0 => Ok(()),
            lost => Err(lost),
        }
    }

    /// Lets SIGBUS through to the calling thread until the value is dropped. One system call, and
    /// a second one at the end if the thread had blocked it.
    #[must_use]
    pub fn unblock(self) -> Unblocked {
        let mut before = MaybeUninit::uninit();
        // SAFETY: both sets are this function's own; sigprocmask fills the second one and fails
        // for an unknown operation only. In Linux it is the calling thread's mask.
        let was_blocked = unsafe {
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &only_sigbus(), before.as_mut_ptr());
            libc::sigismember(before.as_ptr(), libc::SIGBUS) == 1
        };
        let (values, to_block) = UNBLOCKED.get();
        UNBLOCKED.set((values + 1, to_block || was_blocked));
        Unblocked { _thread: PhantomData }
    }
}

thread_local! {
    /// Values of [`Unblocked`] in this thread, and whether the last of them is to block the
    /// signal again: they may end in any order.
    static UNBLOCKED: Cell<(u32, bool)> = const { Cell::new((0, false)) };
}

/// While it lives, SIGBUS is not blocked in the thread that made it.
#[derive(Debug)]
pub struct Unblocked {
    /// A mask is of one thread: not to be sent.
    _thread: PhantomData<*mut ()>,
}

impl Drop for Unblocked {
    fn drop(&mut self) {
        // A thread that is ending has no more of them, nor use for a mask.
        let (values, to_block) = UNBLOCKED.try_with(Cell::get).unwrap_or((1, false));
        let last = values <= 1;
        let _ = UNBLOCKED.try_with(|all| all.set((values - 1, to_block && !last)));
        if last && to_block {
            // SAFETY: the set is this function's own.
            unsafe {
                libc::pthread_sigmask(libc::SIG_BLOCK, &only_sigbus(), ptr::null_mut());
            }
        }
    }
}

/// The set of this one signal.
fn only_sigbus() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset writes the whole set.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGBUS);
        set.assume_init()
    }
}

/// The handler.
unsafe extern "C" fn on_sigbus(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the C library's own word of this thread; `info` and `context` are the kernel's, for
    // the time of this call.
    unsafe {
        let errno = libc::__errno_location();
        let kept = *errno;
        let settled =
            (*info).si_code == libc::BUS_ADRERR && settle((*info).si_addr().addr(), context.cast());
        *errno = kept;
        if !settled {
            chain::pass_on(signal, info, context);
        }
    }
}

/// Whether a watch or a copy took the touch of `addr`.
///
/// # Safety
/// In a handler that was given this context.
unsafe fn settle(addr: usize, context: *mut libc::ucontext_t) -> bool {
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let (by, _) = (By::Program, context);
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    // SAFETY: the context is this signal's.
    let by = if unsafe { copy::is_copying(context) } { By::Copy } else { By::Program };
    if watch::ask(addr, by) == Outcome::Resume {
        return true;
    }
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    if by == By::Copy {
        // SAFETY: the context is this signal's and stands within the copy.
        unsafe { copy::end(context, addr) };
        return true;
    }
    false
}
