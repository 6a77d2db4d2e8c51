//! [`Word`] is the state of one object.
//!
//! ```text
//! 63 ...... 32 | 31 . 29 | 28   | 27   | 26   | 25   | 24    | 23 .... 0
//! generation   | state   | used | copy | busy | dead | alone | pins
//!
//! hole ----> resident <----> leaving ----> stored ----> loading ----> resident
//!   ^           |  created alone             |  ^          |-> stored: no room, try again
//!   +--- taken <+----------------------------+  |          +-> failed: its copy is damaged
//!          +------------------------------------+  a dead object whose bytes are freed
//! ```
//!
//! *pins* keep a resident object in memory; *alone* is the exclusive pin, whose owner may write.
//! *copy*: a copy of the current bytes exists. *busy*: one thread works on the copy, or confirms a
//! touched page, and holds a pin. *used*: pinned since the clock hand last passed. *dead*: the
//! bytes are unwanted. A thread that makes an object loading, leaving or taken (to be freed) owns
//! it until the next step. Only this owner, the busy thread, or the exclusive pin's owner changes
//! the copy.
//!
//! Each step is one compare-and-exchange. No lock.

mod page;

use std::fmt;

use glebe_os::internal::sync::{MappedWord, Ordering};

const PINS: u64 = (1 << 24) - 1;
const ALONE: u64 = 1 << 24;
const DEAD: u64 = 1 << 25;
const BUSY: u64 = 1 << 26;
const COPY: u64 = 1 << 27;
const USED: u64 = 1 << 28;
const STATE_SHIFT: u32 = 29;
const STATE: u64 = 7 << STATE_SHIFT;
const GENERATION_SHIFT: u32 = 32;

pub(crate) const PINS_MAX: u64 = PINS;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum WordState {
    Hole = 0,
    Resident = 1,
    /// The object has a copy, or is dead.
    Stored = 2,
    Loading = 3,
    Leaving = 4,
    Taken = 5,
    Failed = 6,
    /// A region's page, at its shadow address.
    Window = 7,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Stale,
    Dead,
    Failed,
    Pinned,
    TooMany,
    Stored,
    Wait,
    Unfit,
}

use Refusal::{Dead, Failed, Pinned, Stale, Stored, TooMany, Unfit, Wait};

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Word(u64);

impl fmt::Debug for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:#018x}", self.state(), self.0)
    }
}

type Step = Result<Word, Refusal>;

#[inline]
pub(crate) fn change(at: &MappedWord, step: impl Fn(Word) -> Step) -> Result<Word, Refusal> {
    let mut old = at.load(Ordering::Acquire);
    loop {
        let new = step(Word(old))?;
        // Release: a thread that sees the new state sees all writes before it. Acquire: accesses by
        // threads that unpinned happen before the code that follows.
        match at.compare_exchange_weak(old, new.0, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return Ok(Word(old)),
            Err(now) => old = now,
        }
    }
}

/// Makes a step that cannot be refused, because the caller owns or pins the object.
#[track_caller]
pub(crate) fn must(at: &MappedWord, step: impl Fn(Word) -> Step) -> Word {
    change(at, step).unwrap_or_else(|refusal| panic!("{refusal:?}: {:?}", look(at)))
}

#[inline]
pub(crate) fn look(at: &MappedWord) -> Word {
    Word(at.load(Ordering::Acquire))
}

#[inline]
pub(crate) fn unpin(at: &MappedWord) -> Word {
    Word(at.fetch_sub(1, Ordering::Release))
}

impl Word {
    pub(crate) fn hole(generation: u32) -> Self {
        Self(u64::from(generation) << GENERATION_SHIFT)
    }

    #[inline]
    pub(crate) fn generation(self) -> u32 {
        (self.0 >> GENERATION_SHIFT) as u32
    }

