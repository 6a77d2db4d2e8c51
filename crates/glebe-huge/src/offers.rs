//! A program may offer private mappings, so that the daemon can take them.

use std::collections::BTreeSet;
use std::ops::Range;

use glebe_lease::LeaseError;
use glebe_os::internal::sys::errno::{EDQUOT, EINVAL, EIO, ENOENT, EOPNOTSUPP};
use glebe_os::internal::sys::memory::direct::Answer;

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
        private.lease.offer().map_err(|error| match error {
            LeaseError::Refused { errno: EDQUOT, .. } => EDQUOT,
            _ => EIO,
        })?;
        private.is_offered = true;
    }
    Ok(0)
}

pub(crate) fn keep(addr: usize, len: usize) -> Answer {
    let mut locked = locked();
    let state = locked.get();
    let mut lost = 0;
    for number in state.whole(addr..addr.saturating_add(len))? {
        lost |= usize::from(state.keep(number)?);
    }
    Ok(lost)
}

impl State {
    fn private_of(&mut self, number: u64) -> Result<&mut Private, i32> {
        self.holdings.get_mut(&number).and_then(Holding::private).ok_or(EINVAL)
    }

    /// Keeps a holding from now on. Returns true if the daemon had taken it.
    fn keep(&mut self, number: u64) -> Result<bool, i32> {
        let private = self.private_of(number)?;
        if !private.is_offered {
            return Ok(false);
        }
        match private.lease.keep() {
            Ok(()) => private.is_offered = false,
            Err(LeaseError::Refused { errno: ENOENT, .. }) => {
                self.replace(number)?;
                return Ok(true);
            }
            Err(_) => return Err(EIO),
        }
        Ok(false)
    }

    /// Keeps all offered mappings, because this library is about to touch them.
    pub(crate) fn keep_all(&mut self) {
        let all: Vec<u64> = self.holdings.keys().copied().collect();
        for number in all {
            let _ = self.keep(number);
        }
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
        let mut failed = Ok(());
        for (start, piece) in pieces {
            let spot = Spot::Fixed(start);
            let (len, prot, is_shared) = (piece.len, piece.prot, false);
            let request = Request { spot, len, page: len, prot, is_shared, flags: 0 };
            if self.map(&request).is_err() {
                let filled = Place::reserve(spot, len, len).and_then(|place| place.fill(prot));
                failed = failed.and(filled);
            }
        }
        failed
    }
}
