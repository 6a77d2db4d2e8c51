//! A program may offer private mappings, so that the daemon can take them.

use std::collections::BTreeSet;
use std::ops::Range;

use glebe_lease::internal::PartLease;
use glebe_lease::LeaseError;
use glebe_os::internal::sys::errno::{EDQUOT, EINVAL, EIO, EOPNOTSUPP};
use glebe_os::internal::sys::memory::direct::Answer;

use crate::lease::Request;
use crate::place::{Place, Spot};
use crate::state::{locked, Holding, State};

pub(crate) fn offer(addr: usize, len: usize) -> Answer {
    let mut locked = locked();
    let state = locked.get();
    let all = state.whole(addr..addr.saturating_add(len))?;
    if !state.settings.may_offer {
        return Err(EOPNOTSUPP);
    }
    for number in all {
        state.lease_of(number)?.offer().map_err(|error| match error {
            LeaseError::Refused { errno: EDQUOT, .. } => EDQUOT,
            _ => EIO,
        })?;
    }
    Ok(0)
}

pub(crate) fn keep(addr: usize, len: usize) -> Answer {
    let mut locked = locked();
    let state = locked.get();
    let mut lost = 0;
    for number in state.whole(addr..addr.saturating_add(len))? {
        if state.lease_of(number)?.keep().is_err() {
            state.replace(number)?;
            lost = 1;
        }
    }
    Ok(lost)
}

impl State {
    fn lease_of(&self, number: u64) -> Result<&PartLease, i32> {
        self.holdings.get(&number).and_then(Holding::private).ok_or(EINVAL)
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
        for (start, piece) in pieces {
            let spot = Spot::Fixed(start);
            let (len, prot, is_shared) = (piece.len, piece.prot, false);
            let request = Request { spot, len, page: len, prot, is_shared, flags: 0 };
            if self.map(&request).is_err() {
                Place::reserve(spot, len, len)?.fill(prot)?;
                self.forget(start..start + len);
            }
        }
        Ok(())
    }
}
