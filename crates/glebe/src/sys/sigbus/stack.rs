//! [`Stacks`]: stacks on which a signal handler does what an alternate stack has no room for: those
//! that Rust's runtime makes have 8 KiB.
//!
//! A handler takes a stack that no other has, and waits where there is none. Other handlers must
//! wait for it: the kernel does not see that the thread is on a signal stack. No call allocates.
//! Source: the calling conventions of x86-64 (System V) and AArch64 (AAPCS64).
//!
//! # Safety
//! A stack is one thread's from its bit's setting to its clearing; the work neither unwinds nor
//! jumps out of it.
#![allow(unsafe_code)]

use std::arch::asm;
use std::mem::ManuallyDrop;
use std::ptr;

use crate::error::OsError;
use crate::sync::{Backoff, MappedWord, Ordering};
use crate::sys::commit;
use crate::sys::mmap::unmap;
use crate::units::Bytes;

/// Stacks: as many as a word has bits.
const COUNT: usize = u64::BITS as usize;
/// Bytes of each: what a codec and a write need, many times over.
const LEN: usize = 128 << 10;

/// See the module. They are unmapped when this is dropped.
#[derive(Debug)]
pub(crate) struct Stacks {
    addr: usize,
    taken: MappedWord,
}

/// Work, and what came of it.
struct Call<F, R> {
    work: ManuallyDrop<F>,
    result: Option<R>,
}

impl Stacks {
    /// Stacks, of which pages come as they are used.
    pub(crate) fn new() -> Result<Self, OsError> {
        let addr = commit::sparse(Bytes::new((COUNT * LEN) as u64))?;
        Ok(Self { addr, taken: MappedWord::new(0) })
    }

    /// Does `work` on a stack of these.
    ///
    /// # Safety
    /// All signals that are sent are blocked, and `work` raises none; a panic of it aborts.
    pub(crate) unsafe fn run<R>(&self, work: impl FnOnce() -> R) -> R {
        let nth = self.take();
        let mut call = Call { work: ManuallyDrop::new(work), result: None };
        let top = self.addr + (nth + 1) * LEN;
        // SAFETY: the stack is this call's, and ends at a page; the call outlives the work.
        unsafe { call_on(top, trampoline_of(&call), ptr::from_mut(&mut call).cast()) };
        self.taken.fetch_and(!(1 << nth), Ordering::Release);
        call.result.expect("the work was done")
    }

    /// Takes a stack.
    fn take(&self) -> usize {
        let mut backoff = Backoff::default();
        loop {
            let taken = self.taken.load(Ordering::Relaxed);
            let nth = taken.trailing_ones();
            if nth == u64::BITS {
                backoff.wait();
            } else if self.taken.fetch_or(1 << nth, Ordering::Acquire) & 1 << nth == 0 {
                return nth as usize;
            }
        }
    }
}

impl Drop for Stacks {
    fn drop(&mut self) {
        // SAFETY: nobody is on them, or this could not be dropped.
        let _ = unsafe { unmap(self.addr, Bytes::new((COUNT * LEN) as u64)) };
    }
}

type Trampoline = unsafe extern "C" fn(*mut ());

fn trampoline_of<F: FnOnce() -> R, R>(_: &Call<F, R>) -> Trampoline {
    trampoline::<F, R>
}

/// Does the work of a call.
unsafe extern "C" fn trampoline<F: FnOnce() -> R, R>(call: *mut ()) {
    // SAFETY: `run` passes its own, once.
    unsafe {
        let call = &mut *call.cast::<Call<F, R>>();
        call.result = Some(ManuallyDrop::take(&mut call.work)());
    }
}

/// Calls `function` on the stack that ends at `top`.
///
/// # Safety
/// The stack is the caller's, `top` a multiple of 16; the function returns.
#[cfg(target_arch = "x86_64")]
unsafe fn call_on(top: usize, function: Trampoline, arg: *mut ()) {
    // SAFETY: the function keeps r12, as every function of C does.
    unsafe {
        asm!("mov r12, rsp", "mov rsp, {top}", "call {function}", "mov rsp, r12",
            top = in(reg) top, function = in(reg) function, in("rdi") arg, out("r12") _,
            clobber_abi("C"));
    }
}

/// As above.
///
/// # Safety
/// As above.
#[cfg(target_arch = "aarch64")]
unsafe fn call_on(top: usize, function: Trampoline, arg: *mut ()) {
    // SAFETY: the function keeps x20, as every function of C does.
    unsafe {
        asm!("mov x20, sp", "mov sp, {top}", "blr {function}", "mov sp, x20",
            top = in(reg) top, function = in(reg) function, in("x0") arg, out("x20") _,
            clobber_abi("C"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_done_on_a_stack_of_these_and_its_result_comes_back() {
        let stacks = Stacks::new().unwrap();
        let within = stacks.addr..stacks.addr + COUNT * LEN;
        let text = String::from("moved in");
        // SAFETY: it raises no signal.
        let (at, nested, text) = unsafe {
            stacks.run(|| {
                let local = 0_u8;
                let at = ptr::from_ref(&local).addr();
                (at, stacks.run(|| ptr::from_ref(&0_u8).addr() != at), text + ", and out")
            })
        };
        assert!(within.contains(&at) && nested && text == "moved in, and out");
        assert_eq!(stacks.taken.load(Ordering::Relaxed), 0);
    }
}
