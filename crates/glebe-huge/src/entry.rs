//! What mmap(2) does, and the library's begin and end.
//!
//! # Safety
//! The program owns the ranges that it names.
#![allow(unsafe_code)]

use std::sync::OnceLock;

use glebe_os::internal::sys::errno::{EEXIST, ENOMEM};
use glebe_os::internal::sys::memory::direct::{
    self, Answer, MADV_DONTFORK, MAP_ANONYMOUS, MAP_DENYWRITE, MAP_EXECUTABLE, MAP_FIXED,
    MAP_FIXED_NOREPLACE, MAP_HUGETLB, MAP_HUGE_MASK, MAP_HUGE_SHIFT, MAP_LOCKED, MAP_NONBLOCK,
    MAP_NORESERVE, MAP_POPULATE, MAP_PRIVATE, MAP_SHARED, MAP_SHARED_VALIDATE, MAP_STACK,
};

use crate::file_maps;
use crate::fork;
use crate::lease::Request;
use crate::place::Spot;
use crate::state::{locked, State};
use crate::unmap::replacing;
use crate::view::View;

/// Exit status when `required` memory cannot be had.
const REFUSED: i32 = 125;
/// Bits of mmap(2) that say whether the mapping is shared: `MAP_TYPE`.
pub(crate) const TYPE: i32 = 0xf;
/// Flags that a lease supports or can ignore.
const KNOWN: i32 = TYPE
    | MAP_STACK
    | MAP_NONBLOCK
    | MAP_DENYWRITE
    | MAP_EXECUTABLE
    | MAP_ANONYMOUS
    | MAP_FIXED
    | MAP_FIXED_NOREPLACE
    | MAP_HUGETLB
    | MAP_LOCKED
    | MAP_NORESERVE
    | MAP_POPULATE
    | MAP_HUGE_MASK << MAP_HUGE_SHIFT;

/// # Safety
/// See mmap(2).
pub(crate) unsafe fn mmap(view: View) -> Answer {
    let View { addr, len, prot, flags, .. } = view;
    // SAFETY: the caller keeps the contract.
    let call = || unsafe { view.call() };
    if flags & MAP_HUGETLB != 0 && flags & MAP_ANONYMOUS != 0 {
        let mut locked = locked();
        return match request(addr, len, prot, flags) {
            Some(request) => leased(locked.get(), &request, call),
            None => by_kernel(locked.get(), view, call),
        };
    }
    // SAFETY: the caller keeps the contract.
    if let Some(answer) = unsafe { file_maps::mmap(view) } {
        return answer;
    }
    match flags & MAP_FIXED {
        0 => call(),
        _ => replacing(addr, len, call),
    }
}

/// Returns the request, unless only the kernel can answer it.
pub(crate) fn request(addr: usize, len: usize, prot: i32, flags: i32) -> Option<Request> {
    let page = page_of(flags)?;
    let len = len.checked_next_multiple_of(page).filter(|len| *len > 0)?;
    let is_whole = addr % page == 0;
    let spot = match flags & (MAP_FIXED | MAP_FIXED_NOREPLACE) {
        0 if addr == 0 || !is_whole => Spot::Anywhere,
        0 => Spot::Hint(addr),
        _ if !is_whole || addr.checked_add(len).is_none() => return None,
        only if only & MAP_FIXED_NOREPLACE != 0 => Spot::Unused(addr),
        _ => Spot::Fixed(addr),
    };
    let is_known = flags & !KNOWN == 0
        && matches!(flags & TYPE, MAP_SHARED | MAP_PRIVATE | MAP_SHARED_VALIDATE);
    let is_shared = flags & MAP_SHARED != 0;
    let flags = flags & (MAP_POPULATE | MAP_LOCKED);
    is_known.then_some(Request { spot, len, page, prot, is_shared, flags })
}

fn page_of(flags: i32) -> Option<usize> {
    match flags >> MAP_HUGE_SHIFT & MAP_HUGE_MASK {
        0 => default_page(),
        shift => 1usize.checked_shl(shift as u32),
    }
}

/// Returns the size of huge pages if the program names none.
pub(crate) fn default_page() -> Option<usize> {
    static DEFAULT: OnceLock<Option<usize>> = OnceLock::new();
    *DEFAULT.get_or_init(|| page_in(&std::fs::read_to_string("/proc/meminfo").ok()?))
}

fn page_in(meminfo: &str) -> Option<usize> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("Hugepagesize:"))?;
    line.trim().strip_suffix(" kB")?.parse::<usize>().ok()?.checked_mul(1 << 10)
}

