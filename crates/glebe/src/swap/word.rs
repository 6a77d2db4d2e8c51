//! [`Word`]: all that threads must agree on about one object, in one atomic word.
//!
//! ```text
//! 63 ...... 32 | 31 . 29 | 28   | 27   | 26   | 25   | 24    | 23 .... 0
//! generation   | state   | used | copy | busy | dead | alone | pins
//!
//! hole ----> resident <----> leaving ----> stored ----> loading ----> resident
//!   ^           |  created alone             |  ^          |-> stored: no room, try again
//!   +--- taken <+----------------------------+  |          +-> failed: its copy is damaged
//!          +------------------------------------+  a dead object, of which nothing is left
//! ```
//!
//! *pins* keep a resident object where it is; *alone* is the one pin that may write. *copy*: there
//! is a copy of the bytes as they are now. *busy*: one thread works at the copy; it has one of the
//! pins. *used*: pinned since the clock's hand came by. *dead*: its bytes are wanted no more. Who
//! makes an object loading, leaving or taken has it to itself until the next step. So the copy
//! is the thread's that is busy, or has the object alone or to itself.
//!
//! Every step is a function here, and changes the word by compare and exchange. Cost of a pin: one
//! such; of its end: one subtraction. No lock.

mod page;

use std::fmt;

use crate::sync::{MappedWord, Ordering};

const PINS: u64 = (1 << 24) - 1;
const ALONE: u64 = 1 << 24;
const DEAD: u64 = 1 << 25;
const BUSY: u64 = 1 << 26;
const COPY: u64 = 1 << 27;
const USED: u64 = 1 << 28;
const STATE_SHIFT: u32 = 29;
const STATE: u64 = 7 << STATE_SHIFT;
const GENERATION_SHIFT: u32 = 32;

/// The most pins that an object may have at once.
pub(crate) const PINS_MAX: u64 = PINS;

/// Where an object is, or who has it to itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum State {
    /// No object.
    Hole = 0,
    /// In memory.
    Resident = 1,
    /// Not in memory: there is a copy, or the object is dead.
    Stored = 2,
    /// A thread brings it to memory.
    Loading = 3,
    /// A thread gives its memory back; there is a copy.
    Leaving = 4,
    /// A thread ends it, or drops what a dead one has.
    Taken = 5,
    /// Its copy is damaged.
    Failed = 6,
    /// Of a page of a region: in memory, and at other addresses than its own.
    Window = 7,
}

/// Why a step cannot be made now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The object was freed.
    Stale,
    /// The object is dead.
    Dead,
    /// Its copy is damaged.
    Failed,
    /// Pins stand against it.
    Pinned,
    /// There are [`PINS_MAX`] pins.
    TooMany,
    /// It has to be loaded first.
    Stored,
    /// A thread is at it, and soon done.
    Wait,
    /// The step makes no sense in this state.
    Unfit,
}

use Refusal::{Dead, Failed, Pinned, Stale, Stored, TooMany, Unfit, Wait};

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Word(u64);

impl fmt::Debug for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:#018x}", self.state(), self.0)
    }
}

type Step = Result<Word, Refusal>;

/// Changes the word at `at` by a step; what it was.
#[inline]
pub(crate) fn change(at: &MappedWord, step: impl Fn(Word) -> Step) -> Result<Word, Refusal> {
    let mut old = at.load(Ordering::Acquire);
    loop {
        let new = step(Word(old))?;
        // Release: whoever sees the new state sees all that led to it. Acquire: what the pins
        // that ended had read or written comes before what follows.
        match at.compare_exchange_weak(old, new.0, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return Ok(Word(old)),
            Err(now) => old = now,
        }
    }
}

/// Changes the word at `at` by a step that nobody can refuse whose caller has the object as the
/// step asks; what it was.
#[track_caller]
pub(crate) fn must(at: &MappedWord, step: impl Fn(Word) -> Step) -> Word {
    change(at, step).unwrap_or_else(|refusal| panic!("{refusal:?}: {:?}", look(at)))
}

/// The word at `at` now.
#[inline]
pub(crate) fn look(at: &MappedWord) -> Word {
    Word(at.load(Ordering::Acquire))
}

/// Ends a pin; what the word was.
#[inline]
pub(crate) fn unpin(at: &MappedWord) -> Word {
    Word(at.fetch_sub(1, Ordering::Release))
}

