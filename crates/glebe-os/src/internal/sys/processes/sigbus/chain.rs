//! [`pass_on`] calls the earlier SIGBUS handler as the kernel would have called it.
//!
//! The earlier handler's mask, `SA_NODEFER`, `SA_SIGINFO`, `SA_RESETHAND` and `SA_RESTART` apply.
//! But the handler always runs on the alternate stack if there is one. Source: the kernel's
//! `force_sig_info_to_task`: a fault kills even if its signal is ignored.
#![allow(unsafe_code)]

use std::io;
use std::mem::{transmute, MaybeUninit};
use std::ptr::{self, addr_of, addr_of_mut};

use libc::{c_int, c_void, sigaction, siginfo_t, sigset_t, ucontext_t};

use crate::internal::sync::{MappedByte, MappedPtr, Ordering};
use crate::internal::sys::fault::point;

pub type Full = unsafe extern "C" fn(c_int, *mut siginfo_t, *mut c_void);
type Plain = unsafe extern "C" fn(c_int);

struct Earlier {
    action: sigaction,
    /// Not zero after the one call that `SA_RESETHAND` allows.
    spent: MappedByte,
}

/// Set before the first signal.
static EARLIER: MappedPtr<Earlier> = MappedPtr::new(ptr::null_mut());

pub fn current() -> io::Result<sigaction> {
    let mut now = MaybeUninit::uninit();
    // SAFETY: the call fills `now`.
    match unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), now.as_mut_ptr()) } {
        // SAFETY: the call filled `now`.
        0 => Ok(unsafe { now.assume_init() }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Installs `handler` and keeps the earlier one. Several threads may call this at once.
pub fn install(handler: Full) -> io::Result<()> {
    point("sigaction")?;
    let ours = handler as *const () as usize;
    let before = current()?;
    if before.sa_sigaction == ours {
        return Ok(());
    }
    if EARLIER.load(Ordering::Acquire).is_null() {
        keep(before);
    }
    // SAFETY: all zeros is a valid `sigaction`.
    let mut action: sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = ours;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
    action.sa_mask = all_sent();
    // An ignored signal interrupts no system call, so this handler must interrupt none.
    if before.sa_flags & libc::SA_RESTART != 0 || before.sa_sigaction == libc::SIG_IGN {
        action.sa_flags |= libc::SA_RESTART;
    }
    let mut replaced = MaybeUninit::uninit();
    // SAFETY: both are locals; the handler is async-signal-safe.
    if unsafe { libc::sigaction(libc::SIGBUS, &action, replaced.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call filled `replaced`.
    let replaced = unsafe { replaced.assume_init() };
    // SAFETY: `keep` stored the record, which is never freed, as a handler may be reading it.
    let kept = unsafe { &(*EARLIER.load(Ordering::Acquire)).action };
    // The program may have changed its handler since `current`.
    if replaced.sa_sigaction != ours && replaced.sa_sigaction != kept.sa_sigaction {
        keep(replaced);
    }
    Ok(())
}

fn keep(action: sigaction) {
    let earlier = Box::new(Earlier { action, spent: MappedByte::new(0) });
    EARLIER.store(Box::into_raw(earlier), Ordering::Release);
}

/// # Safety
/// Called in the handler, with its arguments.
pub unsafe fn pass_on(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: `EARLIER` was set before the handler was installed, and its record is never freed.
    let (earlier, code) = unsafe { (&*EARLIER.load(Ordering::Acquire), (*info).si_code) };
    let action = &earlier.action;
    let once = action.sa_flags & libc::SA_RESETHAND != 0;
    let spent = once && earlier.spent.swap(1, Ordering::Relaxed) != 0;
    match action.sa_sigaction {
        libc::SIG_IGN if !is_fault(code) => {}
        libc::SIG_DFL | libc::SIG_IGN => die(code),
        _ if spent => die(code),
        // SAFETY: these are the handler's own arguments.
        _ => unsafe { call(action, signal, info, context) },
    }
}

/// Returns true if the interrupted instruction would raise the signal again.
fn is_fault(code: c_int) -> bool {
    const SI_KERNEL: c_int = 0x80;
    [libc::BUS_ADRALN, libc::BUS_ADRERR, libc::BUS_OBJERR, libc::BUS_MCEERR_AR, SI_KERNEL]
        .contains(&code)
}

/// Restores the default action, so that the next SIGBUS kills. Raises SIGBUS unless the interrupted
/// instruction will.
fn die(code: c_int) {
    // SAFETY: zeros are the default action.
    unsafe {
        let default: sigaction = MaybeUninit::zeroed().assume_init();
        libc::sigaction(libc::SIGBUS, &default, ptr::null_mut());
        if !is_fault(code) {
            libc::raise(libc::SIGBUS);
        }
    }
}

/// Calls a handler with its mask and the thread's mask blocked.
///
/// # Safety
/// `action` names a handler; the rest are the signal's arguments.
unsafe fn call(action: &sigaction, signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let mut mask: sigset_t = action.sa_mask;
    // SAFETY: the set is a local, and the flags give the handler's type.
    unsafe {
        if action.sa_flags & libc::SA_NODEFER == 0 {
            libc::sigaddset(&mut mask, libc::SIGBUS);
        }
        let thread = addr_of!((*context.cast::<ucontext_t>()).uc_sigmask);
        let both = kernel_bits(&mask) | kernel_bits(thread);
        addr_of_mut!(mask).cast::<u64>().write(both);
        libc::pthread_sigmask(libc::SIG_SETMASK, &mask, ptr::null_mut());
        if action.sa_flags & libc::SA_SIGINFO != 0 {
            transmute::<usize, Full>(action.sa_sigaction)(signal, info, context);
        } else {
            transmute::<usize, Plain>(action.sa_sigaction)(signal);
        }
    }
}

/// Returns the set as bits, for the 64 signals that the kernel knows.
///
/// # Safety
/// `set` points to a set, or to the kernel's part of one.
unsafe fn kernel_bits(set: *const sigset_t) -> u64 {
    // SAFETY: the caller keeps the contract.
    unsafe { set.cast::<u64>().read() }
}

/// Returns all signals except those that an instruction raises.
fn all_sent() -> sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigfillset fills the set.
    unsafe {
        libc::sigfillset(set.as_mut_ptr());
        let raised = [libc::SIGSEGV, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS];
        for signal in raised.into_iter().chain([libc::SIGBUS]) {
            libc::sigdelset(set.as_mut_ptr(), signal);
        }
        set.assume_init()
    }
}
