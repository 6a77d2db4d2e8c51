//! Gives segments back: unmounts them, and kills the agent if that takes too long.

use std::time::{Duration, Instant};

use glebe_lease::LeaseError;

use super::{Helper, SegmentLender};
use crate::backoff::pays_after;
use crate::slot::{Held, Recall, State, Why};
use crate::status::Counter;

/// Least time for the agent when the lender stops or the daemon has ended.
const OWN: Duration = Duration::from_secs(2);

impl SegmentLender {
    /// Looks for recalls of these slots.
    pub(super) fn take_recalls(&mut self, slots: &[usize]) {
        for at in slots.iter().copied() {
            // The daemon may have asked for the memory, and have taken it since.
            while self.take_recall(at) {}
        }
    }

    /// Takes one message of the daemon. Returns true if there may be another one.
    fn take_recall(&mut self, at: usize) -> bool {
        let Some(held) = self.slots[at].state.held() else { return false };
        let is_first = held.may_be_recalled();
        match held.lease.recalled(Duration::ZERO) {
            Ok(Some(notice)) => {
                self.count(Counter::Recalled);
                self.recall(at, Why::Notice(notice));
                return true;
            }
            Ok(None) => {}
            Err(LeaseError::Revoked) => {
                if is_first {
                    self.count(Counter::Recalled);
                }
                self.recall(at, Why::Lost);
                self.kill("the daemon took memory before the agent had unmounted it");
            }
            Err(error) => {
                self.count(Counter::DaemonLost);
                self.daemon_lost(&format!("{error}; its segments end"));
                self.recall(at, Why::Lost);
            }
        }
        false
    }

    /// Has a segment unmounted. The daemon's notice replaces the lender's own wish.
    pub(super) fn recall(&mut self, at: usize, why: Why) {
        let recall = Recall { at: Instant::now(), why };
        let state = &mut self.slots[at].state;
        match state.held_mut() {
            Some(held) if held.may_be_recalled() => held.recall = Some(recall),
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
        let patience = self.settings.patience;
        // The rest of the notice is for the agent's end.
        let of = |recall: Recall| match recall.notice() {
            None => recall.at + OWN.max(patience),
            Some(notice) => (recall.at.max(self.heard) + patience).min(recall.at + notice / 2),
        };
        waits.map(of).min()
    }

    /// Returns when recalled leases wait no longer for the end of the killed agent.
    pub(super) fn end_of_dying(&self) -> Option<Instant> {
        let Helper::Dying { killed, .. } = self.helper else { return None };
        let waits = self.slots.iter().filter_map(|slot| match &slot.state {
            State::Dying(held) => held.recall.and_then(|it| Some((it.at, it.notice()?))),
            _ => None,
        });
        let of = |(at, notice): (Instant, Duration)| at + notice / 4 * 3;
        waits.map(of).map(|latest| latest.min(killed + self.settings.patience)).min()
    }

    pub(super) fn end_late(&mut self) {
        if self.deadline().is_some_and(|deadline| deadline <= Instant::now()) {
            self.kill("no answer to an unmount in time");
        }
        if self.end_of_dying().is_none_or(|end| end > Instant::now()) {
            return;
        }
        for at in 0..self.slots.len() {
            match std::mem::take(&mut self.slots[at].state) {
                State::Dying(held) if held.recall.is_some_and(|it| it.notice().is_some()) => {
                    self.release(at, held, "cut from the agent, which is slow to end");
                }
                other => self.slots[at].state = other,
            }
        }
    }

    /// Kills the agent. The leases stay until its end, or until it takes long.
    pub(super) fn kill(&mut self, why: &str) {
        if matches!(self.helper, Helper::Ready(_)) {
            self.log(&format!("the agent is killed: {why}"));
            self.end_agent();
        }
    }

    pub(super) fn end_agent(&mut self) {
        let killed = Instant::now();
        self.helper = match std::mem::replace(&mut self.helper, Helper::None) {
            Helper::Ready(agent) => Helper::Dying { agent, killed, was_ready: true },
            Helper::Starting { agent, .. } => Helper::Dying { agent, killed, was_ready: false },
            other => return self.helper = other,
        };
        if let Some(agent) = self.agent() {
            agent.kill();
        }
        self.count(Counter::Killed);
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
        let recall = recall.filter(|recall| recall.notice().is_some());
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