    #[inline]
    pub(crate) fn state(self) -> WordState {
        match (self.0 & STATE) >> STATE_SHIFT {
            0 => WordState::Hole,
            1 => WordState::Resident,
            2 => WordState::Stored,
            3 => WordState::Loading,
            4 => WordState::Leaving,
            5 => WordState::Taken,
            6 => WordState::Failed,
            _ => WordState::Window,
        }
    }

    /// Excludes the busy thread's pin.
    #[inline]
    pub(crate) fn guards(self) -> u64 {
        (self.0 & PINS) - u64::from(self.is(BUSY)) + u64::from(self.is(ALONE))
    }

    #[inline]
    fn is(self, flag: u64) -> bool {
        self.0 & flag != 0
    }

    pub(crate) fn has_copy(self) -> bool {
        self.is(COPY)
    }

    #[inline]
    pub(crate) fn is_dead(self) -> bool {
        self.is(DEAD)
    }

    pub(crate) fn is_used(self) -> bool {
        self.is(USED)
    }

    pub(crate) fn is_in_transit(self) -> bool {
        self.is(BUSY)
            || matches!(self.state(), WordState::Loading | WordState::Leaving | WordState::Taken)
    }

    #[inline]
    fn with(self, state: WordState) -> Self {
        Self(self.0 & !STATE | (state as u64) << STATE_SHIFT)
    }

    #[inline]
    fn of(self, generation: u32) -> Step {
        let is_there = self.generation() == generation && self.0 & STATE != 0;
        is_there.then_some(self).ok_or(Stale)
    }

    #[inline]
    fn expect(self, state: WordState) -> Step {
        (self.state() == state).then_some(self).ok_or(Unfit)
    }

    #[cold]
    fn absence(self) -> Refusal {
        match self.state() {
            WordState::Stored | WordState::Window => Stored,
            WordState::Failed => Failed,
            _ => Wait,
        }
    }

    #[inline]
    pub(crate) fn pinned(self, generation: u32) -> Step {
        let word = self.of(generation)?;
        match word {
            _ if word.is(DEAD) => Err(Dead),
            _ if word.state() != WordState::Resident => Err(word.absence()),
            _ if word.is(ALONE) => Err(Pinned),
            _ if word.0 & PINS == PINS => Err(TooMany),
            _ => Ok(Self((word.0 + 1) | USED)),
        }
    }

    #[inline]
    pub(crate) fn pinned_alone(self, generation: u32) -> Step {
        let word = self.of(generation)?;
        match word {
            _ if word.is(DEAD) => Err(Dead),
            _ if word.state() != WordState::Resident => Err(word.absence()),
            _ if word.guards() > 0 => Err(Pinned),
            _ if word.is(BUSY) => Err(Wait),
            _ => Ok(Self(word.0 | ALONE | USED)),
        }
    }

    #[inline]
    pub(crate) fn released(self) -> Step {
        if self.is(ALONE) {
            Ok(Self(self.0 & !ALONE))
        } else {
            Err(Unfit)
        }
    }

    pub(crate) fn created(self) -> Step {
        Ok(Self(self.expect(WordState::Hole)?.with(WordState::Resident).0 | ALONE | USED))
    }

    pub(crate) fn loading(self, generation: u32) -> Step {
        let word = self.of(generation)?;
        match word {
            _ if word.is(DEAD) => Err(Dead),
            _ => Ok(word.expect(WordState::Stored)?.with(WordState::Loading)),
        }
    }

    pub(crate) fn loaded(self, has_copy: bool) -> Step {
        let word = self.expect(WordState::Loading)?.with(WordState::Resident);
        let copy = if has_copy { COPY } else { 0 };
        Ok(Self((word.0 & !COPY | copy | USED) + 1))
    }

    pub(crate) fn loaded_alone(self) -> Step {
        let word = self.expect(WordState::Loading)?.with(WordState::Resident);
        Ok(Self(word.0 & !COPY | USED | ALONE))
    }

