//! Restartable sequences: short runs of stores that the kernel aborts rather than resumes.
//!
//! A thread inside a sequence that is preempted, migrated, interrupted by a signal, or hit by
//! [`membarrier::rseq_barrier`](super::membarrier::rseq_barrier) continues at the sequence's
//! abort address. So after "change the guard word, then barrier" no thread can still act on the
//! old guard, and nobody waited for a thread that was not running.
//!
//! Both sequences here start with the same test, `guard & mask == expect`, and end with the one
//! store that commits. Source: rseq(2), the kernel's `rseq.c`, the ABI of `struct rseq` as the C
//! library registers it (glibc 2.35 and later). Cost: a few instructions above the bare stores.
//!
//! # Safety
//! Unsafe because it is assembly that writes where it is told. The area belongs to the calling
//! thread: its address is the thread pointer plus a process-wide constant.
#![allow(unsafe_code)]

use std::sync::OnceLock;

use crate::sync::AtomicU64;

/// Proof that the C library registered restartable sequences for every thread of the process.
#[derive(Clone, Copy, Debug)]
pub struct Rseq {
    /// From the thread pointer to `struct rseq`.
    offset: isize,
}

/// How a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The commit was stored.
    Done,
    /// The guard did not match; nothing was committed.
    Refused,
    /// The target did not hold the expected word; nothing was committed.
    Lost,
    /// The kernel aborted the sequence before its commit: it may be tried again.
    Aborted,
}

/// The condition under which a sequence may commit: `word & mask == expect`.
#[derive(Clone, Copy)]
pub struct Guard<'a> {
    /// The word that is tested.
    pub word: &'a AtomicU64,
    /// The bits of it that count.
    pub mask: u64,
    /// What they must be.
    pub expect: u64,
}

/// Words stored beside the bytes of a [`Rseq::fill`].
pub const META_WORDS: usize = 4;

/// What a [`Rseq::fill`] does once the guard matches and `target` holds `claim`: store `meta`
/// into `meta_at`, copy `len` bytes, and commit by storing `commit` into `target`.
#[repr(C)]
pub struct Fill<'a> {
    /// The word that must hold `claim` and will hold `commit`.
    pub target: &'a AtomicU64,
    /// Expected in `target`.
    pub claim: u64,
    /// Stored into `target` last.
    pub commit: u64,
    /// Where the side words go.
    pub meta_at: &'a [AtomicU64; META_WORDS],
    /// The side words.
    pub meta: [u64; META_WORDS],
    /// Destination of the bytes.
    pub to: *mut u8,
    /// Source of the bytes.
    pub from: *const u8,
    /// How many: a multiple of 16.
    pub len: usize,
}

const SIZE_OF_FILL: usize = 88;
const _: () = assert!(size_of::<Fill<'_>>() == SIZE_OF_FILL);

impl Rseq {
    /// The registration of this process.
    ///
    /// # Errors
    /// The reason why there is none: another architecture, a C library older than glibc 2.35 or
    /// another one, or registration switched off (`GLIBC_TUNABLES=glibc.pthread.rseq=0`).
    pub fn find() -> Result<Self, &'static str> {
        static FOUND: OnceLock<Result<Rseq, &'static str>> = OnceLock::new();
        *FOUND.get_or_init(|| {
            if cfg!(any(loom, not(any(target_arch = "x86_64", target_arch = "aarch64")))) {
                return Err("no restartable sequence is written for this architecture");
            }
            // SAFETY: dlsym takes a terminated name and returns null or the symbol's address.
            let symbol =
                |name: &std::ffi::CStr| unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
            let offset = symbol(c"__rseq_offset").cast::<isize>();
            let size = symbol(c"__rseq_size").cast::<u32>();
            if offset.is_null() || size.is_null() {
                return Err("the C library does not register rseq (glibc 2.35 does)");
            }
            // SAFETY: glibc defines both symbols with these types and never changes them after
            // start-up.
            let (offset, size) = unsafe { (offset.read(), size.read()) };
            if size == 0 {
                return Err("rseq is switched off in the C library or refused by the kernel");
            }
            Ok(Rseq { offset })
        })
    }

    /// Stores `new` into `target` if it holds `old` and the guard matches.
    #[inline]
    pub fn compare_exchange(
        self,
        guard: Guard<'_>,
        target: &AtomicU64,
        old: u64,
        new: u64,
    ) -> Outcome {
        // SAFETY: the offset is that of this process.
        unsafe { arch::compare_exchange(self.offset, guard, target, old, new) }
    }

    /// Fills and commits as [`Fill`] says, or does nothing that anybody may look at: the side
    /// words and the bytes may be partly written when the outcome is not [`Outcome::Done`].
    ///
    /// # Safety
    /// `from` is readable and `to` writable for `len` bytes, which do not overlap, and whoever
    /// else may read or write `to` does so only in ways that allow for a concurrent writer.
    #[inline]
    pub unsafe fn fill(self, guard: Guard<'_>, fill: &Fill<'_>) -> Outcome {
        // SAFETY: forwarded to the caller.
        unsafe { arch::fill(self.offset, guard, fill) }
    }
}

