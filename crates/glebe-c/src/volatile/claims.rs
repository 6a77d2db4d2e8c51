//! Checks calls on volatile memory before they begin.
//!
//! [`Claim`] lets only one region use the caller's memory.
//!
//! [`Inside`] refuses a call in a signal handler that interrupted another call or an `atfork` step,
//! because the inner call would wait for locks that its own thread holds. A call or a step that
//! touches a lost page, for example of the caller's buffer, runs the program's SIGBUS handler.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard};

use glebe::internal::sys::page_size;
use glebe::internal::sys::processes::atfork;
use glebe::units::Bytes;
use glebe::volatile::Error;

use crate::abi::GLEBE_ERROR_WOULD_WAIT;
use crate::failure::Failure;
use crate::table::lock;

/// Claimed ranges: first addresses, and the addresses after the last.
pub(super) type Claims = BTreeMap<usize, usize>;

static CLAIMS: Mutex<Claims> = Mutex::new(BTreeMap::new());

/// Reserves a range of addresses for one region until the drop.
#[derive(Debug)]
pub(super) struct Claim(Range<usize>);

impl Claim {
    /// Claims a range, which is not empty. Refuses a range that overlaps another claim.
    pub(super) fn new(range: Range<usize>) -> Result<Self, Failure> {
        let mut claims = lock(&CLAIMS);
        if let Some((&start, &end)) = claims.range(..range.end).next_back() {
            if end > range.start {
                return Err(Failure::Adopted { start, end });
            }
        }
        claims.insert(range.start, range.end);
        Ok(Self(range))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        lock(&CLAIMS).remove(&self.0.start);
    }
}

thread_local!(static IS_INSIDE: Cell<bool> = const { Cell::new(false) });

const INSIDE: &str = "this thread is inside another call on volatile memory, or a fork, and would \
    wait for itself; a handler can map a page there, or a region be made with a refill";

/// Marks the thread as inside a call on volatile memory until the drop.
pub(crate) struct Inside(());

impl Inside {
    /// Refuses a thread that is inside a call, for example in a signal handler.
    pub(crate) fn enter() -> Result<Self, Failure> {
        // A thread that is ending may have no `IS_INSIDE` any more, and is not refused.
        match IS_INSIDE.try_with(|inside| inside.replace(true)) {
            Ok(true) => Err(Failure::new(GLEBE_ERROR_WOULD_WAIT, INSIDE)),
            _ => Ok(Self(())),
        }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let _ = IS_INSIDE.try_with(|inside| inside.set(false));
    }
}

pub(super) fn is_inside() -> bool {
    IS_INSIDE.try_with(Cell::get).unwrap_or(false)
}

pub(super) fn hold_claims() -> MutexGuard<'static, Claims> {
    lock(&CLAIMS)
}

/// Sets whether the forking thread counts as inside a call. No fork is refused, so a fork in a
/// signal handler that interrupted a call deadlocks; see pthread_atfork(3).
pub(super) fn set_inside(is: bool) {
    let _ = IS_INSIDE.try_with(|inside| inside.set(is));
}

/// Refuses a child that ran no `atfork` steps, because its locks may stay locked for ever.
pub(super) fn check_fork() -> Result<(), Failure> {
    if atfork::is_without_steps() {
        return Err(Failure::forked());
    }
    Ok(())
}

/// Returns the range, or the library's error if the end overflows.
pub(super) fn range(offset_bytes: u64, len_bytes: u64) -> Result<Range<Bytes>, Failure> {
    match offset_bytes.checked_add(len_bytes) {
        Some(end) => Ok(Bytes::new(offset_bytes)..Bytes::new(end)),
        None => {
            let greatest = Bytes::new(u64::MAX);
            Err(Error::Beyond { end: greatest, limit: greatest }.into())
        }
    }
}

/// Returns the addresses of the whole base pages in a range.
pub(super) fn whole_pages(addr: usize, len_bytes: u64) -> Result<Range<usize>, Failure> {
    let page = page_size();
    let end = range(addr as u64, len_bytes)?.end.pages_down(page).bytes(page).as_usize();
    let start = addr.checked_next_multiple_of(page.bytes().as_usize()).filter(|at| *at < end);
    start.map(|start| start..end).ok_or(Error::Empty.into())
}
