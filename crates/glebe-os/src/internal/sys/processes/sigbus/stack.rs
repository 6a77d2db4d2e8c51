//! [`Stacks`] holds stacks for handlers whose work does not fit an alternate stack (8 KiB in Rust).
//!
//! A handler takes a free stack, or waits for one. Other handlers must be blocked, because the
//! kernel does not see that the thread is on a signal stack. [`Stacks::run`] does not allocate.
//! Source: System V ABI, AAPCS64.
#![allow(unsafe_code)]

use std::arch::asm;
use std::mem::ManuallyDrop;
use std::ptr;

use crate::error::OsError;
use crate::internal::sync::{Backoff, MappedWord, Ordering};
use crate::internal::sys::memory::commit;
use crate::internal::sys::memory::mmap::unmap;
use crate::units::Bytes;

const COUNT: usize = u64::BITS as usize;
/// Bytes per stack.
const LEN: usize = 128 << 10;

#[derive(Debug)]
pub struct Stacks {
    addr: usize,
    taken: MappedWord,
}

struct Call<F, R> {
    work: ManuallyDrop<F>,
    result: Option<R>,
}

impl Stacks {
    pub fn new() -> Result<Self, OsError> {
        let addr = commit::sparse(Bytes::new((COUNT * LEN) as u64))?;
        Ok(Self { addr, taken: MappedWord::new(0) })
    }

    /// Runs `work` on a free stack. A panic of `work` aborts the process.
    ///
    /// # Safety
    /// All signals are blocked except those that an instruction raises, and `work` raises none.
    pub unsafe fn run<R>(&self, work: impl FnOnce() -> R) -> R {
        let nth = self.take();
        let mut call = Call { work: ManuallyDrop::new(work), result: None };
        let top = self.addr + (nth + 1) * LEN;
        // SAFETY: this call owns the stack, whose end is page-aligned; `call` outlives the work.
        unsafe { call_on(top, trampoline_of(&call), ptr::from_mut(&mut call).cast()) };
        self.taken.fetch_and(!(1 << nth), Ordering::Release);
        call.result.expect("the work was done")
    }

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
        // SAFETY: nobody borrows `self`, so no stack is in use.
        let _ = unsafe { unmap(self.addr, Bytes::new((COUNT * LEN) as u64)) };
    }
}

type Trampoline = unsafe extern "C" fn(*mut ());

fn trampoline_of<F: FnOnce() -> R, R>(_: &Call<F, R>) -> Trampoline {
    trampoline::<F, R>
}

unsafe extern "C" fn trampoline<F: FnOnce() -> R, R>(call: *mut ()) {
    // SAFETY: `run` passes its own call, once.
    unsafe {
        let call = &mut *call.cast::<Call<F, R>>();
        call.result = Some(ManuallyDrop::take(&mut call.work)());
    }
}

/// # Safety
/// The caller owns the stack that ends at `top`, a multiple of 16, and the function returns.
#[cfg(target_arch = "x86_64")]
unsafe fn call_on(top: usize, function: Trampoline, arg: *mut ()) {
    // SAFETY: functions of C preserve r12.
    unsafe {
        asm!("mov r12, rsp", "mov rsp, {top}", "call {function}", "mov rsp, r12",
            top = in(reg) top, function = in(reg) function, in("rdi") arg, out("r12") _,
            clobber_abi("C"));
    }
}

/// # Safety
/// The caller owns the stack that ends at `top`, a multiple of 16, and the function returns.
#[cfg(target_arch = "aarch64")]
unsafe fn call_on(top: usize, function: Trampoline, arg: *mut ()) {
    // SAFETY: functions of C preserve x20.
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
        // SAFETY: the work raises no signal.
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