#[cfg(not(loom))]
fn outcome(code: u64) -> Outcome {
    match code {
        0 => Outcome::Done,
        1 => Outcome::Refused,
        2 => Outcome::Lost,
        _ => Outcome::Aborted,
    }
}

#[cfg(all(target_arch = "x86_64", not(loom)))]
mod arch {
    use super::{outcome, AtomicU64, Fill, Guard, Outcome};
    use std::arch::asm;
    use std::mem::offset_of;

    /// Opens a sequence: its descriptor (version, flags, start, length, abort address), then the
    /// store that arms it. Labels: 2 start, 3 one past the commit, 4 abort, 5 way out.
    macro_rules! arm {
        () => {
            concat!(
                ".pushsection __rseq_cs, \"aw\"\n",
                ".balign 32\n",
                "77: .long 0, 0\n",
                ".quad 2f, (3f - 2f), 4f\n",
                ".popsection\n",
                "mov {area}, qword ptr fs:[0]\n",
                "add {area}, {offset}\n",
                "lea rax, [rip + 77b]\n",
                "mov qword ptr [{area} + 8], rax\n",
                "2:\n",
            )
        };
    }

    /// The abort path, behind the signature that the kernel asks for, and the disarming store.
    macro_rules! disarm {
        () => {
            concat!(
                ".pushsection .text.glebe_rseq_abort, \"ax\"\n",
                ".byte 0x0f, 0xb9, 0x3d\n",
                ".long 0x53053053\n",
                "4: mov eax, 3\n",
                "jmp 5f\n",
                ".popsection\n",
                "5: mov qword ptr [{area} + 8], 0\n",
            )
        };
    }

    /// # Safety
    /// `offset` leads to the calling thread's rseq area.
    #[inline]
    pub unsafe fn compare_exchange(
        offset: isize,
        guard: Guard<'_>,
        target: &AtomicU64,
        old: u64,
        new: u64,
    ) -> Outcome {
        let code: u64;
        // SAFETY: reads the guard, exchanges the target atomically, and writes the thread's own
        // rseq area; every path meets at label 5.
        unsafe {
            asm!(
                arm!(),
                "mov rax, qword ptr [{guard}]",
                "and rax, {mask}",
                "cmp rax, {expect}",
                "jne 6f",
                "mov rax, {old}",
                "lock cmpxchg qword ptr [{target}], {new}",
                "3:",
                "jne 7f",
                "xor eax, eax",
                "jmp 5f",
                "6: mov eax, 1",
                "jmp 5f",
                "7: mov eax, 2",
                "jmp 5f",
                disarm!(),
                area = out(reg) _,
                offset = in(reg) offset,
                guard = in(reg) guard.word.as_ptr(),
                mask = in(reg) guard.mask,
                expect = in(reg) guard.expect,
                target = in(reg) target.as_ptr(),
                old = in(reg) old,
                new = in(reg) new,
                out("rax") code,
                options(nostack),
            );
        }
        outcome(code)
    }

