//! [`len`] bounds the bytes that the kernel puts on a signal's stack.
//!
//! `AT_MINSIGSTKSZ` includes the tile registers of AMX (8 KiB), which the kernel saves only for
//! processes that asked for them. `len` omits registers that the kernel does not save, because
//! Rust's alternate stacks may have only 8 KiB. Source: getauxval(3);
//! Documentation/arch/x86/xstate.rst; CPUID leaf 0xd.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
use crate::internal::sys::fault::point;

pub fn len() -> usize {
    // SAFETY: the call takes a number.
    let most = unsafe { libc::getauxval(libc::AT_MINSIGSTKSZ) } as usize;
    most.saturating_sub(not_saved()).max(libc::MINSIGSTKSZ)
}

/// Returns the size in bytes of registers that this process may not use.
#[cfg(target_arch = "x86_64")]
fn not_saved() -> usize {
    use std::arch::x86_64::{__cpuid, __cpuid_count, __get_cpuid_max};

    /// CPUID leaf of the saved state, valid if `OSXSAVE` is set in leaf 1.
    const LEAF: u32 = 0xd;
    const OSXSAVE: u32 = 1 << 27;
    /// Bytes of legacy state and header.
    const LEGACY: usize = 576;
    const ARCH_GET_XCOMP_SUPP: libc::c_int = 0x1021;
    const ARCH_GET_XCOMP_PERM: libc::c_int = 0x1022;

    // An older kernel refuses the call, and saves all parts for every process.
    let asked = |what: libc::c_int| {
        point("arch_prctl").ok()?;
        let mut parts = 0_u64;
        // SAFETY: the kernel fills the word.
        let rc = unsafe { libc::syscall(libc::SYS_arch_prctl, what, &raw mut parts) };
        (rc == 0).then_some(parts)
    };
    let (Some(all), Some(permitted)) = (asked(ARCH_GET_XCOMP_SUPP), asked(ARCH_GET_XCOMP_PERM))
    else {
        return 0;
    };
    #[allow(unused_unsafe)] // newer compilers call it safe
    // SAFETY: every x86-64 processor has CPUID.
    let parts = unsafe {
        if __get_cpuid_max(0).0 < LEAF || __cpuid(1).ecx & OSXSAVE == 0 {
            return 0;
        }
        (2..63).map(|part| (1_u64 << part, __cpuid_count(LEAF, part))).collect::<Vec<_>>()
    };
    // Bit 0 of ECX marks parts for the kernel only.
    let end_of = |those: u64| {
        let there = parts.iter().filter(|(bit, part)| those & bit != 0 && part.ecx & 1 == 0);
        there.map(|(_, part)| (part.ebx + part.eax) as usize).fold(LEGACY, usize::max)
    };
    end_of(all) - end_of(all & permitted)
}

#[cfg(not(target_arch = "x86_64"))]
fn not_saved() -> usize {
    0
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    static FRAME: AtomicUsize = AtomicUsize::new(0);

    extern "C" fn note_frame(_: libc::c_int) {
        let local = 0_u8;
        FRAME.store((&raw const local).addr(), Ordering::Relaxed);
    }

    #[test]
    fn the_kernel_puts_no_more_on_the_stack() {
        const SLACK: usize = 1024; // what the handler itself uses, and alignment
        let mut stack = vec![0_u8; 128 << 10];
        let top = stack.as_ptr().addr() + stack.len();
        // SAFETY: the stack outlives its use, and the handler stores to a static.
        unsafe {
            let mine = libc::stack_t {
                ss_sp: stack.as_mut_ptr().cast(),
                ss_flags: 0,
                ss_size: stack.len(),
            };
            let mut before = std::mem::zeroed::<libc::stack_t>();
            assert_eq!(libc::sigaltstack(&raw const mine, &raw mut before), 0);
            let mut action = std::mem::zeroed::<libc::sigaction>();
            action.sa_sigaction = note_frame as extern "C" fn(libc::c_int) as usize;
            action.sa_flags = libc::SA_ONSTACK;
            let signal = libc::SIGRTMAX() - 3;
            assert_eq!(libc::sigaction(signal, &raw const action, std::ptr::null_mut()), 0);
            assert_eq!(libc::pthread_kill(libc::pthread_self(), signal), 0);
            assert_eq!(libc::sigaltstack(&raw const before, std::ptr::null_mut()), 0);
        }
        let used = top - FRAME.load(Ordering::Relaxed);
        assert!(used <= len() + SLACK, "{used} bytes used, {} said", len());
        // An aarch64 kernel names the most, and leaves out registers that the thread does not use.
        if cfg!(target_arch = "x86_64") {
            assert!(used + 2 * SLACK >= len(), "{used} bytes used, {} said", len());
        }
    }
}
