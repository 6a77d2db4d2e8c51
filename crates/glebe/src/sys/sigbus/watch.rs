//! The watched ranges: without a lock, for signal handlers and for whoever forks.
//!
//! Invariants: a slot is a watch's while it is `taken`, and in use while its `end` is not zero;
//! `end` is stored last when a slot is filled and cleared first when it is emptied; the rest of a
//! slot is written only by who took it, when no handler is in it. A handler enters a slot by
//! counting itself and then looks at `end` again; a removal clears `end` and then waits until the
//! count is zero. One of the two sees the other, since both orders are sequentially consistent.
//!
//! The counts lie on a page that fork wipes: the handlers of the parent's other threads do not
//! exist in the child, which would wait for them for ever.
//!
//! Slots come in chunks that are never freed and used again. Cost of a look: two loads for each
//! slot ever used; of a removal: the time until the last handler has left, mostly nothing.
//!
//! # Safety
//! A callback and its data are used only between entering and leaving the slot, while the watch
//! lives: the caller of [`add`] answers for them until then.
#![allow(unsafe_code)]

use std::mem::transmute;
use std::ops::Range;
use std::ptr;

use crate::error::OsError;
use crate::sync::{Backoff, List, MappedPtr, MappedWord, Ordering};
use crate::sys::mmap::wiped_page;
use crate::sys::own::Own;
use crate::sys::page_size;

use super::{Decide, Outcome};

/// How many share a page of counts.
const SLOTS: usize = 128;

#[derive(Debug)]
struct Slot {
    /// One: some watch's.
    taken: MappedWord,
    start: MappedWord,
    /// Zero: not in use.
    end: MappedWord,
    /// A [`Decide`].
    decide: MappedPtr<()>,
    data: MappedPtr<()>,
    /// Handlers in this slot.
    inside: &'static MappedWord,
}

/// Slots by the page that their counts are in.
static CHUNKS: List<[Slot; SLOTS]> = List::new();

/// A watched range; dropping it ends that, once no handler is in it any more.
#[derive(Debug)]
pub struct Watch(&'static Slot);

/// Watches a range that is not empty.
pub(super) fn add(range: Range<usize>, decide: Decide, data: *const ()) -> Result<Watch, OsError> {
    let slot = match CHUNKS.iter().flatten().find(|slot| slot.take()) {
        Some(slot) => slot,
        None => {
            let chunk = wiped_counts()?.each_ref().map(Slot::new);
            chunk[0].take();
            &CHUNKS.find_or_add(|_| false, || chunk)[0]
        }
    };
    slot.decide.store(decide as *mut (), Ordering::Relaxed);
    slot.data.store(data.cast_mut(), Ordering::Relaxed);
    slot.start.store(range.start as u64, Ordering::Relaxed);
    slot.end.store(range.end as u64, Ordering::SeqCst);
    Ok(Watch(slot))
}

/// Words that are zero in a child.
fn wiped_counts() -> Result<&'static [MappedWord; SLOTS], OsError> {
    let len = page_size().bytes();
    assert!(len.as_usize() >= size_of::<[MappedWord; SLOTS]>());
    let addr = wiped_page()?;
    std::mem::forget(Own::note(addr..addr + len.as_usize()));
    // SAFETY: mapped for good, and long enough.
    Ok(unsafe { &*ptr::with_exposed_provenance(addr) })
}

/// Asks the watches of `addr`, in a signal handler.
pub(super) fn ask(addr: usize) -> Outcome {
    let mut outcomes = CHUNKS.iter().flatten().map(|slot| slot.ask(addr));
    outcomes.find(|outcome| *outcome != Outcome::Pass).unwrap_or(Outcome::Pass)
}

impl Slot {
    fn new(inside: &'static MappedWord) -> Self {
        Self {
            taken: MappedWord::new(0),
            start: MappedWord::new(0),
            end: MappedWord::new(0),
            decide: MappedPtr::new(ptr::null_mut()),
            data: MappedPtr::new(ptr::null_mut()),
            inside,
        }
    }

    /// Whether it was nobody's, and is the caller's now.
    fn take(&self) -> bool {
        self.taken.load(Ordering::Relaxed) == 0 && self.taken.swap(1, Ordering::Acquire) == 0
    }

    fn holds(&self, addr: usize) -> bool {
        // `end` first: with it comes the `start` that was stored before it.
        let end = self.end.load(Ordering::SeqCst);
        (self.start.load(Ordering::Relaxed)..end).contains(&(addr as u64))
    }

    fn ask(&self, addr: usize) -> Outcome {
        if !self.holds(addr) {
            return Outcome::Pass;
        }
        self.inside.fetch_add(1, Ordering::SeqCst);
        let mut outcome = Outcome::Pass;
        // Again: it may have become another range's before this handler was counted.
        if self.holds(addr) {
            let decide = self.decide.load(Ordering::Relaxed);
            let data = self.data.load(Ordering::Relaxed);
            // SAFETY: stored from a `Decide`, before the `end` that was just seen. The watch lives
            // and its removal waits for this handler, so the caller of `add` answers for the call.
            outcome = unsafe { transmute::<*mut (), Decide>(decide)(addr, data) };
        }
        self.inside.fetch_sub(1, Ordering::Release);
        outcome
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let Self(slot) = self;
        slot.end.store(0, Ordering::SeqCst);
        let mut backoff = Backoff::default();
        while slot.inside.load(Ordering::SeqCst) != 0 {
            backoff.wait();
        }
        slot.taken.store(0, Ordering::Release);
    }
}
