//! [`Patience`]: how long a call waits for room before it is refused.
//!
//! A load or eviction ends soon even on a busy machine: a call waits a quarter of a second for it.
//! A guard may live for ever: a call waits some tens of milliseconds for it.

use glebe_os::internal::sync::Backoff;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Hope {
    /// Nothing in memory will leave.
    #[default]
    None,
    /// Guards keep some memory, possibly for ever.
    Used,
    /// Another thread is loading or evicting.
    Soon,
}

impl Hope {
    pub(super) fn rise(&mut self, found: Hope) {
        *self = found.max(*self);
    }
}

/// The waits of one call, a millisecond each after the first.
#[derive(Debug, Default)]
pub(super) struct Patience {
    backoff: Backoff,
    spent: u32,
}

impl Patience {
    const ALL: u32 = 240;

    /// Waits a little. Returns false if patience is exhausted.
    #[cold]
    pub(super) fn wait(&mut self, hope: Hope) -> bool {
        if self.spent >= Self::ALL {
            return false;
        }
        self.spent += match hope {
            Hope::Soon => 1,
            Hope::Used => Self::ALL / 48,
            // The hand may have missed pages that arrived meanwhile.
            Hope::None => Self::ALL / 2,
        };
        self.backoff.wait();
        true
    }

    /// Restores all patience: room was made, but other threads took it.
    pub(super) fn renew(&mut self) {
        self.spent = 0;
    }
}
