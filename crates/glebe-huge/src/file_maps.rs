//! What mmap(2) does with a file of huge pages.
//!
//! A private mapping is leased memory of its own, with a copy of the file's contents.
//!
//! # Safety
//! The program owns the ranges that it names.
#![allow(unsafe_code)]

use glebe_os::internal::sys::memory::direct::{
    self, Answer, MAP_ANONYMOUS, MAP_HUGETLB, MAP_HUGE_SHIFT, MAP_NORESERVE, MAP_PRIVATE,
    MAP_SHARED, PROT_READ, PROT_WRITE,
};

use crate::entry::{leased, refused, request, TYPE};
use crate::files::{is_any, Known};
use crate::lease::Request;
use crate::lengths::grown;
use crate::pieces::Piece;
use crate::state::{locked, Holding, Source, State};
use crate::view::View;

/// Maps a file of huge pages. Returns nothing if the descriptor is on another file.
///
/// # Safety
/// See mmap(2).
pub(crate) unsafe fn mmap(view: View) -> Option<Answer> {
    let View { len, prot, flags, fd, offset, .. } = view;
    if fd < 0 || flags & MAP_ANONYMOUS != 0 || !is_any() {
        return None;
    }
    let mut locked = locked();
    let state = locked.get();
    let (_, old, known) = state.known(fd)?;
    let (Known::Waiting { page } | Known::Leased { page, .. }) = known;
    let from = usize::try_from(offset).ok().filter(|from| from % page == 0)?;
    let len = len.checked_next_multiple_of(page).filter(|len| *len > 0)?;
    let view = View { len, ..view };
    let end = from.checked_add(len)?;
    // As on hugetlbfs, only a mapping that may be written makes the file longer.
    if end > old && prot & PROT_WRITE == 0 {
        return None;
    }
    Some(match flags & TYPE {
        // SAFETY: the caller keeps the contract.
        MAP_PRIVATE => unsafe { private(state, view, page, known) },
        // SAFETY: as above.
        _ => unsafe { shared(state, view, end) },
    })
}

unsafe fn shared(state: &mut State, view: View, end: usize) -> Answer {
    let View { len, prot, fd, .. } = view;
    // SAFETY: the caller keeps the contract.
    let call = || unsafe { view.call() };
    let base = match grown(state, fd, end) {
        Ok(()) => call()?,
        Err(why) => {
            let base = refused(state, len, "file", &why, call)?;
            state.leave_file(fd);
            base
        }
    };
    state.forget(base..base + len);
    if let Some((file, _, Known::Leased { .. })) = state.known(fd) {
        state.mapped_file(file);
        state.last += 1;
        let holding = state.last;
        state.holdings.insert(holding, Holding { source: Source::File(file), mapped: len });
        state.add(base, Piece { len, prot, holding, is_shared: true, is_inherited: true });
    }
    Ok(base)
}

unsafe fn private(state: &mut State, view: View, page: usize, known: Known) -> Answer {
    // SAFETY: the caller keeps the contract.
    let call = || unsafe { view.call() };
    let View { addr, len, prot, flags, fd, offset } = view;
    let huge = MAP_ANONYMOUS | MAP_HUGETLB | (page.trailing_zeros() as i32) << MAP_HUGE_SHIFT;
    let Some(request) = request(addr, len, prot, flags | huge) else { return call() };
    if let (Known::Leased { is_mapped: false, is_fresh: true, .. }, Some((file, old, _))) =
        (known, state.known(fd))
    {
        // The file's memory serves the mapping.
        let _ = state.empty_file(file, page, old);
    }
    let contents = match state.known(fd) {
        Some((_, old, Known::Leased { is_fresh: false, .. })) => {
            old.saturating_sub(offset as usize).min(len)
        }
        _ => 0,
    };
    if contents == 0 {
        return leased(state, &request, call);
    }
    // SAFETY: the kernel chooses the address.
    let from =
        unsafe { direct::mmap(0, contents, PROT_READ, MAP_SHARED | MAP_NORESERVE, fd, offset) }?;
    let refusals = state.counts.refused;
    let both = Request { prot: prot | PROT_READ | PROT_WRITE, ..request };
    let answer = leased(state, &both, call);
    if let Some(base) = answer.ok().filter(|_| state.counts.refused == refusals) {
        // SAFETY: the new mapping is not known to the program yet.
        unsafe {
            direct::copy(from, base, contents);
            let _ = direct::mprotect(base, len, prot);
        }
        state.pieces.change(base..base + len, |_, piece| piece.prot = prot);
    }
    // SAFETY: the view is this function's own.
    let _ = unsafe { direct::munmap(from, contents) };
    answer
}
