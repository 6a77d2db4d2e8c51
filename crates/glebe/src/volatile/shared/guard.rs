//! [`Guard`]: touches of pages that the file has lost, settled in the SIGBUS handler.
//!
//! Two reasons for one. A file that is not sealed can be cut, or its file system be full: a touch
//! then finds zeros of the process's own in the place of the page, or of all that was cut off, and
//! the ledger says for ever that it is *broken*. So no call dies of what others do to the file, and
//! later ones are [`Error::Truncated`](crate::volatile::Error::Truncated). And where it was asked
//! for, touches of the data that find no page are SIGBUS: those of granules that are not
//! marked, or that this process has pinned, get a page; the others are the program's to see. The
//! pins are counted here as well, apart from the file, whose counts anybody may change: a granule
//! that is pinned by these counts alone was tampered with, and the file is broken from then on.
//!
//! ```text
//! own count of a granule   process, 32 bits | pins, 32 bits: of another process they are none
//! ```
//!
//! A file that is sealed against cuts and whose touches are not asked for has no handler. Cost: as
//! `sys::sigbus`. In a forked child touches are seen from its first call on.
//!
//! # Safety
//! The handler works on `Watched`, which its watches do not outlive: they are dropped first, which
//! waits for handlers. What is mapped over was a mapping of the ledger or of the data, to which
//! there are no references but of atomics.
#![allow(unsafe_code)]

use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr;
use std::sync::Arc;

use super::holder::Joined;
use super::ledger::Ledger;
use super::protocol::pins;
use super::word::Word;
use crate::mapping::Mapping;
use crate::sync::{MappedWord, Ordering};
use crate::sys::memory_file::len_of;
use crate::sys::sigbus::{fill, Handler, Outcome, Watch};
use crate::sys::uffd::Uffd;
use crate::units::Bytes;
use crate::volatile::Error;

/// No descriptor, and no holder.
const NONE: u64 = u64::MAX;

/// What the handler needs to know.
#[derive(Debug)]
struct Watched {
    ledger: Arc<Ledger>,
    descriptor: RawFd,
    /// Addresses of the data, where it is mapped.
    data: Option<Range<usize>>,
    /// The userfaultfd of this process, and its number among the holders.
    uffd: MappedWord,
    holder: MappedWord,
    /// The own counts, a word a granule, where touches are told.
    pinned: Box<[MappedWord]>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Guard {
    /// Dropped before what they use.
    _watches: Vec<Watch>,
    watched: Box<Watched>,
    sigbus: bool,
}

impl Guard {
    /// Guards a ledger, and the data where it is mapped.
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
                // SAFETY: `watched` stays where it is and is freed after the watches. `on_touch`
                // makes system calls and changes atomics.
                watches.push(unsafe { handler.watch(range, on_touch, at) }?);
            }
        }
        Ok(Self { _watches: watches, watched, sigbus })
    }

    /// Has the kernel tell of touches in this process, where the program asked for it.
    ///
    /// Of threads of a forked child that join at once, only one gets past the arming: the kernel
    /// refuses a second descriptor for the same memory (EBUSY). So the handler never has the
    /// descriptor of a thread that was too late.
    pub(super) fn armed(&self, joined: Joined) -> Result<Joined, Error> {
        let Some(data) = self.watched.data.as_ref().filter(|_| self.sigbus) else {
            return Ok(joined);
        };
        let uffd = Uffd::open_sigbus()?;
        // SAFETY: the mapping is the data's; whoever touches a missing page asked for the signal,
        // or is a call of the crate's, which touches pinned granules alone.
        unsafe { uffd.arm(data.start, Bytes::new(data.len() as u64))? };
        self.watched.holder.store(joined.holder.into(), Ordering::Release);
        self.watched.uffd.store(u64::from(uffd.descriptor().unsigned_abs()), Ordering::Release);
        Ok(joined.with(uffd))
    }
}

impl Guard {
    /// Counts a pin of a granule by `process`, the calling one. Before its first touch.
    #[inline]
    pub(super) fn pinned(&self, process: u32, index: u64) {
        if let Some(own) = self.watched.pinned.get(index as usize) {
            let more =
                |now| Some(own_pins(now, process).map_or(own_count(process, 1), |_| now + 1));
            let _ = own.fetch_update(Ordering::SeqCst, Ordering::Relaxed, more);
        }
    }

    /// The pin has ended.
    #[inline]
    pub(super) fn unpinned(&self, process: u32, index: u64) {
        if let Some(own) = self.watched.pinned.get(index as usize) {
            let fewer = |now| own_pins(now, process).map(|_| now - 1);
            let _ = own.fetch_update(Ordering::SeqCst, Ordering::Relaxed, fewer);
        }
    }
}

/// The word of a granule that `process` has pinned so often.
fn own_count(process: u32, pins: u64) -> u64 {
    u64::from(process) << 32 | pins
}

/// The pins of `process`, if there are any.
fn own_pins(word: u64, process: u32) -> Option<u64> {
    let pins = word & u64::from(u32::MAX);
    (word >> 32 == process.into() && pins > 0).then_some(pins)
}

/// In the signal handler.
unsafe extern "C" fn on_touch(addr: usize, data: *const ()) -> Outcome {
    // SAFETY: the data of the watches in `Guard::new`, which live.
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
    // The first address of this mapping that the file has nothing for.
    let cut = place.start + there.saturating_sub(begin).min(place.len() as u64) as usize;
    if at >= cut {
        return watched.give_zeros(cut..place.end);
    }
    match watched.uffd.load(Ordering::Acquire) {
        uffd if uffd != NONE && of_data.is_some() => {
            watched.settle(uffd as RawFd, (at - place.start) as u64, at, page)
        }
        _ if watched.ledger.file().is_sealed() => Outcome::Pass,
        _ => watched.give_zeros(at..at + page),
    }
}

impl Watched {
    /// The file cannot give these pages: zeros, and no call goes well from now on.
    fn give_zeros(&self, place: Range<usize>) -> Outcome {
        self.ledger.break_down();
        // SAFETY: pages of a mapping of the ledger or of the data, as the file's head says.
        match unsafe { fill::replace(place.start, place.len()) } {
            Ok(()) => Outcome::Resume,
            Err(_) => Outcome::Pass,
        }
    }

    /// A page of the data is missing that the file could have.
    fn settle(&self, uffd: RawFd, offset: u64, at: usize, page: usize) -> Outcome {
        let index = offset / self.ledger.layout().granule;
        let word = Word(self.ledger.word(index).load(Ordering::SeqCst));
        if word.is_marked() && !self.has_pinned(index) {
            if !self.has_pinned_by_own_count(index) {
                return Outcome::Pass;
            }
            self.ledger.break_down();
        }
        // SAFETY: only a missing page is written, of which nothing can hold a reference.
        match unsafe { fill::zero(uffd, at, page, page) } {
            Ok(()) => Outcome::Resume,
            Err(_) => Outcome::Pass,
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