impl Word {
    /// A hole, whose next object has this generation.
    pub(crate) fn hole(generation: u32) -> Self {
        Self(u64::from(generation) << GENERATION_SHIFT)
    }

    #[inline]
    pub(crate) fn generation(self) -> u32 {
        (self.0 >> GENERATION_SHIFT) as u32
    }

    #[inline]
    pub(crate) fn state(self) -> State {
        match (self.0 & STATE) >> STATE_SHIFT {
            0 => State::Hole,
            1 => State::Resident,
            2 => State::Stored,
            3 => State::Loading,
            4 => State::Leaving,
            5 => State::Taken,
            6 => State::Failed,
            _ => State::Window,
        }
    }

    /// Pins that guards hold: without that of the thread that is busy.
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

    /// Whether a thread is at it that will be done soon.
    pub(crate) fn is_in_transit(self) -> bool {
        self.is(BUSY) || matches!(self.state(), State::Loading | State::Leaving | State::Taken)
    }

    #[inline]
    fn with(self, state: State) -> Self {
        Self(self.0 & !STATE | (state as u64) << STATE_SHIFT)
    }

    /// The word if it is of this generation's object.
    #[inline]
    fn of(self, generation: u32) -> Step {
        let is_there = self.generation() == generation && self.0 & STATE != 0;
        is_there.then_some(self).ok_or(Stale)
    }

    #[inline]
    fn expect(self, state: State) -> Step {
        (self.state() == state).then_some(self).ok_or(Unfit)
    }

    /// Why an object that is not resident cannot be pinned.
    #[cold]
    fn absence(self) -> Refusal {
        match self.state() {
            State::Stored | State::Window => Stored,
            State::Failed => Failed,
            _ => Wait,
        }
    }

    /// Pinned for one reader more.
    #[inline]
    pub(crate) fn pinned(self, generation: u32) -> Step {
        let word = self.of(generation)?;
        match word {
            _ if word.is(DEAD) => Err(Dead),
            _ if word.state() != State::Resident => Err(word.absence()),
            _ if word.is(ALONE) => Err(Pinned),
            _ if word.0 & PINS == PINS => Err(TooMany),
            _ => Ok(Self((word.0 + 1) | USED)),
        }
    }

    /// Pinned alone, by one who may write.
    #[inline]
    pub(crate) fn pinned_alone(self, generation: u32) -> Step {
        let word = self.of(generation)?;
        match word {
            _ if word.is(DEAD) => Err(Dead),
            _ if word.state() != State::Resident => Err(word.absence()),
            _ if word.guards() > 0 => Err(Pinned),
            _ if word.is(BUSY) => Err(Wait),
            _ => Ok(Self(word.0 | ALONE | USED)),
        }
    }

    /// No more pinned alone.
    #[inline]
    pub(crate) fn released(self) -> Step {
        if self.is(ALONE) {
            Ok(Self(self.0 & !ALONE))
        } else {
            Err(Unfit)
        }
    }

    /// A new object of a hole, pinned alone.
    pub(crate) fn created(self) -> Step {
        Ok(Self(self.expect(State::Hole)?.with(State::Resident).0 | ALONE | USED))
    }

    /// To be loaded by the caller.
    pub(crate) fn loading(self, generation: u32) -> Step {
        let word = self.of(generation)?;
        match word {
            _ if word.is(DEAD) => Err(Dead),
            _ => Ok(word.expect(State::Stored)?.with(State::Loading)),
        }
    }

    /// Loaded, with its copy or without, and pinned.
    pub(crate) fn loaded(self, has_copy: bool) -> Step {
        let word = self.expect(State::Loading)?.with(State::Resident);
        let copy = if has_copy { COPY } else { 0 };
        Ok(Self((word.0 & !COPY | copy | USED) + 1))
    }

    /// Loaded, without a copy, and pinned alone.
    pub(crate) fn loaded_alone(self) -> Step {
        let word = self.expect(State::Loading)?.with(State::Resident);
        Ok(Self(word.0 & !COPY | USED | ALONE))
    }

    /// Not loaded: as it was.
    pub(crate) fn not_loaded(self) -> Step {
        Ok(self.expect(State::Loading)?.with(State::Stored))
    }

