//! What calls on volatile memory ask for first: [`Claim`], [`Inside`], and a child that may go on.
//!
//! Memory of the caller's belongs to one region at most: a [`Claim`] says so.
//!
//! A touch of a lost page inside a call, of a buffer of the caller's, or in somebody's step of a
//! fork runs the program's SIGBUS handler, whose own calls would wait for locks of the same thread.
//! So each thread knows whether it is inside ([`Inside`]), and is refused there.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard};

use glebe::sys::{atfork, page_size};
use glebe::units::Bytes;
use glebe::volatile::Error;

use crate::abi::GLEBE_ERROR_WOULD_WAIT;
use crate::failure::Failure;
use crate::table::lock;

/// First addresses of claims, and the addresses behind their last.
pub(super) type Claims = BTreeMap<usize, usize>;

static CLAIMS: Mutex<Claims> = Mutex::new(BTreeMap::new());

/// That a range of addresses is one region's, until this is dropped.
#[derive(Debug)]
pub(super) struct Claim(Range<usize>);

impl Claim {
    /// Claims a range, which is not empty, if none of it is claimed.
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

/// That the thread is inside a call on volatile memory, until this is dropped.
pub(crate) struct Inside(());

impl Inside {
    /// Refuses a thread that is inside one already, as a signal handler may be.
    pub(crate) fn enter() -> Result<Self, Failure> {
        // Of a thread that is ending: it has no value to keep.
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

/// Whether the thread is inside one.
pub(super) fn is_inside() -> bool {
    IS_INSIDE.try_with(Cell::get).unwrap_or(false)
}

/// All claims, of which none comes or goes until the answer is dropped.
pub(super) fn hold_claims() -> MutexGuard<'static, Claims> {
    lock(&CLAIMS)
}

/// Says that the thread is inside, or no longer, whatever it was: for a fork. A fork in a handler
/// that interrupted a call waits for itself, as atfork(3) has it.
pub(super) fn set_inside(is: bool) {
    let _ = IS_INSIDE.try_with(|inside| inside.set(is));
}

/// Refuses a child in which locks may be held for ever.
pub(super) fn check_fork() -> Result<(), Failure> {
    if atfork::is_without_steps() {
        return Err(Failure::forked());
    }
    Ok(())
}

/// `len_bytes` from `offset_bytes` on; what overflows is refused as the library refuses it.
pub(super) fn range(offset_bytes: u64, len_bytes: u64) -> Result<Range<Bytes>, Failure> {
    match offset_bytes.checked_add(len_bytes) {
        Some(end) => Ok(Bytes::new(offset_bytes)..Bytes::new(end)),
        None => {
            let greatest = Bytes::new(u64::MAX);
            Err(Error::Beyond { end: greatest, limit: greatest }.into())
        }
    }
}

/// The addresses of the whole base pages of `len_bytes` at `addr`.
pub(super) fn whole_pages(addr: usize, len_bytes: u64) -> Result<Range<usize>, Failure> {
    let page = page_size();
    let end = range(addr as u64, len_bytes)?.end.pages_down(page).bytes(page).as_usize();
    let start = addr.checked_next_multiple_of(page.bytes().as_usize()).filter(|at| *at < end);
    start.map(|start| start..end).ok_or(Error::Empty.into())
}
