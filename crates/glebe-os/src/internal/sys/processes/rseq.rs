//! [`Rseq`] runs restartable sequences of stores, which the kernel aborts instead of resuming.
//!
//! A sequence first tests the guard (`word & mask == expect`) and ends with one store, the commit.
//! Preemption, migration, a signal or [`rseq_barrier`](super::membarrier::rseq_barrier) moves a
//! thread from a sequence to the abort address. So after a change of the guard word and a barrier,
//! no thread can act on the old guard.
//!
//! Source: rseq(2), the kernel's `rseq.c`, glibc's `struct rseq`.
//!
//! # Safety
//! The rseq area is the calling thread's own: its address is the thread pointer plus a constant.
#![allow(unsafe_code)]

use crate::error::OsError;
use crate::internal::sync::{AtomicU64, First};
use crate::internal::sys::call::call;

/// Proof that the C library registered rseq for every thread.
#[derive(Clone, Copy, Debug)]
pub struct Rseq {
    /// Offset of `struct rseq` from the thread pointer, in bytes.
    offset: isize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// The guard did not match; no commit.
    Refused,
    /// The target did not hold `old` or `claim`; no commit.
    Lost,
    /// Aborted before the commit. The caller may try again.
    Aborted,
}

#[derive(Clone, Copy)]
pub struct Guard<'a> {
    pub word: &'a AtomicU64,
    pub mask: u64,
    pub expect: u64,
}

pub const META_WORDS: usize = 4;

/// Arguments of [`Rseq::fill`].
#[repr(C)]
pub struct Fill<'a> {
    pub target: &'a AtomicU64,
    pub claim: u64,
    pub commit: u64,
    pub meta_at: &'a [AtomicU64; META_WORDS],
    pub meta: [u64; META_WORDS],
    pub to: *mut u8,
    pub from: *const u8,
    /// Number of bytes: a multiple of 16, not zero.
    pub len: usize,
}

const _: () = assert!(size_of::<Fill<'_>>() == 88);

/// Returns Ok if the kernel has rseq(2). Registers nothing.
pub fn is_known() -> Result<(), OsError> {
    let null = std::ptr::null::<u8>();
    // SAFETY: the kernel refuses unknown flags before it uses the pointer.
    let asked = || unsafe { libc::syscall(libc::SYS_rseq, null, 0, !0_u32, 0) };
    match call("rseq", || "a query".into(), asked) {
        Err(error) if error.errno() == Some(libc::EINVAL) => Ok(()),
        asked => asked,
    }
}

impl Rseq {
    pub fn find() -> Result<Self, &'static str> {
        static FOUND: First<Result<Rseq, &'static str>> = First::new();
        *FOUND.get_or_compute(|| {
            if cfg!(not(any(target_arch = "x86_64", target_arch = "aarch64"))) {
                return Err("no restartable sequence is written for this architecture");
            }
            // SAFETY: dlsym takes a terminated name.
            let symbol =
                |name: &std::ffi::CStr| unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
            let offset = symbol(c"__rseq_offset").cast::<isize>();
            let size = symbol(c"__rseq_size").cast::<u32>();
            if offset.is_null() || size.is_null() {
                return Err("the C library does not register rseq (glibc 2.35 does)");
            }
            // SAFETY: glibc defines both symbols with these types, constant after start-up.
            let (offset, size) = unsafe { (offset.read(), size.read()) };
            if size == 0 {
                return Err("rseq is switched off in the C library or refused by the kernel");
            }
            Ok(Rseq { offset })
        })
    }

    #[inline]
    pub fn compare_exchange(
        self,
        guard: Guard<'_>,
        target: &AtomicU64,
        old: u64,
        new: u64,
    ) -> Outcome {
        // SAFETY: `find` returned this process's offset.
        unsafe { arch::compare_exchange(self.offset, guard, target, old, new) }
    }

    /// If `target` holds `claim`, stores `meta` in `meta_at`, copies `len` bytes, and stores
    /// `commit` in `target`. An outcome other than [`Outcome::Done`] may leave `meta_at` and `to`
    /// partly written.
    ///
    /// # Safety
    /// `from` is readable and `to` writable for `len` bytes, which do not overlap. All other
    /// accesses to `to` allow for a concurrent writer.
    #[inline]
    pub unsafe fn fill(self, guard: Guard<'_>, fill: &Fill<'_>) -> Outcome {
        // SAFETY: the caller keeps the contract.
        unsafe { arch::fill(self.offset, guard, fill) }
    }
}

fn outcome(code: u64) -> Outcome {
    match code {
        0 => Outcome::Done,
        1 => Outcome::Refused,
        2 => Outcome::Lost,
        _ => Outcome::Aborted,
    }
}

#[cfg(target_arch = "x86_64")]
#[path = "rseq/x86_64.rs"]
mod arch;

#[cfg(target_arch = "aarch64")]
#[path = "rseq/aarch64.rs"]
mod arch;

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
#[path = "rseq/unsupported.rs"]
mod arch;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::internal::sync::Ordering;

    fn rseq() -> Option<Rseq> {
        Rseq::find().map_err(|why| println!("skipped: {why}")).ok()
    }

    #[test]
    fn exchange_obeys_guard_and_target() {
        let Some(rseq) = rseq() else { return };
        let (word, target) = (AtomicU64::new(0b101), AtomicU64::new(7));
        let guard = |expect| Guard { word: &word, mask: 0b100, expect };
        let go = |expect, old, new| loop {
            match rseq.compare_exchange(guard(expect), &target, old, new) {
                Outcome::Aborted => continue,
                end => break end,
            }
        };
        assert_eq!(go(0, 7, 8), Outcome::Refused);
        assert_eq!(go(0b100, 6, 8), Outcome::Lost);
        assert_eq!(go(0b100, 7, 8), Outcome::Done);
        assert_eq!(target.load(Ordering::Relaxed), 8);
    }

    #[test]
    fn fill_writes_all_or_refuses() {
        let Some(rseq) = rseq() else { return };
        let (word, target) = (AtomicU64::new(1), AtomicU64::new(5));
        let meta_at: [AtomicU64; META_WORDS] = Default::default();
        let (from, mut to) = ([7u8; 64], [0u8; 64]);
        let mut go = |expect, claim| loop {
            let fill = Fill {
                target: &target,
                claim,
                commit: 6,
                meta_at: &meta_at,
                meta: [1, 2, 3, 4],
                to: to.as_mut_ptr(),
                from: from.as_ptr(),
                len: from.len(),
            };
            // SAFETY: both buffers have that length.
            match unsafe { rseq.fill(Guard { word: &word, mask: 1, expect }, &fill) } {
                Outcome::Aborted => continue,
                end => break end,
            }
        };
        assert_eq!(go(0, 5), Outcome::Refused);
        assert_eq!(go(1, 4), Outcome::Lost);
        assert_eq!(go(1, 5), Outcome::Done);
        assert_eq!(to, from);
        assert_eq!(target.load(Ordering::Relaxed), 6);
        assert_eq!(meta_at.each_ref().map(|m| m.load(Ordering::Relaxed)), [1, 2, 3, 4]);
    }
}
