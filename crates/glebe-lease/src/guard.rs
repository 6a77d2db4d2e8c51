//! [`Guard`] turns a touch of revoked memory into zeros, in place of a SIGBUS that would kill.
//!
//! # Safety
//! The flag has a fixed address and outlives the watch, whose drop waits for running handlers. A
//! lease hands out no reference to its bytes.
#![allow(unsafe_code)]

use std::ptr;

use crate::error::LeaseError;
use glebe_os::internal::mapping::Mapping;
use glebe_os::internal::sync::{MappedWord, Ordering};
use glebe_os::internal::sys::processes::sigbus::{fill, Decision, Handler, Watch};
use glebe_os::units::Bytes;

#[derive(Debug)]
struct Watched {
    start: usize,
    len: usize,
    /// Bytes that one revocation takes.
    unit: usize,
    is_revoked: MappedWord,
    /// For each unit, a number that rises before and after zeros replace the unit.
    replaced: Box<[MappedWord]>,
}

#[derive(Debug)]
pub(crate) struct Guard {
    /// Dropped before `watched`, which the handler uses.
    _watch: Watch,
    watched: Box<Watched>,
}

impl Guard {
    /// The daemon takes the memory back in pieces of `unit` bytes.
    pub(crate) fn new(memory: &Mapping, unit: Bytes) -> Result<Self, LeaseError> {
        let (start, len, unit) = (memory.addr(), memory.len().as_usize(), unit.as_usize());
        let replaced = (0..len.div_ceil(unit.max(1))).map(|_| MappedWord::new(0)).collect();
        let is_revoked = MappedWord::new(0);
        let watched = Box::new(Watched { start, len, unit, is_revoked, replaced });
        let handler = Handler::install()?;
        if !handler.is_first()? {
            return Err(LeaseError::HandlerCovered);
        }
        // SAFETY: `watched` has a fixed address and is freed after the watch. `on_touch` makes one
        // system call and changes words.
        let watch =
            unsafe { handler.watch(start..start + len, on_touch, ptr::from_ref(&*watched).cast()) };
        Ok(Self { _watch: watch?, watched })
    }

    pub(crate) fn is_revoked(&self) -> bool {
        self.watched.is_revoked.load(Ordering::Acquire) != 0
    }

    /// Returns a number that changes before and after zeros of this process replace the unit.
    #[inline]
    pub(crate) fn replaced(&self, index: usize) -> u64 {
        self.watched.replaced[index].load(Ordering::Acquire)
    }

    pub(crate) fn set_revoked(&self) {
        self.watched.is_revoked.store(1, Ordering::Release);
    }
}

unsafe extern "C" fn on_touch(addr: usize, data: *const ()) -> Decision {
    // SAFETY: `data` is the `Watched` of a live watch, from `Guard::new`.
    let watched = unsafe { &*data.cast::<Watched>() };
    watched.is_revoked.store(1, Ordering::Release);
    let index = addr.saturating_sub(watched.start) / watched.unit;
    let first = index * watched.unit;
    let len = watched.unit.min(watched.len.saturating_sub(first));
    let note = || {
        let replaced = watched.replaced.get(index);
        replaced.map(|word| word.fetch_add(1, Ordering::SeqCst));
    };
    // The first count warns a thread that uses the zeros at once. The second warns a thread that
    // maps the unit after the first count, because the zeros then cover its new mapping.
    note();
    // SAFETY: the range is in the watched mapping, and references to it are only to atomics.
    let done = unsafe { fill::replace(watched.start + first, len) };
    note();
    match done {
        Ok(()) => Decision::Resume,
        Err(_) => Decision::Pass,
    }
}
