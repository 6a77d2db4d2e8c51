//! A program may offer private mappings, so that the daemon can take them.

use std::collections::BTreeSet;
use std::ops::Range;

use glebe_lease::LeaseError;
use glebe_os::internal::sys::errno::{EAGAIN, EDQUOT, EINVAL, EIO, ENOENT, EOPNOTSUPP};
use glebe_os::internal::sys::memory::direct::Answer;

use crate::advise::lacks_pages;
use crate::lease::Request;
use crate::place::{Place, Spot};
use crate::state::{locked, Holding, Private, State};

pub(crate) fn offer(addr: usize, len: usize) -> Answer {
    let mut locked = locked();
    let state = locked.get();
    let all = state.whole(addr..addr.saturating_add(len))?;
    if !state.settings.may_offer {
        return Err(EOPNOTSUPP);
    }
    for number in all {
        let private = state.private_of(number)?;
        let offered = private.lease.offer();
        // A silent daemon may obey later.
        private.is_offered |= matches!(offered, Ok(()) | Err(LeaseError::Silent { .. }));
        offered.map_err(|error| match error {
            LeaseError::Refused { errno: EDQUOT, .. } => EDQUOT,
            LeaseError::Silent { .. } => EAGAIN,
            _ => EIO,
        })?;
    }
    Ok(0)
}

pub(crate) fn keep(addr: usize, len: usize) -> Answer {
    let mut locked = locked();
    let state = locked.get();
    let range = addr..addr.saturating_add(len);
    let mut kept = Ok(0);
    // All that was lost may be ordinary memory now.
    if state.pieces.is_any(range.clone()) || !state.lost.is_any(range.clone()) {
        for number in state.whole(range.clone())? {
            match state.keep(number) {
                // Goes on: the daemon may have taken other mappings before it ended.
                Err(EIO) => kept = Err(EIO),
                other => other?,
            }
        }
    }
    match state.lost.take(range).is_empty() {
        true => kept,
        false => Ok(1),
    }
}

impl State {
    fn private_of(&mut self, number: u64) -> Result<&mut Private, i32> {
        self.holdings.get_mut(&number).and_then(Holding::private).ok_or(EINVAL)
    }

    /// Keeps a holding from now on. Zeroed memory replaces what the daemon has taken.
    fn keep(&mut self, number: u64) -> Result<(), i32> {
        let private = self.private_of(number)?;
        if !private.is_offered {
            return Ok(());
        }
        let kept = private.lease.keep();
        private.is_offered = kept.is_err();
        // A daemon that answers again may be asked for memory again.
        self.is_silent = matches!(kept, Err(LeaseError::Silent { .. }));
        match kept {
            Ok(()) => {}
            Err(LeaseError::Refused { errno: ENOENT, .. }) => return self.replace(number),
            Err(LeaseError::Silent { .. }) => return Err(EAGAIN),
            // The daemon may have taken the memory before it ended.
            Err(_) if self.is_taken(number) => return self.replace(number),
            Err(_) => return Err(EIO),
        }
        Ok(())
    }

    /// Keeps the offered mappings in a range, because this library is about to touch them. Waits
    /// only once for a silent daemon. The kernel then tells which mappings the daemon has taken.
    pub(crate) fn keep_in(&mut self, range: Range<usize>) {
        let all: BTreeSet<u64> = self.pieces.in_range(range).map(|it| it.holding).collect();
        let mut is_silent = false;
        for number in all {
            let kept = if is_silent { Err(EAGAIN) } else { self.keep(number) };
            is_silent |= kept == Err(EAGAIN);
            if kept == Err(EAGAIN) && self.is_taken(number) {
                let _ = self.replace(number);
            }
        }
    }

    /// Returns true if a touch of an offered mapping would raise SIGBUS.
    fn is_taken(&mut self, number: u64) -> bool {
        let is_offered = self.private_of(number).is_ok_and(|private| private.is_offered);
        let mut pieces = self.pieces.all().filter(|(_, piece)| piece.holding == number);
        is_offered && pieces.any(|(start, piece)| lacks_pages(start, &piece))
    }

    /// Returns the holdings in the range.
    ///
    /// # Errors
    /// EINVAL if there is none, one is shared, or one is only partly in the range.
    fn whole(&self, range: Range<usize>) -> Result<BTreeSet<u64>, i32> {
        let all: BTreeSet<u64> = self.pieces.in_range(range.clone()).map(|it| it.holding).collect();
        let is_inside = |number: &u64| {
            let mut of = self.pieces.all().filter(|(_, piece)| piece.holding == *number);
            of.all(|(start, piece)| {
                !piece.is_shared && range.start <= start && start + piece.len <= range.end
            })
        };
        match !all.is_empty() && all.iter().all(is_inside) {
            true => Ok(all),
            false => Err(EINVAL),
        }
    }

    /// Puts zeroed memory in the place of a lease that was taken.
    fn replace(&mut self, number: u64) -> Result<(), i32> {
        let pieces: Vec<_> =
            self.pieces.all().filter(|(_, piece)| piece.holding == number).collect();
        // The lost lease no longer counts for the quota.
        pieces.iter().for_each(|(start, piece)| self.forget(*start..start + piece.len));
        let mut done = Ok(());
        for (start, piece) in pieces {
            let spot = Spot::Fixed(start);
            let (len, prot, is_shared) = (piece.len, piece.prot, false);
            let request = Request { spot, len, page: len, prot, is_shared, flags: 0 };
            let replaced = self
                .map(&request)
                .map(drop)
                .or_else(|_| Place::reserve(spot, len, len).and_then(|place| place.fill(prot)));
            if replaced.is_ok() {
                self.lost.insert(start, piece);
            }
            done = done.and(replaced);
        }
        done
    }
}