    pub(crate) fn not_loaded(self) -> Step {
        Ok(self.expect(WordState::Loading)?.with(WordState::Stored))
    }

    pub(crate) fn failed(self) -> Step {
        Ok(self.expect(WordState::Loading)?.with(WordState::Failed))
    }

    pub(crate) fn passed(self) -> Step {
        if self.is(USED) {
            Ok(Self(self.0 & !USED))
        } else {
            Err(Unfit)
        }
    }

    pub(crate) fn cooled(self, generation: u32) -> Step {
        Ok(Self(self.of(generation)?.0 & !USED))
    }

    pub(crate) fn chosen(self) -> Step {
        let word = self.expect(WordState::Resident)?;
        match word {
            _ if word.0 & (PINS | ALONE | BUSY | USED | DEAD) != 0 => Err(Unfit),
            _ => Ok(Self((word.0 | BUSY) + 1)),
        }
    }

    pub(crate) fn uncopying(self) -> Step {
        let word = self.expect(WordState::Resident)?;
        match word {
            _ if word.is(ALONE | BUSY) || !word.is(COPY) || word.0 & PINS == PINS => Err(Unfit),
            _ => Ok(Self((word.0 | BUSY) + 1)),
        }
    }

    pub(crate) fn idle(self, has_copy: bool) -> Step {
        if !self.is(BUSY) {
            return Err(Unfit);
        }
        let copy = if has_copy { COPY } else { 0 };
        Ok(Self((self.0 & !(BUSY | COPY) | copy) - 1))
    }

    /// Changes busy to leaving, unless the object was pinned or declared dead since
    /// [`Word::chosen`].
    pub(crate) fn leaving(self) -> Step {
        let word = self.expect(WordState::Resident)?;
        match word {
            _ if !word.is(BUSY) => Err(Unfit),
            _ if word.0 & PINS != 1 || word.is(USED | DEAD) => Err(Pinned),
            _ => Ok(Self(((word.0 & !BUSY) - 1) | COPY).with(WordState::Leaving)),
        }
    }

    pub(crate) fn left(self) -> Step {
        Ok(self.expect(WordState::Leaving)?.with(WordState::Stored))
    }

    pub(crate) fn stayed(self) -> Step {
        Ok(self.expect(WordState::Leaving)?.with(WordState::Resident))
    }

    pub(crate) fn uncopied(self) -> Step {
        if self.is(ALONE) {
            Ok(Self(self.0 & !COPY))
        } else {
            Err(Unfit)
        }
    }

    pub(crate) fn taken(self, generation: u32) -> Step {
        let word = self.of(generation)?;
        match word.state() {
            WordState::Resident if word.guards() > 0 => Err(Pinned),
            WordState::Resident if word.is(BUSY) => Err(Wait),
            WordState::Resident | WordState::Stored | WordState::Failed => {
                Ok(word.with(WordState::Taken))
            }
            _ => Err(Wait),
        }
    }

    pub(crate) fn doomed(self, generation: u32) -> Step {
        Ok(Self(self.of(generation)?.0 | DEAD))
    }

    pub(crate) fn reaped(self) -> Step {
        let has_any = self.state() == WordState::Resident || self.is(COPY);
        if !self.is(DEAD) || !has_any {
            return Err(Unfit);
        }
        self.taken(self.generation())
    }

    pub(crate) fn buried(self) -> Step {
        Ok(Self(self.expect(WordState::Taken)?.with(WordState::Stored).0 & !COPY))
    }

    pub(crate) fn spared(self, state: WordState, has_copy: bool) -> Step {
        let copy = if has_copy { COPY } else { 0 };
        Ok(Self(self.expect(WordState::Taken)?.with(state).0 & !COPY | copy))
    }

    pub(crate) fn ended(self) -> Step {
        Ok(Self::hole(self.expect(WordState::Taken)?.generation().wrapping_add(1)))
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