    /// Never to be loaded: the copy is damaged.
    pub(crate) fn failed(self) -> Step {
        Ok(self.expect(State::Loading)?.with(State::Failed))
    }

    /// Passed by the clock's hand.
    pub(crate) fn passed(self) -> Step {
        if self.is(USED) {
            Ok(Self(self.0 & !USED))
        } else {
            Err(Unfit)
        }
    }

    /// Not used since the hand came by; of the object that is meant.
    pub(crate) fn cooled(self, generation: u32) -> Step {
        Ok(Self(self.of(generation)?.0 & !USED))
    }

    /// Chosen to be evicted: busy, pinned by nobody else.
    pub(crate) fn chosen(self) -> Step {
        let word = self.expect(State::Resident)?;
        match word {
            _ if word.0 & (PINS | ALONE | BUSY | USED | DEAD) != 0 => Err(Unfit),
            _ => Ok(Self((word.0 | BUSY) + 1)),
        }
    }

    /// Busy, since its copy is to go; readers may have it pinned.
    pub(crate) fn uncopying(self) -> Step {
        let word = self.expect(State::Resident)?;
        match word {
            _ if word.is(ALONE | BUSY) || !word.is(COPY) || word.0 & PINS == PINS => Err(Unfit),
            _ => Ok(Self((word.0 | BUSY) + 1)),
        }
    }

    /// No more busy; whether there is a copy now.
    pub(crate) fn idle(self, has_copy: bool) -> Step {
        if !self.is(BUSY) {
            return Err(Unfit);
        }
        let copy = if has_copy { COPY } else { 0 };
        Ok(Self((self.0 & !(BUSY | COPY) | copy) - 1))
    }

    /// Busy no more and about to leave memory, with a copy, unless somebody has used it since it
    /// was chosen.
    pub(crate) fn leaving(self) -> Step {
        let word = self.expect(State::Resident)?;
        match word {
            _ if !word.is(BUSY) => Err(Unfit),
            _ if word.0 & PINS != 1 || word.is(USED | DEAD) => Err(Pinned),
            _ => Ok(Self(((word.0 & !BUSY) - 1) | COPY).with(State::Leaving)),
        }
    }

    /// Gone from memory.
    pub(crate) fn left(self) -> Step {
        Ok(self.expect(State::Leaving)?.with(State::Stored))
    }

    /// Still in memory, since the kernel did not take it.
    pub(crate) fn stayed(self) -> Step {
        Ok(self.expect(State::Leaving)?.with(State::Resident))
    }

    /// The copy of an object that is pinned alone went.
    pub(crate) fn uncopied(self) -> Step {
        if self.is(ALONE) {
            Ok(Self(self.0 & !COPY))
        } else {
            Err(Unfit)
        }
    }

    /// The caller's, to end it.
    pub(crate) fn taken(self, generation: u32) -> Step {
        let word = self.of(generation)?;
        match word.state() {
            State::Resident if word.guards() > 0 => Err(Pinned),
            State::Resident if word.is(BUSY) => Err(Wait),
            State::Resident | State::Stored | State::Failed => Ok(word.with(State::Taken)),
            _ => Err(Wait),
        }
    }

    /// Wanted no more.
    pub(crate) fn doomed(self, generation: u32) -> Step {
        Ok(Self(self.of(generation)?.0 | DEAD))
    }

    /// The caller's, to drop what a dead object still has.
    pub(crate) fn reaped(self) -> Step {
        let has_any = self.state() == State::Resident || self.is(COPY);
        if !self.is(DEAD) || !has_any {
            return Err(Unfit);
        }
        self.taken(self.generation())
    }

    /// Dead, and nothing is left of it.
    pub(crate) fn buried(self) -> Step {
        Ok(Self(self.expect(State::Taken)?.with(State::Stored).0 & !COPY))
    }

    /// Not ended: in the state that it was taken from, with its copy or without.
    pub(crate) fn spared(self, state: State, has_copy: bool) -> Step {
        let copy = if has_copy { COPY } else { 0 };
        Ok(Self(self.expect(State::Taken)?.with(state).0 & !COPY | copy))
    }

    /// A hole for the next generation's object.
    pub(crate) fn ended(self) -> Step {
        Ok(Self::hole(self.expect(State::Taken)?.generation().wrapping_add(1)))
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
