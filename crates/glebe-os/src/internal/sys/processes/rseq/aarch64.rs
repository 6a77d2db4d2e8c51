//! The sequences of [`super::Rseq`] in aarch64 assembly.
#![allow(unsafe_code)]

use super::{outcome, AtomicU64, Fill, Guard, Outcome};
use std::arch::asm;
use std::mem::offset_of;

/// Opens a sequence. Labels: 2 start, 3 committed, 4 abort, 5 exit, 6 refused, 7 lost.
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
            "ldar {a}, [{guard}]\n",
            "and {a}, {a}, {mask}\n",
            "cmp {a}, {expect}\n",
            "b.ne 6f\n",
        )
    };
}

/// Closes a sequence. The kernel expects the signature just before the abort address.
macro_rules! disarm {
    () => {
        concat!(
            "mov {code}, #0\n",
            "b 5f\n",
            "6: mov {code}, #1\n",
            "b 5f\n",
            "7: mov {code}, #2\n",
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
    // SAFETY: the block changes only the target and the thread's own rseq area. The store of the
    // exclusive pair is the commit.
    unsafe {
        asm!(
            "8:",
            arm!(),
            "ldaxr {a}, [{target}]",
            "cmp {a}, {old}",
            "b.ne 7f",
            "stlxr {a:w}, {new}, [{target}]",
            "3:",
            "cbnz {a:w}, 8b",
            disarm!(),
            area = out(reg) _,
            a = out(reg) _,
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
/// See [`super::Rseq::fill`].
#[inline]
pub unsafe fn fill(offset: isize, guard: Guard<'_>, fill: &Fill<'_>) -> Outcome {
    let code: u64;
    // SAFETY: the block writes only what `Fill` names and the thread's own rseq area. The barrier
    // orders the earlier store of the claim before the bytes.
    unsafe {
        asm!(
            arm!(),
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
