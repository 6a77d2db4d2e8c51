//! [`Membership`]: this process's place among those that use the file.
//!
//! A *holder* is a number with a byte of the file, which its process keeps locked by a mapping, and
//! a table of pins. Joining takes the lowest number that nobody has. Whoever joins while nobody is
//! joined finds the volatility of before ended, and says so in every word. A join lock keeps that
//! apart from other joins: it is held for a few system calls, and the wait for it ends.
//!
//! A forked child has its parent's number at first, and joins anew at its first call, which a load
//! tells. Threads that do so at once each join, and all but one leave again: nobody waits for a
//! thread that a fork may have left behind. What the parent had is leaked in the child, some words.
//!
//! # Safety
//! The pointer is null or to a box that is freed by the owner's drop alone.
#![allow(unsafe_code)]

use std::ptr;
use std::time::Duration;

use super::layout::{Field, Layout, NO_QUOTA};
use super::ledger::Ledger;
use super::purge;
use super::word::change;
use crate::sync::{Backoff, MappedPtr, MappedWord, Ordering};
use crate::sys::ofd_lock::{Description, Tied};
use crate::sys::uffd::Uffd;
use crate::sys::uptime;
use crate::volatile::Error;

/// How long to wait for another process that joins or purges.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

/// How often a thread that could not join looks for one that could, a tenth of a second in all.
const TURNS: u32 = 120;

/// A number among the holders, while this lives.
#[derive(Debug)]
pub(super) struct Joined {
    pub(super) holder: u32,
    /// The process that joined.
    pub(super) process: u32,
    /// When it joined, in microseconds, as the file says of the number.
    pub(super) since: u64,
    /// Granules that are pinned, where there is a quota.
    pinned: MappedWord,
    /// Says that touches of lost pages are SIGBUS.
    _armed: Option<Uffd>,
    tied: Tied,
}

impl Joined {
    /// Whether it is the parent's of this forked process.
    #[inline]
    pub(super) fn is_inherited(&self) -> bool {
        self.tied.is_inherited()
    }

    /// With what tells of touches, until it goes.
    pub(super) fn with(self, uffd: Uffd) -> Self {
        Self { _armed: Some(uffd), ..self }
    }

    /// Counts a granule that is pinned, if the quota allows another.
    #[inline]
    pub(super) fn charge(&self, quota: u64) -> Result<(), Error> {
        if quota == NO_QUOTA {
            return Ok(());
        }
        let more = |pinned: u64| (pinned < quota).then(|| pinned + 1);
        let charged = self.pinned.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        charged.map(drop).map_err(|pinned| Error::Quota { pinned, quota })
    }

    /// A granule is pinned no more.
    #[inline]
    pub(super) fn discharge(&self, quota: u64) {
        if quota != NO_QUOTA {
            // Not below: somebody may have made counts of pins zero and more again.
            let fewer = |pinned: u64| pinned.checked_sub(1);
            let _ = self.pinned.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer);
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Membership {
    current: MappedPtr<Joined>,
}

impl Membership {
    pub(super) fn new(joined: Joined) -> Self {
        Self { current: MappedPtr::new(Box::into_raw(Box::new(joined))) }
    }

    /// The place of the calling process; none in a forked child that has not joined.
    #[inline]
    pub(super) fn get(&self) -> Option<&Joined> {
        // SAFETY: never null but in the drop, and freed there alone.
        let joined = unsafe { &*self.current.load(Ordering::Acquire) };
        (!joined.is_inherited()).then_some(joined)
    }

    /// Joins by `join`, in a forked child. Where another thread was first, its place is taken; that
    /// may also be why `join` is refused.
    #[cold]
    pub(super) fn join_anew(
        &self,
        join: impl FnOnce() -> Result<Joined, Error>,
    ) -> Result<&Joined, Error> {
        let was = self.current.load(Ordering::Acquire);
        let joined = match join() {
            Ok(joined) => joined,
            Err(error) => return self.wait_for_another().ok_or(error),
        };
        let own = Box::into_raw(Box::new(joined));
        let (set, seen) = (Ordering::AcqRel, Ordering::Acquire);
        match self.current.compare_exchange(was, own, set, seen) {
            // SAFETY: as in `get`.
            Ok(_) => Ok(unsafe { &*own }),
            // SAFETY: `own` was seen by nobody else; the other is as in `get`.
            Err(first) => unsafe {
                drop(Box::from_raw(own));
                Ok(&*first)
            },
        }
    }

    /// The place that another thread takes about now.
    fn wait_for_another(&self) -> Option<&Joined> {
        let mut backoff = Backoff::default();
        (0..TURNS).find_map(|_| {
            backoff.wait();
            self.get()
        })
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let last = self.current.swap(ptr::null_mut(), Ordering::AcqRel);
        // SAFETY: made by `new` or `join_anew`, and no reference outlives `self`. In a child it is
        // the parent's copy, whose lock is left alone.
        drop(unsafe { Box::from_raw(last) });
    }
}

/// Takes the lowest number that is free.
pub(super) fn join(ledger: &Ledger) -> Result<Joined, Error> {
    // What was there when this process was forked may be gone.
    ledger.forget_backed();
    let lock = Description::reopen(ledger.file().as_file())?;
    if !lock.lock(Layout::JOIN, PATIENCE)? {
        return Err(Error::Busy { what: "a join", waited: PATIENCE });
    }
    let joined = join_locked(ledger);
    lock.unlock(Layout::JOIN);
    joined
}

fn join_locked(ledger: &Ledger) -> Result<Joined, Error> {
    ledger.touch_header()?;
    if !ledger.has_holder()? {
        end_volatility(ledger)?;
    }
    for holder in 0..ledger.holders() {
        if ledger.is_alive(holder)? {
            continue;
        }
        let tied = Tied::try_take(ledger.file().as_file(), Layout::holder_lock(holder))?;
        let Some(tied) = tied else { continue };
        // The counts of whoever had it before.
        ledger.clear_table(holder)?;
        let process = std::process::id();
        let since = uptime::micros();
        ledger.field(Field::Joined(holder)).store(since, Ordering::SeqCst);
        let number = u64::from(process).max(1);
        ledger.field(Field::Process(holder)).store(number, Ordering::SeqCst);
        let pinned = MappedWord::new(0);
        return Ok(Joined { holder, process, since, pinned, _armed: None, tied });
    }
    Err(Error::NoHolderLeft { holders: ledger.holders() })
}

/// Nobody used the file: what was marked is so no more, and all pins are gone.
fn end_volatility(ledger: &Ledger) -> Result<(), Error> {
    let lock = purge::lock(ledger, PATIENCE)?;
    lock.finish_left(ledger)?;
    for index in ledger.noted()?.iter().flat_map(|run| run.start()..run.end()) {
        let _ = change(ledger.word(index), |word| word.is_marked().then(|| word.ended()));
    }
    (0..ledger.holders())
        .for_each(|holder| ledger.field(Field::Process(holder)).store(0, Ordering::SeqCst));
    Ok(ledger.drop_tables()?)
}
