//! [`Patience`] limits a call's wait for room: a quarter of a second while another thread loads or
//! evicts ([`Hope::Soon`]), some tens of milliseconds while guards pin pages ([`Hope::Used`]), else
//! two backoff steps.

use glebe_os::internal::sync::Backoff;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Hope {
    #[default]
    None,
    Used,
    Soon,
}

impl Hope {
    pub(super) fn rise(&mut self, found: Hope) {
        *self = found.max(*self);
    }
}

#[derive(Debug, Default)]
pub(super) struct Patience {
    backoff: Backoff,
    spent: u32,
}

impl Patience {
    const ALL: u32 = 240;

    #[cold]
    pub(super) fn wait(&mut self, hope: Hope) -> bool {
        if self.spent >= Self::ALL {
            return false;
        }
        self.spent += match hope {
            Hope::Soon => 1,
            Hope::Used => Self::ALL / 48,
            // Pages may have arrived where the clock hand has passed.
            Hope::None => Self::ALL / 2,
        };
        self.backoff.wait();
        true
    }

    pub(super) fn renew(&mut self) {
        self.spent = 0;
    }
}
