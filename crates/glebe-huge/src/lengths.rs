//! What ftruncate(2) and fallocate(2) do to files of huge pages.
#![allow(unsafe_code)] // Safety: the mapping is the function's own.

use glebe_os::internal::sys::errno::{EFBIG, EINVAL, ENOMEM, EPERM};
use glebe_os::internal::sys::memory::direct::{
    self, Answer, MAP_NORESERVE, MAP_SHARED, PROT_READ, PROT_WRITE,
};
use glebe_os::internal::sys::memory::direct_files::{
    self, FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE,
};

use crate::entry::refused;
use crate::files::{is_any, opened, Known};
use crate::state::{is_own, locked, State};

pub(crate) fn ftruncate(fd: i32, len: i64) -> Answer {
    let call = || direct_files::ftruncate(fd, len);
    if is_own() {
        return call();
    }
    // A bare system call, which this library does not see, may have made the file.
    opened(fd);
    if !is_any() {
        return call();
    }
    let mut locked = locked();
    let state = locked.get();
    let Some((file, old, known)) = state.known(fd) else { return call() };
    let want = usize::try_from(len).map_err(|_| EINVAL)?;
    match known {
        Known::Waiting { .. } => {
            let done = call()?;
            if want > 0 {
                // If the daemon refuses, the call that maps the file says so.
                let _ = state.lease_file(file, fd, want);
            }
            Ok(done)
        }
        Known::Leased { page, .. } if want % page != 0 => Err(EINVAL),
        Known::Leased { .. } if want == old => Ok(0),
        Known::Leased { .. } if state.is_sealed(fd, old, want) => Err(EPERM),
        // The kernel would give pages of the daemon's away.
        Known::Leased { is_mapped: true, .. } => Err(EPERM),
        Known::Leased { page, .. } if want == 0 => {
            state.empty_file(file, page, 0).then_some(0).ok_or(ENOMEM)
        }
        Known::Leased { .. } => match state.lease_file(file, fd, want) {
            Ok(_) => Ok(0),
            Err(why) => refused(state, want, "file", &why, || Err(ENOMEM)),
        },
    }
}

pub(crate) fn fallocate(fd: i32, mode: i32, offset: i64, len: i64) -> Answer {
    let call = || direct_files::fallocate(fd, mode, offset, len);
    let answer = if is_any() { filled(fd, mode, offset, len) } else { None };
    answer.unwrap_or_else(call)
}

/// Fills a part of a file of huge pages, or empties it. Returns nothing if the descriptor is on
/// another file, or the call is only the kernel's.
pub(crate) fn filled(fd: i32, mode: i32, offset: i64, len: i64) -> Option<Answer> {
    let mut locked = locked();
    let state = locked.get();
    let (file, old, known) = state.known(fd)?;
    let (Known::Waiting { page } | Known::Leased { page, .. }) = known;
    let (Ok(from), Ok(more @ 1..)) = (usize::try_from(offset), usize::try_from(len)) else {
        return Some(Err(EINVAL));
    };
    let Some(end) = from.checked_add(more).and_then(|end| end.checked_next_multiple_of(page))
    else {
        return Some(Err(EFBIG));
    };
    let call = || direct_files::fallocate(fd, mode, offset, len);
    match (mode, known) {
        (0, Known::Leased { .. }) if end <= old => Some(Ok(0)),
        (0, _) if state.is_sealed(fd, old, end.max(old)) => Some(Err(EPERM)),
        (0, Known::Leased { is_mapped: true, .. }) => None,
        (0, _) => Some(match state.lease_file(file, fd, end.max(old)) {
            Ok(_) => Ok(0),
            Err(why) => {
                let answer = refused(state, end, "file", &why, call);
                if answer.is_ok() {
                    state.leave_file(fd);
                }
                answer
            }
        }),
        (both, Known::Leased { .. }) if both == FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE => {
            Some(zero(fd, page, from..(from + more).min(old)))
        }
        _ => None,
    }
}

/// Zeroes a part of a leased file, which keeps its pages.
fn zero(fd: i32, page: usize, part: std::ops::Range<usize>) -> Answer {
    if part.is_empty() {
        return Ok(0);
    }
    let (both, flags) = (PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE);
    let len = part.end.next_multiple_of(page);
    // SAFETY: the kernel chooses the address, and the program gave the contents up.
    unsafe {
        let base = direct::mmap(0, len, both, flags, fd, 0)?;
        direct::zero(base + part.start, part.len());
        direct::munmap(base, len)
    }
}

/// Makes a file long enough for a mapping.
pub(crate) fn grown(state: &mut State, fd: i32, end: usize) -> Result<(), String> {
    match state.known(fd) {
        Some((file, old, Known::Waiting { .. })) => {
            state.lease_file(file, fd, end.max(old)).map(drop)
        }
        Some((file, old, Known::Leased { is_mapped: false, .. })) if end > old => {
            state.lease_file(file, fd, end).map(drop)
        }
        _ => Ok(()),
    }
}
