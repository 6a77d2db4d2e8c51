//! [`Patience`]: how long a call that needs room waits for others, before it is refused.
//!
//! Who brings something in, or has it leave, is done soon, however busy the machine is: that is
//! waited for a quarter of a second. A guard may be held for ever: that is waited for some tens of
//! milliseconds.

use crate::sync::Backoff;

/// What one look for room found, from worst to best.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Hope {
    /// All that is in memory stays there.
    #[default]
    None,
    /// Others use some of it, for as long as they like.
    Used,
    /// Others are at it, and done soon.
    Soon,
}

impl Hope {
    /// Notes what was found as well.
    pub(super) fn rise(&mut self, found: Hope) {
        *self = found.max(*self);
    }
}

/// The waits of one call. Each waits a millisecond, but for the first.
#[derive(Debug, Default)]
pub(super) struct Patience {
    backoff: Backoff,
    spent: u32,
}

impl Patience {
    const ALL: u32 = 240;

    /// Waits a little; false if there was waiting enough.
    #[cold]
    pub(super) fn wait(&mut self, hope: Hope) -> bool {
        if self.spent >= Self::ALL {
            return false;
        }
        self.spent += match hope {
            Hope::Soon => 1,
            Hope::Used => Self::ALL / 48,
            // What others brought in meanwhile may be behind the hand that looked.
            Hope::None => Self::ALL / 2,
        };
        self.backoff.wait();
        true
    }

    /// Others got the room that was made: all begins anew.
    pub(super) fn renew(&mut self) {
        self.spent = 0;
    }
}
