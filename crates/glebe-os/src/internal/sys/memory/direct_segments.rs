//! Calls for System V segments, by their numbers: see [`direct`](super::direct).
//!
//! Source: shmget(2), shmop(2), shmctl(2).
#![allow(unsafe_code)]

use std::mem::MaybeUninit;

pub use libc::{
    IPC_CREAT, IPC_EXCL, IPC_PRIVATE, IPC_RMID, IPC_STAT, SHM_EXEC, SHM_HUGETLB, SHM_RDONLY,
    SHM_REMAP, SHM_RND,
};

use super::direct::{answer, Answer};

/// shmctl(2): [`IPC_STAT`] for a position in the kernel's table, and the same without a check.
pub const SHM_STAT: i32 = 13;
pub const SHM_STAT_ANY: i32 = 15;
/// Bits of shmget(2) that are permissions.
pub const MODE: i32 = 0o777;

/// shmget(2).
///
/// # Errors
/// See shmget(2).
pub fn shmget(key: i32, len: usize, flags: i32) -> Answer {
    // SAFETY: the call takes numbers.
    answer(unsafe { libc::syscall(libc::SYS_shmget, key, len, flags) })
}

/// shmat(2).
///
/// # Safety
/// With `SHM_REMAP` the range is the caller's.
pub unsafe fn shmat(id: i32, addr: usize, flags: i32) -> Answer {
    // SAFETY: the caller keeps the contract.
    answer(unsafe { libc::syscall(libc::SYS_shmat, id, addr, flags) })
}

/// shmdt(2).
///
/// # Safety
/// The segment there is the caller's.
pub unsafe fn shmdt(addr: usize) -> Answer {
    // SAFETY: the caller keeps the contract.
    answer(unsafe { libc::syscall(libc::SYS_shmdt, addr) })
}

/// shmctl(2).
///
/// # Safety
/// The buffer fits the command.
pub unsafe fn shmctl(id: i32, command: i32, buffer: usize) -> Answer {
    // SAFETY: the caller keeps the contract.
    answer(unsafe { libc::syscall(libc::SYS_shmctl, id, command, buffer) })
}

/// What shmctl(2) tells of a segment.
#[derive(Clone, Copy, Debug)]
pub struct SegmentStatus {
    pub len: usize,
    pub attachments: u64,
    /// The process that made it; 0 if it is in another PID namespace.
    pub creator: i32,
}

/// Returns what the kernel knows of a segment.
///
/// # Errors
/// See shmctl(2).
pub fn segment_status(id: i32) -> Result<SegmentStatus, i32> {
    let mut told = MaybeUninit::<libc::shmid_ds>::zeroed();
    // SAFETY: the kernel fills the local, for which zeros are valid too.
    let told = unsafe {
        shmctl(id, IPC_STAT, told.as_mut_ptr().expose_provenance())?;
        told.assume_init()
    };
    let (len, attachments, creator) = (told.shm_segsz, told.shm_nattch, told.shm_cpid);
    Ok(SegmentStatus { len, attachments, creator })
}

/// Writes a length where shmctl(2) wrote one.
///
/// # Safety
/// The kernel just filled the buffer for `IPC_STAT`, or the like.
pub unsafe fn set_segment_len(buffer: usize, len: usize) {
    let told = std::ptr::with_exposed_provenance_mut::<libc::shmid_ds>(buffer);
    // SAFETY: the caller keeps the contract.
    unsafe { (&raw mut (*told).shm_segsz).write_unaligned(len) };
}
