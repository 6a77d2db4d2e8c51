//! [`Guard`] resolves touches of pages that the file lacks, in the SIGBUS handler.
//!
//! Another process may cut an unsealed file, or its file system may be full. The handler then maps
//! zeros over the missing pages, and the ledger (the file's state) stays *broken*: calls fail.
//!
//! With `SharedOptions::sigbus`, a touch of missing data raises SIGBUS. The handler gives a page to
//! a granule that is unmarked or pinned by this process; it passes other touches to the program.
//! The guard also counts this process's pins outside the file. If the guard counts a pin of a
//! marked granule and the file none, another process changed the file, and the ledger breaks.
//!
//! # Safety
//! `Watched` outlives the watches, whose drop waits for running handlers. Only atomics and racing
//! copies access the pages that zeros replace.
#![allow(unsafe_code)]

use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr;
use std::sync::Arc;

use super::holder::Joined;
use super::ledger::Ledger;
use super::protocol::pins;
use super::word::Word;
use crate::Error;
use glebe_os::internal::mapping::Mapping;
use glebe_os::internal::sync::{MappedWord, Ordering};
use glebe_os::internal::sys::memory::memory_file::len_of;
use glebe_os::internal::sys::memory::uffd::Uffd;
use glebe_os::internal::sys::processes::sigbus::{fill, Decision, Handler, Watch};
use glebe_os::units::Bytes;

const NONE: u64 = u64::MAX;

#[derive(Debug)]
struct Watched {
    ledger: Arc<Ledger>,
    descriptor: RawFd,
    data: Option<Range<usize>>,
    uffd: MappedWord,
    holder: MappedWord,
    /// Pins of each granule (lower 32 bits), void unless the upper bits are this process's ID.
    pinned: Box<[MappedWord]>,
}

#[derive(Debug)]
pub(super) struct Guard {
    _watches: Vec<Watch>,
    watched: Box<Watched>,
    sigbus: bool,
}

impl Guard {
    pub(super) fn new(
        ledger: &Arc<Ledger>,
        data: Option<&Mapping>,
        sigbus: bool,
    ) -> Result<Self, Error> {
        let data = data.map(|data| data.addr()..data.addr() + data.len().as_usize());
        let counted = if sigbus && data.is_some() { ledger.layout().granules } else { 0 };
        let watched = Box::new(Watched {
            ledger: Arc::clone(ledger),
            descriptor: ledger.file().as_file().as_raw_fd(),
            data: data.clone(),
            uffd: MappedWord::new(NONE),
            holder: MappedWord::new(NONE),
            pinned: (0..counted).map(|_| MappedWord::new(0)).collect(),
        });
        let mut watches = Vec::new();
        if sigbus || !ledger.file().is_sealed() {
            let handler = Handler::install()?;
            if !handler.is_first()? {
                return Err(Error::HandlerCovered);
            }
            let at = ptr::from_ref(&*watched).cast();
            for range in data.into_iter().chain([ledger.place()]) {
                // SAFETY: `watched` has a fixed address and is freed after the watches. `on_touch`
                // only makes system calls and changes atomics.
                watches.push(unsafe { handler.watch(range, on_touch, at) }?);
            }
        }
        Ok(Self { _watches: watches, watched, sigbus })
    }

    /// Makes touches of missing data raise SIGBUS, if `sigbus` is set. Fails with EBUSY if another
    /// thread of a forked child armed the data first.
    pub(super) fn armed(&self, joined: Joined) -> Result<Joined, Error> {
        let Some(data) = self.watched.data.as_ref().filter(|_| self.sigbus) else {
            return Ok(joined);
        };
        let uffd = Uffd::open_sigbus()?;
        // SAFETY: the range is the data's mapping. The crate touches only pinned or unmarked
        // granules, to which the handler gives pages.
        unsafe { uffd.arm(data.start, Bytes::new(data.len() as u64))? };
        self.watched.holder.store(joined.holder.into(), Ordering::Release);
        self.watched.uffd.store(u64::from(uffd.descriptor().unsigned_abs()), Ordering::Release);
        Ok(joined.with(uffd))
    }
}

