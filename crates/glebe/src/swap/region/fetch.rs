//! How a page comes home: at a touch, in the signal handler, or for a call.
//!
//! The thread that touched does it all: it takes the page to itself by its word, makes as much room
//! as the page takes, decodes the copy into a buffer of its own, and has the kernel copy that into
//! the hole, whole. A page in the window is moved back. Touches that follow one another are read
//! ahead: [`AHEAD`] pages decoded one behind the other, and copied in one call.
//!
//! The signal is raised by an instruction of the thread's own that touches the region, so it
//! interrupts no allocator and none of this crate's locks: what is called here may take the pool's
//! locks, and allocate, as long as no memory of a region is touched under such a lock.
//! Cost of a touch of a stored page: signal, checksum, codec and one call; 4 to 6 µs.
//!
//! # Safety
//! What is filled, moved or given up are pages of the region that this call has to itself.
#![allow(unsafe_code)]

use std::io;
use std::ops::Range;
use std::time::Instant;

use super::evict::Asker;
use super::inner::Inner;
use crate::error::OsError;
use crate::stats::lane;
use crate::swap::copies::Unreadable;
use crate::swap::error::Error;
use crate::swap::slots::Slot;
use crate::swap::stats::Counter;
use crate::swap::word::{change, must, Refusal, State, Word};
use crate::sync::{Backoff, Ordering};
use crate::sys::errno::EAGAIN;
use crate::sys::sigbus::{Handler, Outcome, Reason, Watch};
use crate::sys::uffd::UNMOVABLE;
use crate::units::Bytes;
use crate::zpool::with_buffer;

/// Pages that are loaded at once where touches follow one another.
const AHEAD: u64 = 16;
/// The part of the budget that is loaded at once at most.
const AHEAD_SHARE: u64 = 16;
/// As long as the longest page of any machine.
pub(super) static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

pub(super) fn refusal(call: &'static str, errno: i32) -> Error {
    OsError::new(call, "a page of a region", io::Error::from_raw_os_error(errno)).into()
}

/// That the pages which might leave are locked or protected.
pub(super) fn unmovable() -> Error {
    let subject = "pages of a region that the program has locked or made read-only";
    OsError::new("UFFDIO_MOVE", subject, io::Error::from_raw_os_error(UNMOVABLE)).into()
}

/// Has touches of a region served while the watch lives.
pub(super) fn watch(
    handler: Handler,
    range: Range<usize>,
    inner: &Inner,
) -> Result<Watch, OsError> {
    // SAFETY: the region drops the watch before what it has in a box; what the handler does is said
    // in the file's head.
    unsafe { handler.watch(range, on_touch, std::ptr::from_ref(inner).cast()) }
}

/// Serves a touch of a region, in the signal handler. `data` is its [`Inner`].
unsafe extern "C" fn on_touch(addr: usize, data: *const ()) -> Outcome {
    // SAFETY: the watch's data, which lives as long as the watch.
    let inner = unsafe { &*data.cast::<Inner>() };
    if inner.alive().is_err() {
        return Outcome::Pass;
    }
    let page = (addr - inner.home.addr()) / inner.page();
    // SAFETY: the handler blocks what is sent, and what follows touches no page that is not there.
    match unsafe { inner.stacks.run(|| inner.bring(page as u64, Asker::Touch)) } {
        Ok(()) => Outcome::Resume,
        Err(Error::LostPage { .. }) => Outcome::Fail(Reason::Damaged),
        Err(Error::Os(error)) if error.kind() == io::ErrorKind::OutOfMemory => {
            Outcome::Fail(Reason::NoMemory)
        }
        Err(_) => Outcome::Fail(Reason::Device),
    }
}

impl Inner {
    /// Makes what a thread's first touch would make in the handler.
    pub(super) fn warm_up(&self) {
        with_buffer(AHEAD as usize * self.page(), |page| {
            self.copies.warm_up(&page[..self.page()]);
        });
    }

