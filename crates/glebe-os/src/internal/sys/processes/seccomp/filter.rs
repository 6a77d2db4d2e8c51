//! [`install`] installs a filter in the calling thread, which programs and children inherit.
//!
//! The filter is a program for the kernel's packet filter (BPF): loads of 32-bit words of
//! `seccomp_data`, and jumps forward by a number of instructions. Source: seccomp(2).
#![allow(unsafe_code)]

use std::io;
use std::mem::offset_of;
use std::os::fd::{FromRawFd, OwnedFd};

use libc::{sock_filter, BPF_ABS, BPF_JEQ, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_RET, BPF_W};

use crate::internal::sys::call::answer;

/// The kernel's name of this architecture (AUDIT_ARCH), if the filter is for it.
#[cfg(target_arch = "x86_64")]
pub(super) const ARCHITECTURE: Option<u32> = Some(0xc000_003e);
#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
pub(super) const ARCHITECTURE: Option<u32> = Some(0xc000_00b7);
#[cfg(not(any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little"))))]
pub(super) const ARCHITECTURE: Option<u32> = None;

const ALLOW: u8 = 10;
const HOLD: u8 = 11;
const LEN: usize = 12;

/// Returns the instruction number `own`: go to `yes` or `no`.
const fn jump(own: u8, test: u32, value: u32, yes: u8, no: u8) -> sock_filter {
    sock_filter {
        code: (BPF_JMP | test | BPF_K) as u16,
        jt: yes - own - 1,
        jf: no - own - 1,
        k: value,
    }
}

const fn load(offset: usize) -> sock_filter {
    sock_filter { code: (BPF_LD | BPF_W | BPF_ABS) as u16, jt: 0, jf: 0, k: offset as u32 }
}

const fn end(action: u32) -> sock_filter {
    sock_filter { code: (BPF_RET | BPF_K) as u16, jt: 0, jf: 0, k: action }
}

/// Offset of the lower half of an argument, which has all flags, on a little-endian machine.
const fn argument(nth: usize) -> usize {
    offset_of!(libc::seccomp_data, args) + nth * size_of::<u64>()
}

fn program(architecture: u32) -> [sock_filter; LEN] {
    let [mmap, shmget] = [libc::SYS_mmap as u32, libc::SYS_shmget as u32];
    [
        load(offset_of!(libc::seccomp_data, arch)),
        jump(1, BPF_JEQ, architecture, 2, ALLOW),
        load(offset_of!(libc::seccomp_data, nr)),
        jump(3, BPF_JEQ, mmap, 4, 7),
        load(argument(3)),
        jump(5, BPF_JSET, libc::MAP_HUGETLB as u32, 6, ALLOW),
        jump(6, BPF_JSET, libc::MAP_ANONYMOUS as u32, HOLD, ALLOW),
        jump(7, BPF_JEQ, shmget, 8, ALLOW),
        load(argument(2)),
        jump(9, BPF_JSET, libc::SHM_HUGETLB as u32, HOLD, ALLOW),
        end(libc::SECCOMP_RET_ALLOW),
        end(libc::SECCOMP_RET_USER_NOTIF),
    ]
}

/// Installs the filter, and returns its listener. A thread without CAP_SYS_ADMIN gives up the right
/// to gain privileges (no_new_privs). Allocates nothing, for use between fork and exec.
pub(super) fn install() -> io::Result<OwnedFd> {
    let architecture = ARCHITECTURE.ok_or(io::ErrorKind::Unsupported)?;
    let mut program = program(architecture);
    let filter = libc::sock_fprog { len: LEN as u16, filter: program.as_mut_ptr() };
    let listener = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
    // Without this flag (Linux 5.19), each signal ends a held call, which then begins again.
    let patient = listener | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    let set = |flags| match set(flags, &filter) {
        Err(error) if error.raw_os_error() == Some(libc::EACCES) => {
            // SAFETY: the call takes numbers.
            answer("prctl", || unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
            self::set(flags, &filter)
        }
        other => other,
    };
    match set(patient) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => set(listener),
        other => other,
    }
}

fn set(flags: libc::c_ulong, filter: &libc::sock_fprog) -> io::Result<OwnedFd> {
    let operation = libc::SECCOMP_SET_MODE_FILTER;
    let at = std::ptr::from_ref(filter);
    let fd = answer("seccomp", || {
        // SAFETY: the kernel copies the program, whose length is right, during the call.
        unsafe { libc::syscall(libc::SYS_seccomp, operation, flags, at) }
    })?;
    // SAFETY: nothing else owns the new descriptor, which is a number of an open file.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}