impl Guard {
    #[inline]
    pub(super) fn pinned(&self, process: u32, index: u64) {
        if let Some(own) = self.watched.pinned.get(index as usize) {
            let more =
                |now| Some(own_pins(now, process).map_or(own_count(process, 1), |_| now + 1));
            let _ = own.fetch_update(Ordering::SeqCst, Ordering::Relaxed, more);
        }
    }

    #[inline]
    pub(super) fn unpinned(&self, process: u32, index: u64) {
        if let Some(own) = self.watched.pinned.get(index as usize) {
            let fewer = |now| own_pins(now, process).map(|_| now - 1);
            let _ = own.fetch_update(Ordering::SeqCst, Ordering::Relaxed, fewer);
        }
    }
}

fn own_count(process: u32, pins: u64) -> u64 {
    u64::from(process) << 32 | pins
}

fn own_pins(word: u64, process: u32) -> Option<u64> {
    let pins = word & u64::from(u32::MAX);
    (word >> 32 == process.into() && pins > 0).then_some(pins)
}

unsafe extern "C" fn on_touch(addr: usize, data: *const ()) -> Decision {
    // SAFETY: `data` is the `Watched` of a live watch, from `Guard::new`.
    let watched = unsafe { &*data.cast::<Watched>() };
    let (state, layout) = (watched.ledger.place(), watched.ledger.layout());
    let of_data = watched.data.clone().filter(|data| data.contains(&addr));
    let (place, begin) = match of_data.clone() {
        Some(data) => (data, layout.data_at),
        None => (state, 0),
    };
    let page = layout.page as usize;
    let at = place.start + (addr - place.start) / page * page;
    let there = len_of(watched.descriptor).map_or(0, |len| len.next_multiple_of(layout.page));
    let cut = place.start + there.saturating_sub(begin).min(place.len() as u64) as usize;
    if at >= cut {
        return watched.give_zeros(cut..place.end);
    }
    match watched.uffd.load(Ordering::Acquire) {
        uffd if uffd != NONE && of_data.is_some() => {
            watched.settle(uffd as RawFd, (at - place.start) as u64, at, page)
        }
        _ if watched.ledger.file().is_sealed() => Decision::Pass,
        _ => watched.give_zeros(at..at + page),
    }
}

impl Watched {
    fn give_zeros(&self, place: Range<usize>) -> Decision {
        self.ledger.break_down();
        // SAFETY: the pages are the ledger's or the data's, to which only atomics refer.
        match unsafe { fill::replace(place.start, place.len()) } {
            Ok(()) => Decision::Resume,
            Err(_) => Decision::Pass,
        }
    }

    fn settle(&self, uffd: RawFd, offset: u64, at: usize, page: usize) -> Decision {
        let index = offset / self.ledger.layout().granule;
        let word = Word(self.ledger.word(index).load(Ordering::SeqCst));
        if word.is_marked() && !self.has_pinned(index) {
            if !self.has_pinned_by_own_count(index) {
                return Decision::Pass;
            }
            self.ledger.break_down();
        }
        // SAFETY: the ioctl writes only a missing page, to which no reference can exist.
        match unsafe { fill::zero(uffd, at, page, page) } {
            Ok(()) => Decision::Resume,
            Err(_) => Decision::Pass,
        }
    }

    fn has_pinned(&self, index: u64) -> bool {
        let holder = u32::try_from(self.holder.load(Ordering::Acquire));
        holder.is_ok_and(|holder| pins(self.ledger.counts(holder, index), index) > 0)
    }

    fn has_pinned_by_own_count(&self, index: u64) -> bool {
        let own = self.pinned.get(index as usize).map(|own| own.load(Ordering::SeqCst));
        own.is_some_and(|own| own_pins(own, std::process::id()).is_some())
    }
}
