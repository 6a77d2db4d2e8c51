//! [`Slot`] is the place of one segment, with its lease while it has one.
//!
//! | from | to | when |
//! |---|---|---|
//! | Waiting | Asking | a thread asks the daemon for the lease |
//! | Asking | Mounting | the lease came, and the agent was told to mount it |
//! | Asking | Waiting | the daemon gave none, or there is no agent any more |
//! | Mounting | Lent | the store has the segment |
//! | Mounting | Waiting | the store refused it, and nothing is mapped |
//! | Lent | Leaving | the agent was told to unmount it |
//! | Leaving | Waiting | the agent has proved that nothing is mapped |
//! | Mounting, Lent, Leaving | Dying | the agent was killed, or ended |
//! | Dying | Waiting | the agent has ended, or takes long to |
//!
//! Only `Leaving`, after a proven unmount, and `Dying`
//! release a lease that was mounted. If the agent takes long to end, a recalled lease does not wait
//! for it: the daemon cuts the file of a released lease, which ends the access of every process
//! before a page of it can be given to another one.

use std::time::{Duration, Instant};

use glebe_lease::{Client, Lease};

use crate::backoff::Backoff;

/// A lease, and the segment that it is or becomes.
#[derive(Debug)]
pub(crate) struct Held {
    /// Dropped before the connection.
    pub(crate) lease: Lease,
    pub(crate) client: Client,
    /// Time that the lease and the mount took.
    pub(crate) given: Duration,
    /// The latest command to the agent, and its time.
    pub(crate) command: u64,
    pub(crate) told: Instant,
    /// The segment's name in the store; empty until it is mounted.
    pub(crate) segment: String,
    /// When it was mounted.
    pub(crate) since: Instant,
    pub(crate) recall: Option<Recall>,
}

/// Why a segment has to leave, and since when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recall {
    pub(crate) at: Instant,
    pub(crate) why: Why,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// The daemon wants the memory, and takes it after that time.
    Notice(Duration),
    /// The lender stops.
    Stop,
    /// The daemon has ended, or has taken the memory.
    Lost,
}

impl Recall {
    pub(crate) fn notice(self) -> Option<Duration> {
        match self.why {
            Why::Notice(notice) => Some(notice),
            Why::Stop | Why::Lost => None,
        }
    }
}

impl Held {
    /// Returns true if the daemon may still ask for the lease. The connection of a lost daemon is
    /// readable for ever, so nobody waits for it.
    pub(crate) fn may_be_recalled(&self) -> bool {
        self.recall.is_none_or(|recall| recall.why == Why::Stop)
    }
}

#[derive(Debug, Default)]
pub(crate) enum State {
    #[default]
    Waiting,
    Asking,
    Mounting(Held),
    Lent(Held),
    Leaving(Held),
    Dying(Held),
}

#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) state: State,
    pub(crate) backoff: Backoff,
    /// It waits until then.
    pub(crate) until: Option<Instant>,
    /// Why it rests, for the status.
    pub(crate) why: &'static str,
}

impl State {
    pub(crate) fn held(&self) -> Option<&Held> {
        match self {
            Self::Waiting | Self::Asking => None,
            Self::Mounting(held) | Self::Lent(held) | Self::Leaving(held) | Self::Dying(held) => {
                Some(held)
            }
        }
    }

    pub(crate) fn held_mut(&mut self) -> Option<&mut Held> {
        match self {
            Self::Waiting | Self::Asking => None,
            Self::Mounting(held) | Self::Lent(held) | Self::Leaving(held) | Self::Dying(held) => {
                Some(held)
            }
        }
    }
}

impl Slot {
    pub(crate) fn new(backoff: Backoff) -> Self {
        Self { state: State::Waiting, backoff, until: None, why: "" }
    }

    pub(crate) fn is_resting(&self, now: Instant) -> bool {
        matches!(self.state, State::Waiting) && self.until.is_some_and(|until| until > now)
    }

    /// Makes the slot wait.
    pub(crate) fn rest(&mut self, until: Option<Instant>, why: &'static str) {
        self.state = State::Waiting;
        (self.until, self.why) = (until, why);
    }

    /// Returns the state in words.
    pub(crate) fn words(&self, now: Instant) -> String {
        let seconds = |duration: Duration| duration.as_secs_f64().ceil() as u64;
        match &self.state {
            State::Waiting if self.is_resting(now) => {
                let left = self.until.map_or(Duration::ZERO, |until| until - now);
                format!("rests {} s: {}", seconds(left), self.why)
            }
            State::Waiting => "waits for memory".to_owned(),
            State::Asking => "asks for memory".to_owned(),
            State::Mounting(_) => "is being mounted".to_owned(),
            State::Lent(held) => format!("lent for {} s", held.since.elapsed().as_secs()),
            State::Leaving(_) => "is being unmounted".to_owned(),
            State::Dying(_) => "waits for the agent's end".to_owned(),
        }
    }
}
