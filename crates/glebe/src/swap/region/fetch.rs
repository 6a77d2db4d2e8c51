//! `RegionCore` brings pages *home*, to the region's addresses, after a touch or for a call.
//!
//! The kernel copies bytes into a page's hole, and moves pages back from the *window*. Sequential
//! touches read ahead: up to [`AHEAD`] pages share one system call.
//!
//! Only an instruction that touches the region raises SIGBUS, and no code may touch a region under
//! an allocator's or this crate's locks. So the handler may allocate and take the pool's locks.
//! Cost for a stored page: 4 to 6 µs.
//!
//! # Safety
//! A call fills, moves or gives up only pages that it owns.
#![allow(unsafe_code)]

use std::io;
use std::ops::Range;
use std::time::Instant;

use super::evict::Asker;
use super::inner::RegionCore;
use crate::swap::copies::Unreadable;
use crate::swap::error::SwapError;
use crate::swap::slots::SwapSlot;
use crate::swap::stats::Counter;
use crate::swap::word::{change, must, Refusal, Word, WordState};
use crate::zpool::internal::with_buffer;
use glebe_os::error::OsError;
use glebe_os::internal::stats::lane;
use glebe_os::internal::sync::{Backoff, Ordering};
use glebe_os::internal::sys::errno::EAGAIN;
use glebe_os::internal::sys::memory::uffd::{SHARED, UNMOVABLE};
use glebe_os::internal::sys::processes::sigbus::{Decision, Handler, Reason, Watch};
use glebe_os::units::Bytes;

const AHEAD: u64 = 16;
const AHEAD_SHARE: u64 = 16;
pub(super) static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

pub(super) fn refusal(call: &'static str, errno: i32) -> SwapError {
    OsError::new(call, "a page of a region", io::Error::from_raw_os_error(errno)).into()
}

pub(super) fn unmovable() -> SwapError {
    let subject = "pages of a region that the program has locked or made read-only";
    OsError::new("UFFDIO_MOVE", subject, io::Error::from_raw_os_error(UNMOVABLE)).into()
}

pub(super) fn watch(
    handler: Handler,
    range: Range<usize>,
    inner: &RegionCore,
) -> Result<Watch, OsError> {
    // SAFETY: the region drops the watch before its boxed `inner`. This file's head describes the
    // handler.
    unsafe { handler.watch(range, on_touch, std::ptr::from_ref(inner).cast()) }
}

/// `data` is a [`RegionCore`].
unsafe extern "C" fn on_touch(addr: usize, data: *const ()) -> Decision {
    // SAFETY: `data` lives as long as the watch.
    let inner = unsafe { &*data.cast::<RegionCore>() };
    if inner.alive().is_err() {
        return Decision::Pass;
    }
    let page = (addr - inner.home.addr()) / inner.page();
    // SAFETY: the handler blocks all signals but those of faulting instructions, and `bring`
    // touches no absent page.
    match unsafe { inner.stacks.run(|| inner.bring(page as u64, Asker::Touch)) } {
        Ok(()) => Decision::Resume,
        Err(SwapError::LostPage { .. }) => Decision::Fail(Reason::Damaged),
        Err(SwapError::Os(error)) if error.kind() == io::ErrorKind::OutOfMemory => {
            Decision::Fail(Reason::NoMemory)
        }
        Err(_) => Decision::Fail(Reason::Device),
    }
}

impl RegionCore {
    /// Allocates what a first touch would allocate in the handler.
    pub(super) fn warm_up(&self) {
        with_buffer(AHEAD as usize * self.page(), |page| {
            self.copies.warm_up(&page[..self.page()]);
        });
    }

    pub(super) fn bring(&self, page: u64, asker: Asker) -> Result<(), SwapError> {
        let (slot, mut backoff) = (self.slot_of(page), Backoff::default());
        loop {
            match change(slot.word(), Word::fetching) {
                Ok(was) => return self.fetch(page, slot, was, asker),
                Err(Refusal::Unfit) if asker == Asker::Touch => return self.confirm(page, slot),
                Err(Refusal::Unfit) => return Ok(()),
                Err(Refusal::Failed) => {
                    return Err(self.damaged(page, "it could not be read before"));
                }
                Err(_) => backoff.wait(),
            }
        }
    }

