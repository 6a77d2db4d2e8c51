//! The sequences of [`super::Rseq`] in x86-64 assembly.
#![allow(unsafe_code)]

use super::{outcome, AtomicU64, Fill, Guard, Outcome};
use std::arch::asm;
use std::mem::offset_of;

/// Opens a restartable sequence: arms the descriptor and tests the guard word. Labels: 2 start, 3
/// committed, 4 abort, 5 exit, 6 refused, 7 lost.
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
            "mov rax, qword ptr [{guard}]\n",
            "and rax, {mask}\n",
            "cmp rax, {expect}\n",
            "jne 6f\n",
        )
    };
}

/// Closes a sequence. The kernel expects the signature just before the abort address.
macro_rules! disarm {
    () => {
        concat!(
            "xor eax, eax\n",
            "jmp 5f\n",
            "6: mov eax, 1\n",
            "jmp 5f\n",
            "7: mov eax, 2\n",
            "jmp 5f\n",
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
    // SAFETY: the block changes only the target and the thread's own rseq area.
    unsafe {
        asm!(
            arm!(),
            "mov rax, {old}",
            "lock cmpxchg qword ptr [{target}], {new}",
            "3:",
            "jne 7f",
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
/// See [`super::Rseq::fill`].
#[inline]
pub unsafe fn fill(offset: isize, guard: Guard<'_>, fill: &Fill<'_>) -> Outcome {
    let code: u64;
    // SAFETY: the block writes only what `Fill` names and the thread's own rseq area. The ABI keeps
    // the direction flag clear.
    unsafe {
        asm!(
            arm!(),
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
