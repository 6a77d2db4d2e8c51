//! A token is a segment of the kernel's with one ordinary page, which names the lease that it
//! stands for. A killed program leaves its token behind, so the next program that makes a segment
//! with the key removes it.
#![allow(unsafe_code)] // Safety: the page is attached while it is read or written.

use std::path::Path;

use glebe_os::internal::sys::memory::direct::{self, Answer};
use glebe_os::internal::sys::memory::direct_segments::{
    self as segments, segment_status, IPC_CREAT, IPC_EXCL, IPC_RMID, SHM_RDONLY,
};
use glebe_os::internal::sys::page_size;

use crate::lease::connect;

/// The page begins with this, then the lease's number.
const MARK: [u8; 8] = *b"glebehug";

fn len() -> usize {
    page_size().bytes().as_usize()
}

/// Makes a token with the key's permissions. Fails if the key is in use.
pub(crate) fn made(key: i32, mode: i32, lease: u64) -> Answer {
    let id = segments::shmget(key, len(), mode | IPC_CREAT | IPC_EXCL)?;
    let words = [MARK, lease.to_ne_bytes()];
    // SAFETY: the page is this function's own, and longer than the words. Without permission to
    // write, the token stays without a mark.
    unsafe {
        if let Ok(page) = segments::shmat(id as i32, 0, 0) {
            direct::copy(words.as_ptr().expose_provenance(), page, size_of_val(&words));
            let _ = segments::shmdt(page);
        }
    }
    Ok(id)
}

/// Removes a token whose lease and whose program have ended. Returns false if the segment is
/// something else.
pub(crate) fn removed(id: i32) -> bool {
    let Ok(status) = segment_status(id) else { return false };
    let is_left = status.len == len() && status.attachments == 0 && has_ended(status.creator);
    let Some(lease) = is_left.then(|| lease_of(id)).flatten() else { return false };
    let all = connect().and_then(|client| client.list());
    // Forked children have the lease after the program's end. Another daemon may use its number.
    let is_over = all.is_ok_and(|rows| rows.iter().all(|row| row.lease != lease));
    // SAFETY: the command takes no buffer.
    is_over && unsafe { segments::shmctl(id, IPC_RMID, 0) }.is_ok()
}

/// Returns false for a process that another PID namespace hides.
fn has_ended(process: i32) -> bool {
    let is_there = |name: &str| Path::new("/proc").join(name).exists();
    process > 0 && is_there("self") && !is_there(&process.to_string())
}

fn lease_of(id: i32) -> Option<u64> {
    let mut words = [[0; 8]; 2];
    // SAFETY: the page is attached here, and longer than the words.
    unsafe {
        let page = segments::shmat(id, 0, SHM_RDONLY).ok()?;
        direct::copy(page, words.as_mut_ptr().expose_provenance(), size_of_val(&words));
        let _ = segments::shmdt(page);
    }
    (words[0] == MARK).then_some(u64::from_ne_bytes(words[1]))
}