    fn damaged(&self, page: u64, what: &'static str) -> SwapError {
        SwapError::LostPage { offset: self.offset_of(page), what }
    }

    /// Serves a touch of a resident page: ends its protection, and zeroes it if discarded. The
    /// touching thread may have pinned the page itself.
    fn confirm(&self, page: u64, slot: SwapSlot<'_>) -> Result<(), SwapError> {
        if change(slot.word(), Word::confirming).is_err() {
            // Another thread works on the page, so the touch repeats.
            Backoff::default().wait();
            return Ok(());
        }
        let lifted = match self.unprotect(page) {
            // After EAGAIN the touch repeats, because another thread is changing the mappings.
            Err(errno) if errno != EAGAIN => Err(refusal("UFFDIO_WRITEPROTECT", errno)),
            _ => Ok(()),
        };
        let filled = lifted.and_then(|()| {
            // SAFETY: the page stays at home while it is busy; a present page keeps its bytes.
            unsafe { self.pager.fill(self.at_home(page), &ZEROS[..self.page()], self.page()) }
                .map_err(|errno| refusal("UFFDIO_COPY", errno))
        });
        must(slot.word(), |word| word.idle(word.has_copy()));
        filled
    }

    /// Ends the write protection that a failed eviction may have left on a pinned page.
    pub(super) fn lift(&self, page: u64) -> Result<(), SwapError> {
        if self.protected.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        self.unprotect(page).map_err(|errno| refusal("UFFDIO_WRITEPROTECT", errno))
    }

    pub(super) fn unprotect(&self, page: u64) -> Result<(), i32> {
        if self.pager.moves() {
            return Ok(());
        }
        // SAFETY: the page is at home, and no thread compresses it.
        unsafe { self.pager.protect(self.at_home(page), self.page(), false) }
    }

    fn fetch(
        &self,
        page: u64,
        slot: SwapSlot<'_>,
        was: Word,
        asker: Asker,
    ) -> Result<(), SwapError> {
        match was.state() {
            WordState::Window => self.move_back(page, slot, was),
            WordState::Hole => self.fill_hole(page, slot, asker),
            _ => self.load(page, asker),
        }
    }

    fn move_back(&self, page: u64, slot: SwapSlot<'_>, was: Word) -> Result<(), SwapError> {
        let len = self.page();
        // SAFETY: this call owns the page, which is in the window.
        let (_, refused) =
            unsafe { self.pager.shift(self.at_home(page), self.at_shadow(page), len) };
        let refused = match refused {
            Some(UNMOVABLE | SHARED) => self.copy_back(page).err(),
            moved_or_not => moved_or_not,
        };
        let state = if refused.is_some() { WordState::Window } else { WordState::Resident };
        must(slot.word(), |word| word.put(state, was.has_copy()));
        if let Some(errno) = refused {
            return Err(refusal("UFFDIO_MOVE", errno));
        }
        self.window.fetch_sub(1, Ordering::Relaxed);
        self.counts.add(Counter::Retouched, 1);
        Ok(())
    }

    fn copy_back(&self, page: u64) -> Result<(), i32> {
        let (offset, len) = (self.offset_of(page), Bytes::new(self.page() as u64));
        // SAFETY: this call owns the page at its shadow address; touches wait.
        unsafe {
            let bytes = self.bytes(&self.shadow, page);
            self.pager.fill(self.at_home(page), bytes, self.page())?;
            if self.shadow.give_back(offset, len).is_err() {
                self.counts.add(Counter::Stuck, 1);
            }
        }
        Ok(())
    }

    fn fill_hole(&self, page: u64, slot: SwapSlot<'_>, asker: Asker) -> Result<(), SwapError> {
        let filled = self
            .make_room(page..page + 1, asker)
            .and_then(|()| self.copy_in(page, &ZEROS[..self.page()]));
        let state = if filled.is_ok() { WordState::Resident } else { WordState::Hole };
        must(slot.word(), |word| word.put(state, false));
        filled.inspect(|()| self.counts.add(Counter::Created, 1))
    }

