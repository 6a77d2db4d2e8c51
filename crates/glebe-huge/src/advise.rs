//! What madvise(2) and mprotect(2) do to pieces.
//!
//! The kernel would keep the contents at `MADV_DONTNEED`, since the mapping is a shared one, and
//! give a page away at `MADV_REMOVE`. Both zero instead.
//!
//! # Safety
//! The program owns the ranges that it names.
#![allow(unsafe_code)]

use std::ops::Range;

use glebe_os::internal::sys::errno::{EACCES, EFAULT};
use glebe_os::internal::sys::memory::direct::{
    self, Answer, MADV_DOFORK, MADV_DONTFORK, MADV_DONTNEED, MADV_DONTNEED_LOCKED,
    MADV_POPULATE_READ, MADV_REMOVE, PROT_READ, PROT_WRITE,
};

use crate::entry::default_page;
use crate::pieces::Piece;
use crate::state::{locked, may_have, State};
use crate::unmap::rounded;

/// Advice that the kernel would follow otherwise than the program expects.
const OURS: [i32; 5] =
    [MADV_DONTNEED, MADV_DONTNEED_LOCKED, MADV_REMOVE, MADV_DONTFORK, MADV_DOFORK];

/// # Safety
/// See madvise(2).
pub(crate) unsafe fn madvise(addr: usize, len: usize, advice: i32) -> Answer {
    // SAFETY: the caller keeps the contract.
    let call = || unsafe { direct::madvise(addr, len, advice) };
    if !OURS.contains(&advice) || !may_have(addr, len) {
        return call();
    }
    let mut locked = locked();
    let state = locked.get();
    let range = addr..addr.saturating_add(rounded(len));
    match advice {
        MADV_REMOVE if state.pieces.are_all(range.clone()) => remove(state, range),
        MADV_DONTNEED | MADV_DONTNEED_LOCKED => {
            let done = call()?;
            state.keep_in(range);
            // The kernel rounds the length down here.
            let page = default_page().unwrap_or(1);
            let zeroed = addr..addr.saturating_add(len / page * page);
            zero(state, zeroed.clone(), |piece| !piece.is_shared);
            // The program wanted this memory zeroed, and may write to it before it asks.
            state.lost.take(zeroed);
            Ok(done)
        }
        MADV_DONTFORK | MADV_DOFORK => {
            let done = call()?;
            let is_inherited = advice == MADV_DOFORK;
            state.pieces.change(range, |_, piece| piece.is_inherited = is_inherited);
            Ok(done)
        }
        _ => call(),
    }
}

fn remove(state: &mut State, range: Range<usize>) -> Answer {
    let mut is_allowed = true;
    let may_be = |piece: &Piece| piece.is_shared && piece.prot & PROT_WRITE != 0;
    state.pieces.change(range.clone(), |_, piece| is_allowed &= may_be(piece));
    if !is_allowed {
        return Err(EACCES);
    }
    zero(state, range, |_| true);
    Ok(0)
}

/// Zeroes the chosen pieces of the range, also such that the program may not write.
fn zero(state: &mut State, range: Range<usize>, is_chosen: impl Fn(&Piece) -> bool) {
    state.pieces.change(range, |start, piece| {
        if !is_chosen(piece) {
            return;
        }
        let is_writable = piece.prot & PROT_WRITE != 0;
        // SAFETY: the piece is mapped, and the program gave its contents up.
        unsafe {
            if is_writable || direct::mprotect(start, piece.len, PROT_READ | PROT_WRITE).is_ok() {
                direct::zero(start, piece.len);
            }
            if !is_writable {
                let _ = direct::mprotect(start, piece.len, piece.prot);
            }
        }
    });
}

/// Returns true if a touch of a piece would raise SIGBUS.
pub(crate) fn lacks_pages(start: usize, piece: &Piece) -> bool {
    let is_readable = piece.prot & PROT_READ != 0;
    // SAFETY: the piece is mapped, and the calls change no bytes.
    unsafe {
        if !is_readable && direct::mprotect(start, piece.len, piece.prot | PROT_READ).is_err() {
            return false;
        }
        let answer = direct::madvise(start, piece.len, MADV_POPULATE_READ);
        if !is_readable {
            let _ = direct::mprotect(start, piece.len, piece.prot);
        }
        answer == Err(EFAULT)
    }
}

/// # Safety
/// See mprotect(2).
pub(crate) unsafe fn mprotect(addr: usize, len: usize, prot: i32) -> Answer {
    // SAFETY: the caller keeps the contract.
    let call = || unsafe { direct::mprotect(addr, len, prot) };
    if !may_have(addr, len) {
        return call();
    }
    let mut locked = locked();
    let done = call()?;
    let range = addr..addr.saturating_add(rounded(len));
    let pieces = &mut locked.get().pieces;
    // The kernel accepts part of a page if nothing changes.
    if pieces.in_range(range.clone()).any(|piece| piece.prot != prot) {
        pieces.change(range, |_, piece| piece.prot = prot);
    }
    Ok(done)
}