    /// Brings a page home, unless it is there.
    pub(super) fn bring(&self, page: u64, asker: Asker) -> Result<(), Error> {
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

    fn damaged(&self, page: u64, what: &'static str) -> Error {
        Error::LostPage { offset: self.offset_of(page), what }
    }

    /// A touch of a page that is home by now. What is missing nevertheless was discarded by the
    /// program, past this library, and is zeros.
    fn confirm(&self, page: u64, slot: Slot<'_>) -> Result<(), Error> {
        if change(slot.word(), Word::moving).is_err() {
            // Somebody is at it: the touch says again what is missing.
            Backoff::default().wait();
            return Ok(());
        }
        let lifted = match self.unprotect(page) {
            // Another call changes the addresses meanwhile: the touch comes again.
            Err(errno) if errno != EAGAIN => Err(refusal("UFFDIO_WRITEPROTECT", errno)),
            _ => Ok(()),
        };
        let filled = lifted.and_then(|()| {
            // SAFETY: home, and this call's; what is there stays as it is.
            unsafe { self.pager.fill(self.at_home(page), &ZEROS[..self.page()], self.page()) }
                .map_err(|errno| refusal("UFFDIO_COPY", errno))
        });
        must(slot.word(), |word| word.put(State::Resident, word.has_copy()));
        filled
    }

    /// Makes sure that a pinned page can be written, where a protection could not be ended once.
    pub(super) fn lift(&self, page: u64) -> Result<(), Error> {
        if self.protected.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        self.unprotect(page).map_err(|errno| refusal("UFFDIO_WRITEPROTECT", errno))
    }

    /// Ends the protection of a page that is this call's or pinned, if pages are protected at all.
    pub(super) fn unprotect(&self, page: u64) -> Result<(), i32> {
        if self.pager.moves() {
            return Ok(());
        }
        // SAFETY: home, and compressed by nobody meanwhile.
        unsafe { self.pager.protect(self.at_home(page), self.page(), false) }
    }

    /// Brings a page home that this call has taken, as it was.
    fn fetch(&self, page: u64, slot: Slot<'_>, was: Word, asker: Asker) -> Result<(), Error> {
        match was.state() {
            State::Window => self.move_back(page, slot, was),
            State::Hole => self.fill_hole(page, slot, asker),
            _ => self.load(page, asker),
        }
    }

    fn move_back(&self, page: u64, slot: Slot<'_>, was: Word) -> Result<(), Error> {
        let len = self.page();
        // SAFETY: in the window, and this call's.
        let (_, refused) =
            unsafe { self.pager.shift(self.at_home(page), self.at_shadow(page), len) };
        let refused = match refused {
            Some(UNMOVABLE) => self.copy_back(page).err(),
            moved_or_not => moved_or_not,
        };
        let state = if refused.is_some() { State::Window } else { State::Resident };
        must(slot.word(), |word| word.put(state, was.has_copy()));
        if let Some(errno) = refused {
            return Err(refusal("UFFDIO_MOVE", errno));
        }
        self.window.fetch_sub(1, Ordering::Relaxed);
        self.counts.add(Counter::Retouched, 1);
        Ok(())
    }

    /// Copies a page back from the window whose place at home the program has locked or protected
    /// meanwhile.
    fn copy_back(&self, page: u64) -> Result<(), i32> {
        let (offset, len) = (self.offset_of(page), Bytes::new(self.page() as u64));
        // SAFETY: in the window, and this call's; a hole at home, where nobody has seen it.
        unsafe {
            let bytes = self.bytes(&self.shadow, page);
            self.pager.fill(self.at_home(page), bytes, self.page())?;
            if self.shadow.give_back(offset, len).is_err() {
                self.counts.add(Counter::Stuck, 1);
            }
        }
        Ok(())
    }

    fn fill_hole(&self, page: u64, slot: Slot<'_>, asker: Asker) -> Result<(), Error> {
        let filled = self
            .make_room(page..page + 1, asker)
            .and_then(|()| self.copy_in(page, &ZEROS[..self.page()]));
        let state = if filled.is_ok() { State::Resident } else { State::Hole };
        must(slot.word(), |word| word.put(state, false));
        filled.inspect(|()| self.counts.add(Counter::Created, 1))
    }

    /// Has the kernel copy pages into the holes, which are charged and this call's; else they are
    /// holes, and not charged.
    fn copy_in(&self, page: u64, bytes: &[u8]) -> Result<(), Error> {
        // SAFETY: holes, and this call's.
        let filled = unsafe { self.pager.fill(self.at_home(page), bytes, self.page()) };
        filled.map_err(|errno| {
            let len = Bytes::new(bytes.len() as u64);
            // SAFETY: as above; nobody has seen what came of them.
            let _ = unsafe { self.home.give_back(self.offset_of(page), len) };
            self.release((bytes.len() / self.page()) as u64);
            refusal("UFFDIO_COPY", errno)
        })
    }

    /// Loads a stored page that this call has taken, and some behind it if it follows the last.
    fn load(&self, page: u64, asker: Asker) -> Result<(), Error> {
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
                let is_damaged = matches!(error, Error::LostPage { .. });
                let state = if is_damaged { State::Failed } else { State::Stored };
                must(self.slot_of(page).word(), |word| word.put(state, true));
                Err(error)
            }
        }
    }

    /// Takes stored pages behind one; how many.
    fn take_ahead(&self, page: u64) -> u64 {
        let most = AHEAD.min(self.budget() / AHEAD_SHARE).min(self.pages() - page);
        let stored = |word: Word| match word.state() {
            State::Stored => word.fetching(),
            _ => Err(Refusal::Unfit),
        };
        let take = |page: &u64| change(self.slot_of(*page).word(), stored).is_ok();
        (page + 1..page + most).take_while(take).count() as u64
    }

    /// Lets others have pages that were taken and stay as they are.
    fn let_go(&self, pages: Range<u64>) {
        for page in pages {
            must(self.slot_of(page).word(), |word| word.put(State::Stored, true));
        }
    }

    /// Decodes stored pages, which are this call's and charged, up to one that cannot be read, and
    /// copies them in: how many. What does not come is not charged any more.
    fn read_in(&self, page: u64, count: u64) -> Result<u64, Error> {
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

    /// Ends the load of a page that is home now.
    fn arrive(&self, page: u64) {
        let slot = self.slot_of(page);
        let copy = slot.copy();
        self.counts.add(Counter::ReadBack, u64::from(copy.is_in_file()));
        // To compare with a copy in the file would take longer than to compress again.
        let keeps = self.keeps_copies && !copy.is_in_file();
        if !keeps {
            self.copies.drop_copy(copy);
        }
        must(slot.word(), |word| word.put(State::Resident, keeps));
    }

    fn unreadable(&self, page: u64, why: Unreadable) -> Error {
        match why {
            Unreadable::Damaged(what) => {
                self.counts.add(Counter::Damaged, 1);
                self.damaged(page, what)
            }
            Unreadable::Refused(error) => error,
        }
    }
}