    /// Fills holes that the caller owns and has charged. Uncharges them after an error.
    fn copy_in(&self, page: u64, bytes: &[u8]) -> Result<(), SwapError> {
        // SAFETY: this call owns the holes.
        let filled = unsafe { self.pager.fill(self.at_home(page), bytes, self.page()) };
        filled.map_err(|errno| {
            let len = Bytes::new(bytes.len() as u64);
            // SAFETY: as above; touches of the new pages wait.
            let _ = unsafe { self.home.give_back(self.offset_of(page), len) };
            self.release((bytes.len() / self.page()) as u64);
            refusal("UFFDIO_COPY", errno)
        })
    }

    fn load(&self, page: u64, asker: Asker) -> Result<(), SwapError> {
        let (begun, next) = (Instant::now(), &self.next[lane()]);
        let follows = next.load(Ordering::Relaxed) == page;
        let mut count = 1 + if follows { self.take_ahead(page) } else { 0 };
        let first = if count > 1 { Asker::Ahead } else { asker };
        let mut room = self.make_room(page..page + count, first);
        if room.is_err() && count > 1 {
            self.let_go(page + 1..page + count);
            (count, room) = (1, self.make_room(page..page + 1, asker));
        }
        let loaded = room.and_then(|()| self.read_in(page, count));
        let end = page + loaded.as_ref().map_or(1, |loaded| *loaded);
        next.store(end, Ordering::Relaxed);
        self.let_go(end..page + count);
        match loaded {
            Ok(loaded) => {
                (page..end).for_each(|page| self.arrive(page));
                self.counts.add(Counter::Loaded, loaded);
                self.counts.add(Counter::ReadAhead, loaded - 1);
                self.loads.record(begun.elapsed().as_nanos() as u64);
                Ok(())
            }
            Err(error) => {
                let is_damaged = matches!(error, SwapError::LostPage { .. });
                let state = if is_damaged { WordState::Failed } else { WordState::Stored };
                must(self.slot_of(page).word(), |word| word.put(state, true));
                Err(error)
            }
        }
    }

    fn take_ahead(&self, page: u64) -> u64 {
        let most = AHEAD.min(self.budget() / AHEAD_SHARE).min(self.pages() - page);
        let stored = |word: Word| match word.state() {
            WordState::Stored => word.fetching(),
            _ => Err(Refusal::Unfit),
        };
        let take = |page: &u64| change(self.slot_of(*page).word(), stored).is_ok();
        (page + 1..page + most).take_while(take).count() as u64
    }

    fn let_go(&self, pages: Range<u64>) {
        for page in pages {
            must(self.slot_of(page).word(), |word| word.put(WordState::Stored, true));
        }
    }

    /// Returns the number loaded, and uncharges the rest.
    fn read_in(&self, page: u64, count: u64) -> Result<u64, SwapError> {
        with_buffer(count as usize * self.page(), |buffer| {
            let (mut loaded, mut refused) = (0, None);
            for bytes in buffer.chunks_exact_mut(self.page()) {
                let page = page + loaded;
                let copy = self.slot_of(page).copy();
                if let Err(why) = self.copies.load(self.key_of(page), copy, bytes) {
                    refused = Some(why);
                    break;
                }
                loaded += 1;
            }
            self.release(count - loaded);
            match refused {
                Some(why) if loaded == 0 => Err(self.unreadable(page, why)),
                _ => self.copy_in(page, &buffer[..loaded as usize * self.page()]).map(|()| loaded),
            }
        })
    }

    fn arrive(&self, page: u64) {
        let slot = self.slot_of(page);
        let copy = slot.copy();
        self.counts.add(Counter::ReadBack, u64::from(copy.is_in_file()));
        // Drops a copy in the file, because reading it to compare an evicted page costs more than
        // compression.
        let keeps = self.keeps_copies && !copy.is_in_file();
        if !keeps {
            self.copies.drop_copy(copy);
        }
        must(slot.word(), |word| word.put(WordState::Resident, keeps));
    }

    fn unreadable(&self, page: u64, why: Unreadable) -> SwapError {
        match why {
            Unreadable::Damaged(what) => {
                self.counts.add(Counter::Damaged, 1);
                self.damaged(page, what)
            }
            Unreadable::Refused(error) => error,
        }
    }
}