pub(crate) fn leased(
    state: &mut State,
    request: &Request,
    call: impl FnOnce() -> Answer,
) -> Answer {
    let what = if request.is_shared { "shared" } else { "private" };
    match state.map(request) {
        Ok(base) => {
            if state.settings.is_verbose {
                state.tell(&format!("leased {} KiB at {base:#x}, {what}", request.len >> 10));
            }
            if state.settings.leaves_out && !request.is_shared {
                leave_out(state, base, request.len);
            }
            Ok(base)
        }
        Err(why) => {
            let answer = refused(state, request.len, what, &why, call);
            if let Ok(base) = answer {
                state.forget(base..base + request.len);
            }
            answer
        }
    }
}

/// Sends a request with unsupported flags, or a wrong one, to the kernel.
fn by_kernel(state: &mut State, view: View, call: impl FnOnce() -> Answer) -> Answer {
    let View { addr, len, flags, .. } = view;
    let answer = match call() {
        // No shortage of pages.
        Err(error) if error != ENOMEM => return Err(error),
        answer => refused(state, len, "unusual", "only the kernel knows its flags", || answer),
    };
    if answer == Ok(addr) {
        let len = page_of(flags).and_then(|page| len.checked_next_multiple_of(page));
        state.forget(addr..addr.saturating_add(len.unwrap_or(view.len)));
    }
    answer
}

/// Has the kernel answer what the daemon refused.
pub(crate) fn refused(
    state: &mut State,
    len: usize,
    what: &str,
    why: &str,
    call: impl FnOnce() -> Answer,
) -> Answer {
    let (answer, kib) = (call(), len >> 10);
    // The range is in use, so this is no shortage of pages.
    if answer == Err(EEXIST) {
        return answer;
    }
    state.counts.refuse(len as u64, why, answer.is_ok());
    if answer.is_err() && state.settings.is_required {
        state.tell(&format!("{kib} KiB of huge pages cannot be had: {why}"));
        direct::end(REFUSED);
    }
    if state.settings.is_verbose {
        let kernel = if answer.is_ok() { "serves it" } else { "refuses too" };
        state.tell(&format!("refused {kib} KiB, {what}: {why}; the kernel {kernel}"));
    }
    answer
}

fn leave_out(state: &mut State, base: usize, len: usize) {
    // SAFETY: the range was just mapped.
    if unsafe { direct::madvise(base, len, MADV_DONTFORK) }.is_ok() {
        state.pieces.change(base..base + len, |_, piece| piece.is_inherited = false);
    }
}

#[used]
#[link_section = ".init_array"]
static AT_LOAD: extern "C" fn() = at_load;
#[used]
#[link_section = ".fini_array"]
static AT_EXIT: extern "C" fn() = at_exit;

extern "C" fn at_load() {
    fork::install();
}

/// Tells what was leased, if this process asked for anything or is the one that the user started.
extern "C" fn at_exit() {
    let mut locked = locked();
    let state = locked.get();
    if !state.counts.is_empty() || state.settings.main == Some(std::process::id()) {
        state.tell(&state.counts.to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_size_is_in_the_list_of_memory() {
        assert_eq!(page_in("MemFree: 1 kB\nHugepagesize:       2048 kB\n"), Some(2 << 20));
        assert_eq!(page_in("Hugepagesize: x kB\n"), None);
        assert_eq!(page_in(""), None);
    }

    #[test]
    fn a_request_has_a_size_a_spot_and_known_flags() {
        let huge = MAP_ANONYMOUS | MAP_HUGETLB | 21 << MAP_HUGE_SHIFT;
        let of = |addr, len, flags| {
            let kind = if flags & TYPE == 0 { MAP_PRIVATE } else { 0 };
            request(addr, len, 3, huge | kind | flags)
        };
        let one = of(0, 1, MAP_SHARED).expect("a request");
        assert_eq!((one.len, one.page, one.spot), (2 << 20, 2 << 20, Spot::Anywhere));
        assert!(one.is_shared);
        let spot = |addr, flags| of(addr, 1, flags).map(|it| it.spot);
        assert_eq!(spot(4 << 20, MAP_FIXED), Some(Spot::Fixed(4 << 20)));
        let both = MAP_FIXED_NOREPLACE;
        assert_eq!(spot(4 << 20, both), Some(Spot::Unused(4 << 20)));
        assert_eq!(spot(4 << 20, 0), Some(Spot::Hint(4 << 20)));
        assert_eq!(spot(4096, 0), Some(Spot::Anywhere));
        assert_eq!(spot(4096, MAP_FIXED), None);
        assert!(of(0, 0, 0).is_none() && of(0, usize::MAX, 0).is_none());
        assert!(of(0, 1, 0x40).is_none(), "MAP_32BIT is only the kernel's");
        assert!(of(0, 1, MAP_STACK).is_some());
        assert!(request(0, 1, 3, huge).is_none(), "neither shared nor private");
    }
}
