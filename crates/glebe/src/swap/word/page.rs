//! [`Word`] has further steps for a region's page.
//!
//! ```text
//! hole, stored, window ----> loading ----> resident       a touch needs the page
//! resident             ----> leaving ----> window         the page moves to a shadow address
//! window               ----> leaving ----> stored         the page is compressed and dropped
//! resident, window     ----> leaving ----> hole           the page is discarded
//! stored, failed       ----> loading ----> hole           the copy is discarded
//! ```
//!
//! A thread that makes a page loading or leaving owns the page until [`Word::put`]; touches wait. A
//! resident page may be newer than its copy, because the program writes without calls. The
//! generation is 0.

use super::{Refusal, Step, Word, WordState, ALONE, BUSY, COPY, PINS};

impl Word {
    pub(crate) fn fetching(self) -> Step {
        match self.state() {
            WordState::Hole | WordState::Stored | WordState::Window => {
                Ok(self.with(WordState::Loading))
            }
            WordState::Resident => Err(Refusal::Unfit),
            WordState::Failed => Err(Refusal::Failed),
            _ => Err(Refusal::Wait),
        }
    }

    pub(crate) fn moving(self) -> Step {
        match self.expect(WordState::Resident)? {
            word if word.0 & (PINS | ALONE | BUSY) != 0 => Err(Refusal::Unfit),
            word => Ok(word.with(WordState::Leaving)),
        }
    }

    /// Makes a page busy, even a pinned one, so that it stays resident.
    pub(crate) fn confirming(self) -> Step {
        match self.expect(WordState::Resident)? {
            word if word.is(BUSY) || word.0 & PINS == PINS => Err(Refusal::Unfit),
            word => Ok(Self((word.0 | BUSY) + 1)),
        }
    }

    pub(crate) fn draining(self) -> Step {
        Ok(self.expect(WordState::Window)?.with(WordState::Leaving))
    }

    pub(crate) fn discarding(self) -> Step {
        match self.state() {
            WordState::Hole => Err(Refusal::Unfit),
            WordState::Resident if self.guards() > 0 => Err(Refusal::Pinned),
            WordState::Resident if self.is(BUSY) => Err(Refusal::Wait),
            WordState::Resident | WordState::Window => Ok(self.with(WordState::Leaving)),
            WordState::Stored | WordState::Failed => Ok(self.with(WordState::Loading)),
            _ => Err(Refusal::Wait),
        }
    }

    pub(crate) fn put(self, state: WordState, has_copy: bool) -> Step {
        match self.state() {
            WordState::Loading | WordState::Leaving => {
                let copy = if has_copy { COPY } else { 0 };
                Ok(Self(self.with(state).0 & !COPY | copy))
            }
            _ => Err(Refusal::Unfit),
        }
    }
}
