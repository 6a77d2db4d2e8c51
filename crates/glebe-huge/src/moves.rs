//! What mremap(2) does to pieces.
//!
//! The kernel would refuse the move of several mappings at once, so each piece moves alone. As with
//! any huge pages, a mapping cannot become longer.
//!
//! # Safety
//! The program owns the ranges that it names.
#![allow(unsafe_code)]

use glebe_os::internal::sys::errno::{EFAULT, EINVAL};
use glebe_os::internal::sys::memory::direct::{
    self, Answer, MREMAP_DONTUNMAP, MREMAP_FIXED, MREMAP_MAYMOVE,
};

use crate::state::{locked, may_have, State};
use crate::unmap::{munmap, replacing};

/// # Safety
/// See mremap(2).
pub(crate) unsafe fn mremap(
    old: usize,
    old_len: usize,
    len: usize,
    flags: i32,
    new: usize,
) -> Answer {
    // SAFETY: the caller keeps the contract.
    let call = || unsafe { direct::mremap(old, old_len, len, flags, new) };
    let has_pieces = may_have(old, old_len.max(1)) && {
        let mut locked = locked();
        locked.get().pieces.is_any(old..old.saturating_add(old_len.max(1)))
    };
    let is_fixed = flags & MREMAP_FIXED != 0;
    match has_pieces {
        false if is_fixed => replacing(new, len, call),
        false => call(),
        true if len > old_len || old_len == 0 || len == 0 || flags & MREMAP_DONTUNMAP != 0 => {
            Err(EINVAL)
        }
        true if is_fixed => {
            // SAFETY: the caller keeps the contract.
            unsafe { moved(old, old_len, len, flags, new) }
        }
        true if len < old_len => {
            // SAFETY: the caller keeps the contract.
            unsafe { munmap(old + len, old_len - len) }.map(|_| old)
        }
        true => Ok(old),
    }
}

unsafe fn moved(old: usize, old_len: usize, len: usize, flags: i32, new: usize) -> Answer {
    let is_apart = new.saturating_add(len) <= old || old.saturating_add(old_len) <= new;
    if flags & MREMAP_MAYMOVE == 0 || !is_apart {
        return Err(EINVAL);
    }
    let mut locked = locked();
    let state = locked.get();
    if !state.pieces.are_all(old..old + len) {
        return Err(EFAULT);
    }
    if len < old_len {
        // SAFETY: the caller keeps the contract.
        unsafe { direct::munmap(old + len, old_len - len) }?;
        state.forget(old + len..old + old_len);
    }
    // SAFETY: the caller keeps the contract.
    unsafe { move_pieces(state, old, len, new) }.map(|()| new)
}

unsafe fn move_pieces(state: &mut State, old: usize, len: usize, new: usize) -> Result<(), i32> {
    let mut failed = Ok(());
    for (start, piece) in state.pieces.take(old..old + len) {
        let to = new + (start - old);
        let lost = state.lost.take(start..start + piece.len);
        let flags = MREMAP_MAYMOVE | MREMAP_FIXED;
        if failed.is_ok() {
            // SAFETY: the caller keeps the contract, and the piece is one mapping.
            failed = unsafe { direct::mremap(start, piece.len, piece.len, flags, to) }.map(drop);
        }
        let at = if failed.is_ok() { to } else { start };
        if at == to {
            state.forget(to..to + piece.len);
        }
        state.add(at, piece);
        lost.into_iter().for_each(|(from, it)| state.lost.insert(at + (from - start), it));
    }
    failed
}
