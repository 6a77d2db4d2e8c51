//! The page word: the state of one page of the reserve.
//!
//! ```text
//!  63            36 35                        3 2     0
//! +----------------+---------------------------+-------+
//! |     epoch      |        generation         | state |
//! |      28        |            33             |   3   |
//! +----------------+---------------------------+-------+
//! ```
//!
//! A word whose epoch is not its granule's says "free", whatever its state. The generation grows
//! with every claim and every return to free, so a word that was read before a copy and again
//! after it proves that the page was not reused in between.
//!
//! | from | to | by |
//! |---|---|---|
//! | free, zero, valid | writing | a tenant's claim |
//! | writing | valid, zero | the tenant's commit |
//! | writing | free | the tenant gives up, or a recall of a neighbour revokes it |
//! | valid | free | a tenant invalidates |
//! | any | first | first class, block smaller than the granule |
//! | first | free | the block ends |

use super::granule::EPOCH_BITS;

/// What a page is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// By nobody.
    Free = 0,
    /// A tenant is copying into it.
    Writing = 1,
    /// It holds a tenant's page.
    Valid = 2,
    /// By nobody, and it holds zeros.
    Zero = 3,
    /// First class holds it.
    First = 4,
}

/// One page word, by value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageWord(pub(crate) u64);

const STATE_BITS: u32 = 3;
const STATE_MASK: u64 = (1 << STATE_BITS) - 1;
const EPOCH_SHIFT: u32 = u64::BITS - EPOCH_BITS;
const GENERATION_MASK: u64 = (1 << (EPOCH_SHIFT - STATE_BITS)) - 1;
const _: () = assert!(GENERATION_MASK > u16::MAX as u64);

/// One use of a page: which page, and the low bits of the generation of its word from the claim
/// to the end of what was stored by it. What names a use does not mean the uses that follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageUse {
    pub(crate) page: usize,
    pub(crate) generation: u16,
}

impl PageWord {
    /// As the kernel hands memory out.
    pub(crate) fn fresh() -> Self {
        Self(State::Zero as u64)
    }

    fn new(state: State, generation: u64, epoch: u64) -> Self {
        let generation = generation & GENERATION_MASK;
        Self((epoch << EPOCH_SHIFT) | (generation << STATE_BITS) | state as u64)
    }

    pub(crate) fn epoch(self) -> u64 {
        self.0 >> EPOCH_SHIFT
    }

    pub(crate) fn generation(self) -> u64 {
        (self.0 >> STATE_BITS) & GENERATION_MASK
    }

    /// The use of `page`, of which this is the word.
    pub(crate) fn use_of(self, page: usize) -> PageUse {
        PageUse { page, generation: self.generation() as u16 }
    }

    /// What the page is used for, in a granule whose epoch is `epoch`.
    pub(crate) fn state(self, epoch: u64) -> State {
        if self.epoch() != epoch {
            return State::Free;
        }
        match self.0 & STATE_MASK {
            1 => State::Writing,
            2 => State::Valid,
            3 => State::Zero,
            4 => State::First,
            _ => State::Free,
        }
    }

    /// The same generation in another state: a commit, or a tenant's page dropped.
    pub(crate) fn become_state(self, state: State) -> Self {
        Self((self.0 & !STATE_MASK) | state as u64)
    }

    /// The next generation, in `state`, in a granule whose epoch is `epoch`.
    pub(crate) fn next(self, state: State, epoch: u64) -> Self {
        Self::new(state, self.generation() + 1, epoch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_epoch_is_free() {
        let w = PageWord::fresh().next(State::Valid, 3);
        assert_eq!(w.state(3), State::Valid);
        assert_eq!(w.state(4), State::Free);
    }

    #[test]
    fn generation_wraps_inside_its_field() {
        let last = PageWord::new(State::Valid, GENERATION_MASK, 7);
        let next = last.next(State::Writing, 7);
        assert_eq!((next.generation(), next.epoch()), (0, 7));
        assert_eq!(next.become_state(State::Valid).state(7), State::Valid);
    }

    #[test]
    fn a_use_lasts_from_claim_to_drop() {
        let before = PageWord::new(State::Valid, 0x1_ffff, 3);
        let claim = before.next(State::Writing, 3);
        let valid = claim.become_state(State::Valid);
        assert_eq!(claim.use_of(5), PageUse { page: 5, generation: 0 });
        assert_eq!(valid.use_of(5), claim.use_of(5));
        assert_ne!(before.use_of(5), claim.use_of(5));
        assert_ne!(valid.next(State::Free, 3).use_of(5), valid.use_of(5));
    }
}
