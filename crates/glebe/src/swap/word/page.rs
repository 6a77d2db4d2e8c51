//! Further steps for a region's page.
//!
//! ```text
//! hole, stored, window ----> loading ----> resident       a touch brings it in
//! resident             ----> leaving ----> window         the hand moves it out
//! window               ----> leaving ----> stored         it is compressed, and dropped
//! resident, window     ----> leaving ----> hole           its bytes are wanted no more
//! stored, failed       ----> loading ----> hole           the same
//! ```
//!
//! The thread that makes a page loading or leaving owns it until [`Word::put`]; a touch meanwhile
//! waits. *copy*: a copy exists, but may be older than the page, because nothing sees the program's
//! writes. The generation is always zero. A hole is a page never touched, or discarded.

use super::{Refusal, State, Step, Word, ALONE, BUSY, COPY, PINS};

impl Word {
    /// Takes a page, to bring it home.
    pub(crate) fn fetching(self) -> Step {
        match self.state() {
            State::Hole | State::Stored | State::Window => Ok(self.with(State::Loading)),
            State::Resident => Err(Refusal::Unfit),
            State::Failed => Err(Refusal::Failed),
            _ => Err(Refusal::Wait),
        }
    }

    /// Takes an unpinned page at home, to move it out.
    pub(crate) fn moving(self) -> Step {
        match self.expect(State::Resident)? {
            word if word.0 & (PINS | ALONE | BUSY) != 0 => Err(Refusal::Unfit),
            word => Ok(word.with(State::Leaving)),
        }
    }

    /// Takes a page in the window, to compress and drop it.
    pub(crate) fn draining(self) -> Step {
        Ok(self.expect(State::Window)?.with(State::Leaving))
    }

    /// Takes an unpinned page, to make it a hole.
    pub(crate) fn discarding(self) -> Step {
        match self.state() {
            State::Hole => Err(Refusal::Unfit),
            State::Resident if self.guards() > 0 => Err(Refusal::Pinned),
            State::Resident if self.is(BUSY) => Err(Refusal::Wait),
            State::Resident | State::Window => Ok(self.with(State::Leaving)),
            State::Stored | State::Failed => Ok(self.with(State::Loading)),
            _ => Err(Refusal::Wait),
        }
    }

    /// Ends the caller's ownership.
    pub(crate) fn put(self, state: State, has_copy: bool) -> Step {
        match self.state() {
            State::Loading | State::Leaving => {
                let copy = if has_copy { COPY } else { 0 };
                Ok(Self(self.with(state).0 & !COPY | copy))
            }
            _ => Err(Refusal::Unfit),
        }
    }
}