    /// # Safety
    /// As [`super::Rseq::fill`].
    #[inline]
    pub unsafe fn fill(offset: isize, guard: Guard<'_>, fill: &Fill<'_>) -> Outcome {
        let code: u64;
        // SAFETY: writes only what `Fill` names and the thread's own rseq area; every path meets
        // at label 5. The direction flag is clear by the ABI.
        unsafe {
            asm!(
                arm!(),
                "mov rax, qword ptr [{guard}]",
                "and rax, {mask}",
                "cmp rax, {expect}",
                "jne 6f",
                "mov {scratch}, qword ptr [{fill} + {TARGET}]",
                "mov rax, qword ptr [{fill} + {CLAIM}]",
                "cmp qword ptr [{scratch}], rax",
                "jne 7f",
                "mov rsi, qword ptr [{fill} + {META_AT}]",
                "mov rax, qword ptr [{fill} + {META}]",
                "mov qword ptr [rsi], rax",
                "mov rax, qword ptr [{fill} + {META} + 8]",
                "mov qword ptr [rsi + 8], rax",
                "mov rax, qword ptr [{fill} + {META} + 16]",
                "mov qword ptr [rsi + 16], rax",
                "mov rax, qword ptr [{fill} + {META} + 24]",
                "mov qword ptr [rsi + 24], rax",
                "mov rdi, qword ptr [{fill} + {TO}]",
                "mov rsi, qword ptr [{fill} + {FROM}]",
                "mov rcx, qword ptr [{fill} + {LEN}]",
                "rep movsb",
                "mov rax, qword ptr [{fill} + {COMMIT}]",
                "mov qword ptr [{scratch}], rax",
                "3:",
                "xor eax, eax",
                "jmp 5f",
                "6: mov eax, 1",
                "jmp 5f",
                "7: mov eax, 2",
                "jmp 5f",
                disarm!(),
                area = out(reg) _,
                scratch = out(reg) _,
                offset = in(reg) offset,
                guard = in(reg) guard.word.as_ptr(),
                mask = in(reg) guard.mask,
                expect = in(reg) guard.expect,
                fill = in(reg) fill,
                TARGET = const offset_of!(Fill<'_>, target),
                CLAIM = const offset_of!(Fill<'_>, claim),
                COMMIT = const offset_of!(Fill<'_>, commit),
                META_AT = const offset_of!(Fill<'_>, meta_at),
                META = const offset_of!(Fill<'_>, meta),
                TO = const offset_of!(Fill<'_>, to),
                FROM = const offset_of!(Fill<'_>, from),
                LEN = const offset_of!(Fill<'_>, len),
                out("rax") code,
                out("rcx") _,
                out("rsi") _,
                out("rdi") _,
                options(nostack),
            );
        }
        outcome(code)
    }
}

#[cfg(all(target_arch = "aarch64", not(loom)))]
mod arch {
    use super::{outcome, AtomicU64, Fill, Guard, Outcome};
    use std::arch::asm;
    use std::mem::offset_of;

    /// As on x86: descriptor, then the store that arms it. Labels: 2 start, 3 one past the
    /// commit, 4 abort, 5 way out.
    macro_rules! arm {
        () => {
            concat!(
                ".pushsection __rseq_cs, \"aw\"\n",
                ".balign 32\n",
                "77: .long 0, 0\n",
                ".quad 2f, (3f - 2f), 4f\n",
                ".popsection\n",
                "mrs {area}, tpidr_el0\n",
                "add {area}, {area}, {offset}\n",
                "adrp {code}, 77b\n",
                "add {code}, {code}, :lo12:77b\n",
                "str {code}, [{area}, #8]\n",
                "2:\n",
            )
        };
    }

    /// The abort path, behind the signature that the kernel asks for, and the disarming store.
    macro_rules! disarm {
        () => {
            concat!(
                "b 5f\n",
                ".inst 0xd428bc00\n",
                "4: mov {code}, #3\n",
                "5: str xzr, [{area}, #8]\n",
            )
        };
    }

    /// # Safety
    /// `offset` leads to the calling thread's rseq area.
    #[inline]
    pub unsafe fn compare_exchange(
        offset: isize,
        guard: Guard<'_>,
        target: &AtomicU64,
        old: u64,
        new: u64,
    ) -> Outcome {
        let code: u64;
        // SAFETY: reads the guard, exchanges the target by an exclusive pair whose store is the
        // commit, and writes the thread's own rseq area; every path meets at label 5.
        unsafe {
            asm!(
                "8:",
                arm!(),
                "ldar {scratch}, [{guard}]",
                "and {scratch}, {scratch}, {mask}",
                "cmp {scratch}, {expect}",
                "b.ne 6f",
                "ldaxr {scratch}, [{target}]",
                "cmp {scratch}, {old}",
                "b.ne 7f",
                "stlxr {scratch:w}, {new}, [{target}]",
                "3:",
                "cbnz {scratch:w}, 8b",
                "mov {code}, #0",
                "b 5f",
                "6: mov {code}, #1",
                "b 5f",
                "7: mov {code}, #2",
                disarm!(),
                area = out(reg) _,
                scratch = out(reg) _,
                code = out(reg) code,
                offset = in(reg) offset,
                guard = in(reg) guard.word.as_ptr(),
                mask = in(reg) guard.mask,
                expect = in(reg) guard.expect,
                target = in(reg) target.as_ptr(),
                old = in(reg) old,
                new = in(reg) new,
                options(nostack),
            );
        }
        outcome(code)
    }

    /// # Safety
    /// As [`super::Rseq::fill`].
    #[inline]
    pub unsafe fn fill(offset: isize, guard: Guard<'_>, fill: &Fill<'_>) -> Outcome {
        let code: u64;
        // SAFETY: writes only what `Fill` names and the thread's own rseq area; every path meets
        // at label 5. The barrier keeps the claim, stored earlier, ahead of the bytes.
        unsafe {
            asm!(
                arm!(),
                "ldar {a}, [{guard}]",
                "and {a}, {a}, {mask}",
                "cmp {a}, {expect}",
                "b.ne 6f",
                "ldr {target}, [{fill}, #{TARGET}]",
                "ldr {a}, [{fill}, #{CLAIM}]",
                "ldr {b}, [{target}]",
                "cmp {a}, {b}",
                "b.ne 7f",
                "dmb ish",
                "ldr {to}, [{fill}, #{META_AT}]",
                "ldp {a}, {b}, [{fill}, #{META}]",
                "stp {a}, {b}, [{to}]",
                "ldp {a}, {b}, [{fill}, #{META} + 16]",
                "stp {a}, {b}, [{to}, #16]",
                "ldr {to}, [{fill}, #{TO}]",
                "ldr {from}, [{fill}, #{FROM}]",
                "ldr {len}, [{fill}, #{LEN}]",
                "8:",
                "ldp {a}, {b}, [{from}], #16",
                "stp {a}, {b}, [{to}], #16",
                "subs {len}, {len}, #16",
                "b.ne 8b",
                "ldr {a}, [{fill}, #{COMMIT}]",
                "stlr {a}, [{target}]",
                "3:",
                "mov {code}, #0",
                "b 5f",
                "6: mov {code}, #1",
                "b 5f",
                "7: mov {code}, #2",
                disarm!(),
                area = out(reg) _,
                a = out(reg) _,
                b = out(reg) _,
                to = out(reg) _,
                from = out(reg) _,
                len = out(reg) _,
                target = out(reg) _,
                code = out(reg) code,
                offset = in(reg) offset,
                guard = in(reg) guard.word.as_ptr(),
                mask = in(reg) guard.mask,
                expect = in(reg) guard.expect,
                fill = in(reg) fill,
                TARGET = const offset_of!(Fill<'_>, target),
                CLAIM = const offset_of!(Fill<'_>, claim),
                COMMIT = const offset_of!(Fill<'_>, commit),
                META_AT = const offset_of!(Fill<'_>, meta_at),
                META = const offset_of!(Fill<'_>, meta),
                TO = const offset_of!(Fill<'_>, to),
                FROM = const offset_of!(Fill<'_>, from),
                LEN = const offset_of!(Fill<'_>, len),
                options(nostack),
            );
        }
        outcome(code)
    }
}

// The model checker's words have no address.
#[cfg(any(loom, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
mod arch {
    use super::{AtomicU64, Fill, Guard, Outcome};

    /// # Safety
    /// None: no [`super::Rseq`] exists on this architecture.
    pub unsafe fn compare_exchange(
        _: isize,
        _: Guard<'_>,
        _: &AtomicU64,
        _: u64,
        _: u64,
    ) -> Outcome {
        Outcome::Refused
    }

    /// # Safety
    /// None: no [`super::Rseq`] exists on this architecture.
    pub unsafe fn fill(_: isize, _: Guard<'_>, _: &Fill<'_>) -> Outcome {
        Outcome::Refused
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::Ordering;

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
            // SAFETY: both buffers are this test's own and of that length.
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
