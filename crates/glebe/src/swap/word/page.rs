//! The steps of a region's page, beside those of an object in a store.
//!
//! ```text
//! hole, stored, window ----> loading ----> resident       a touch brings it in
//! resident             ----> leaving ----> window         the hand moves it out
//! window               ----> leaving ----> stored         it is compressed, and dropped
//! resident, window     ----> leaving ----> hole           its bytes are wanted no more
//! stored, failed       ----> loading ----> hole           the same
//! ```
//!
//! Who makes a page loading or leaving has it to itself, and says by [`Word::put`] where it is
//! then; a touch of it waits. *copy*: there is a copy, which may be older than the page: nobody
//! sees what the program writes. The generation is zero for ever, and a hole is a page never
//! touched, or discarded.

use super::{Refusal, State, Step, Word, ALONE, BUSY, COPY, PINS};

impl Word {
    /// To be brought in by the caller.
    pub(crate) fn fetching(self) -> Step {
        match self.state() {
            State::Hole | State::Stored | State::Window => Ok(self.with(State::Loading)),
            State::Resident => Err(Refusal::Unfit),
            State::Failed => Err(Refusal::Failed),
            _ => Err(Refusal::Wait),
        }
    }

    /// To be moved out by the caller: nobody has it pinned.
    pub(crate) fn moving(self) -> Step {
        match self.expect(State::Resident)? {
            word if word.0 & (PINS | ALONE | BUSY) != 0 => Err(Refusal::Unfit),
            word => Ok(word.with(State::Leaving)),
        }
    }

    /// To be compressed and dropped by the caller.
    pub(crate) fn draining(self) -> Step {
        Ok(self.expect(State::Window)?.with(State::Leaving))
    }

    /// To be made a hole by the caller: nobody has it pinned.
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

    /// No more the caller's: where it is, and whether there is a copy.
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
