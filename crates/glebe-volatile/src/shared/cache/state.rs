//! [`SlotState`]: the contents or writer of a slot, in 64 bits shared by all processes.
//!
//! ```text
//! 63 .. 34   33 .. 32                   31 ...... 0
//! turn       0: empty or kept           bytes kept, or 0
//! turn       1: claimed, 2: building    31..24 holder, 23..0 its join time
//!
//! empty or kept --> claimed, turn + 1 --> building --> kept or empty
//! ```
//!
//! Each arrow is one exchange of the word. A dead writer's slot can be claimed, too. A writer that
//! others took for dead finds the word changed and publishes nothing. All 64-bit values are valid.

const PHASE_SHIFT: u32 = 32;
const TURN_SHIFT: u32 = 34;
const HOLDER_SHIFT: u32 = 24;
const STAMP_MASK: u64 = (1 << HOLDER_SHIFT) - 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotState(pub(super) u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotPhase {
    Empty,
    Kept(u32),
    /// The writer looks for another builder of the same key.
    Claimed(Writer),
    Building(Writer),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Writer {
    pub(super) holder: u8,
    /// Lower 24 bits of the holder's join time.
    stamp: u32,
}

impl Writer {
    pub(super) fn new(holder: u32, since: u64) -> Self {
        Self { holder: holder as u8, stamp: (since & STAMP_MASK) as u32 }
    }

    fn bits(self) -> u64 {
        u64::from(self.holder) << HOLDER_SHIFT | u64::from(self.stamp)
    }
}

impl SlotState {
    pub(super) fn turn(self) -> u64 {
        self.0 >> TURN_SHIFT
    }

    pub(super) fn phase(self) -> SlotPhase {
        let low = self.0 as u32;
        let writer = Writer::new(low >> HOLDER_SHIFT, low.into());
        match self.0 >> PHASE_SHIFT & 3 {
            0 if low > 0 => SlotPhase::Kept(low),
            1 => SlotPhase::Claimed(writer),
            2 => SlotPhase::Building(writer),
            _ => SlotPhase::Empty,
        }
    }

    pub(super) fn with(self, phase: SlotPhase) -> Self {
        let (code, low) = match phase {
            SlotPhase::Empty => (0, 0),
            SlotPhase::Kept(len) => (0, len.into()),
            SlotPhase::Claimed(writer) => (1, writer.bits()),
            SlotPhase::Building(writer) => (2, writer.bits()),
        };
        Self(self.turn() << TURN_SHIFT | code << PHASE_SHIFT | low)
    }

    pub(super) fn claimed(self, writer: Writer) -> Self {
        Self(self.0.wrapping_add(1 << TURN_SHIFT)).with(SlotPhase::Claimed(writer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_says_what_was_put_into_it() {
        let writer = Writer::new(127, 0x12_3456_7890);
        assert_eq!((writer.holder, writer.stamp), (127, 0x56_7890));
        for word in [0, 5 << TURN_SHIFT | 9, u64::MAX] {
            let claimed = SlotState(word).claimed(writer);
            assert_eq!(claimed.phase(), SlotPhase::Claimed(writer));
            assert_eq!(claimed.turn(), (SlotState(word).turn() + 1) % (1 << 30));
            for phase in [SlotPhase::Building(writer), SlotPhase::Kept(u32::MAX), SlotPhase::Empty]
            {
                let next = claimed.with(phase);
                assert_eq!((next.phase(), next.turn()), (phase, claimed.turn()));
            }
        }
        assert_eq!(SlotState(u64::MAX).phase(), SlotPhase::Empty);
    }
}
