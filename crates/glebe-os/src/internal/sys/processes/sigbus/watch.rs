//! [`add`] watches a range for SIGBUS. No call takes a lock, because a signal handler or forked
//! child could wait for ever.
//!
//! A watch owns its slot while `taken` is set; the slot is in use while `end` is not zero. Filling
//! a slot stores `end` last; emptying it clears `end` first. Only the owner writes the rest, while
//! no handler is inside. A handler increases `inside` and then checks `end` again; a removal clears
//! `end` and then waits until `inside` is zero. Both are sequentially consistent, so at least one
//! sees the other.
//!
//! Fork wipes the counts, because a child lacks its parent's other handlers and would wait for them
//! for ever. Slots are reused, never freed.
#![allow(unsafe_code)]

use std::mem::transmute;
use std::ops::Range;
use std::ptr;

use crate::error::OsError;
use crate::internal::sync::{Backoff, List, MappedPtr, MappedWord, Ordering};
use crate::internal::sys::memory::mmap::wiped_page;
use crate::internal::sys::memory::own::Own;
use crate::internal::sys::page_size;

use super::{Decide, Decision};

const SLOTS: usize = 128;

#[derive(Debug)]
struct Slot {
    taken: MappedWord,
    start: MappedWord,
    end: MappedWord,
    /// A [`Decide`].
    decide: MappedPtr<()>,
    data: MappedPtr<()>,
    inside: &'static MappedWord,
}

static CHUNKS: List<[Slot; SLOTS]> = List::new();

/// The drop waits for running callbacks.
#[derive(Debug)]
pub struct Watch(&'static Slot);

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

fn wiped_counts() -> Result<&'static [MappedWord; SLOTS], OsError> {
    let len = page_size().bytes();
    assert!(len.as_usize() >= size_of::<[MappedWord; SLOTS]>());
    let addr = wiped_page()?;
    std::mem::forget(Own::note(addr..addr + len.as_usize()));
    // SAFETY: the page is long enough and never unmapped.
    Ok(unsafe { &*ptr::with_exposed_provenance(addr) })
}

pub(super) fn ask(addr: usize) -> Decision {
    let mut outcomes = CHUNKS.iter().flatten().map(|slot| slot.ask(addr));
    outcomes.find(|outcome| *outcome != Decision::Pass).unwrap_or(Decision::Pass)
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

    fn take(&self) -> bool {
        self.taken.load(Ordering::Relaxed) == 0 && self.taken.swap(1, Ordering::Acquire) == 0
    }

    fn holds(&self, addr: usize) -> bool {
        // `end` is loaded first, so that the earlier store of `start` is visible.
        let end = self.end.load(Ordering::SeqCst);
        (self.start.load(Ordering::Relaxed)..end).contains(&(addr as u64))
    }

    fn ask(&self, addr: usize) -> Decision {
        if !self.holds(addr) {
            return Decision::Pass;
        }
        self.inside.fetch_add(1, Ordering::SeqCst);
        let mut outcome = Decision::Pass;
        // Checks again, because the slot may have got another range before `inside` increased.
        if self.holds(addr) {
            let decide = self.decide.load(Ordering::Relaxed);
            let data = self.data.load(Ordering::Relaxed);
            // SAFETY: `add` stored a `Decide` before the `end` just seen. The watch's removal waits
            // for this handler.
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
