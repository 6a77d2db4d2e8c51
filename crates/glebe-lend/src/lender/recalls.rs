//! Gives segments back: unmounts them, and kills the agent if that takes too long.

use std::time::{Duration, Instant};

use glebe_lease::LeaseError;

use super::{Helper, Lender};
use crate::backoff::pays_after;
use crate::slot::{Held, Recall, State};
use crate::status::Counter;

/// Least time for the agent if no recall presses: the lender or the daemon ends.
const OWN: Duration = Duration::from_secs(2);

impl Lender {
    /// Looks for recalls of these slots.
    pub(super) fn take_recalls(&mut self, slots: &[usize]) {
        for at in slots.iter().copied() {
            let Some(held) = self.slots[at].state.held() else { continue };
            match held.lease.recalled(Duration::ZERO) {
                Ok(Some(notice)) => {
                    self.count(Counter::Recalled);
                    self.recall(at, Some(notice));
                }
                Ok(None) => {}
                Err(LeaseError::Revoked) => {
                    self.count(Counter::Recalled);
                    self.kill("the daemon took memory before the agent had unmounted it");
                }
                Err(error) => {
                    self.count(Counter::DaemonLost);
                    self.daemon_lost(&format!("{error}; its segments end"));
                    self.recall(at, None);
                }
            }
        }
    }

    /// Has a segment unmounted. Without a notice it is not the daemon that wants it.
    pub(super) fn recall(&mut self, at: usize, notice: Option<Duration>) {
        let now = Instant::now();
        // The rest of the notice is for the agent's end.
        let most = notice.map_or(OWN.max(self.settings.patience), |notice| notice / 2);
        let recall = Recall { at: now, latest: now + most, is_own: notice.is_none() };
        let state = &mut self.slots[at].state;
        match state.held_mut() {
            Some(held) if held.recall.is_none() => held.recall = Some(recall),
            _ => return,
        }
        if matches!(state, State::Lent(_)) {
            self.unmount(at);
        }
    }

    /// Sends the command to unmount a lent segment.
    pub(super) fn unmount(&mut self, at: usize) {
        let Helper::Ready(agent) = &mut self.helper else { return };
        match std::mem::take(&mut self.slots[at].state) {
            State::Lent(mut held) => {
                held.command = agent.tell(&format!("unmount {}", held.segment));
                held.told = Instant::now();
                self.slots[at].state = State::Leaving(held);
            }
            other => self.slots[at].state = other,
        }
    }

    /// Returns when to kill the agent, if a recall waits for it.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let waits = self.slots.iter().filter_map(|slot| match &slot.state {
            State::Mounting(held) | State::Leaving(held) => held.recall,
            _ => None,
        });
        let of = |recall: Recall| match recall.is_own {
            true => recall.latest,
            false => (recall.at.max(self.heard) + self.settings.patience).min(recall.latest),
        };
        waits.map(of).min()
    }

    pub(super) fn end_late(&mut self) {
        if self.deadline().is_some_and(|deadline| deadline <= Instant::now()) {
            self.kill("no answer to an unmount in time");
        }
    }

    /// Kills the agent. The leases stay until its end.
    pub(super) fn kill(&mut self, why: &str) {
        self.helper = match std::mem::replace(&mut self.helper, Helper::None) {
            Helper::Ready(agent) | Helper::Starting(agent, _) => {
                agent.kill();
                Helper::Dying(agent, Instant::now())
            }
            other => return self.helper = other,
        };
        self.count(Counter::Killed);
        self.log(&format!("the agent is killed: {why}"));
        self.doom();
    }

    /// Makes all leases wait for the agent's end.
    pub(super) fn doom(&mut self) {
        for slot in &mut self.slots {
            slot.state = match std::mem::take(&mut slot.state) {
                State::Mounting(held) | State::Lent(held) | State::Leaving(held) => {
                    State::Dying(held)
                }
                other => other,
            };
        }
    }

    /// Releases a lease that the agent no longer has, and logs why.
    pub(super) fn release(&mut self, at: usize, held: Held, how: &str) {
        let Held { lease, client, given, segment, since, recall, .. } = held;
        drop((lease, client));
        let now = Instant::now();
        let recall = recall.filter(|recall| !recall.is_own);
        let slot = &mut self.slots[at];
        let Some(Recall { at: asked, .. }) = recall else {
            let rest = slot.backoff.least();
            return slot.rest(Some(now + rest), "the agent or the daemon ended");
        };
        let took = now - asked;
        self.shown.recall.record(took.as_nanos() as u64);
        let lent = if segment.is_empty() {
            Duration::ZERO
        } else {
            asked.saturating_duration_since(since)
        };
        let pays = pays_after(self.settings.segment, given);
        let rest = slot.backoff.recalled(lent, pays);
        let (why, early) = match lent < pays {
            true => ("was recalled sooner than it paid", true),
            false => ("was recalled", false),
        };
        slot.rest(Some(now + rest), why);
        if early {
            self.count(Counter::Early);
        }
        let [lent, pays, rest] = [lent, pays, rest].map(|it| it.as_secs_f64());
        let took = took.as_secs_f64() * 1e3;
        self.log(&format!(
            "segment {at} is back {took:.1} ms after its recall, {how}; lent for {lent:.1} s, \
             pays after {pays:.1} s; rests {rest:.0} s"
        ));
    }
}
