//! [`Membership`] is this process's holder number in the file.
//!
//! A *holder* is a number with a table of pins and a lock byte. Its process locks the byte by a
//! mapping, so the lock ends with the process. A process joins by taking the lowest free number. A
//! process that finds no other holder first unmarks all granules. The join lock excludes other
//! joins.
//!
//! A forked child joins anew in its first call. If several threads join at once, one join stays.
//! The child leaks the parent's `Joined`.
//!
//! # Safety
//! `current` points to a box that only the drop of `Membership` frees, and is null only then.
#![allow(unsafe_code)]

use std::ptr;
use std::time::Duration;

use super::layout::{Field, Layout, NO_QUOTA};
use super::ledger::Ledger;
use super::purge;
use super::word::change;
use crate::Error;
use glebe_os::internal::sync::{Backoff, MappedPtr, MappedWord, Ordering};
use glebe_os::internal::sys::files::ofd_lock::{Description, Tied};
use glebe_os::internal::sys::machine::uptime;
use glebe_os::internal::sys::memory::uffd::Uffd;

pub(super) const PATIENCE: Duration = Duration::from_secs(1);

/// Waits for another thread's join: about a tenth of a second.
const TURNS: u32 = 120;

#[derive(Debug)]
pub(super) struct Joined {
    pub(super) holder: u32,
    pub(super) process: u32,
    /// Join time in microseconds.
    pub(super) since: u64,
    /// Granules pinned, counted only with a quota.
    pinned: MappedWord,
    _armed: Option<Uffd>,
    tied: Tied,
}

impl Joined {
    #[inline]
    pub(super) fn is_inherited(&self) -> bool {
        self.tied.is_inherited()
    }

    pub(super) fn with(self, uffd: Uffd) -> Self {
        Self { _armed: Some(uffd), ..self }
    }

    #[inline]
    pub(super) fn charge(&self, quota: u64) -> Result<(), Error> {
        if quota == NO_QUOTA {
            return Ok(());
        }
        let more = |pinned: u64| (pinned < quota).then(|| pinned + 1);
        let charged = self.pinned.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        charged.map(drop).map_err(|pinned| Error::Quota { pinned, quota })
    }

    #[cold]
    pub(super) fn charge_beyond(&self, quota: u64) {
        if quota != NO_QUOTA {
            self.pinned.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(super) fn discharge(&self, quota: u64) {
        if quota != NO_QUOTA {
            // Another process can change the file's pin counts, so `pinned` may already be 0.
            let fewer = |pinned: u64| pinned.checked_sub(1);
            let _ = self.pinned.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer);
        }
    }
}

#[derive(Debug)]
pub(super) struct Membership {
    current: MappedPtr<Joined>,
}

impl Membership {
    pub(super) fn new(joined: Joined) -> Self {
        Self { current: MappedPtr::new(Box::into_raw(Box::new(joined))) }
    }

    /// Returns `None` in a forked child that has not joined.
    #[inline]
    pub(super) fn get(&self) -> Option<&Joined> {
        // SAFETY: only the drop sets null and frees the box.
        let joined = unsafe { &*self.current.load(Ordering::Acquire) };
        (!joined.is_inherited()).then_some(joined)
    }

    /// Joins in a forked child, unless another thread joined first.
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
            // SAFETY: no other thread saw `own`; `first` is valid as in `get`.
            Err(first) => unsafe {
                drop(Box::from_raw(own));
                Ok(&*first)
            },
        }
    }

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
        // SAFETY: `new` or `join_anew` made the box, and no reference outlives `self`. In a child
        // the box is a copy, whose drop does not release the parent's lock.
        drop(unsafe { Box::from_raw(last) });
    }
}

pub(super) fn join(ledger: &Ledger) -> Result<Joined, Error> {
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
