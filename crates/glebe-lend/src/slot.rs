//! [`Slot`] is the place of one segment, with its lease while it has one.
//!
//! ```text
//! Waiting --> Asking --> Mounting --> Lent --> Leaving --> Waiting
//!    ^          |           |          |          |
//!    +----------+           +----------+----------+--> Dying --> Waiting
//! ```
//! `Dying` waits for the end of a killed agent. Only `Leaving`, after a proven unmount, and `Dying`
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
    /// How long the daemon took for the lease, and the store for the mount.
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

/// The daemon's request for a lease.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recall {
    pub(crate) at: Instant,
    /// When the daemon takes the memory; `None` if it is not the daemon that wants it: the lender
    /// stops, or the daemon has ended.
    pub(crate) notice: Option<Duration>,
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
