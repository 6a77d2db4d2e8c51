//! Starts agents, takes their answers, and sees to their end.

use std::net::{IpAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use super::{Helper, SegmentLender};
use crate::agent::Agent;
use crate::line::{Answer, Refused};
use crate::slot::{Slot, State};
use crate::status::Counter;

/// Pauses between agents that cannot be set up: each twice as long as the one before.
pub(super) const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(15);
/// Longest wait for a connection to the master.
const REACH: Duration = Duration::from_secs(1);
/// Longest time for the store's setup. Without a master, the package tries for 90 s.
const SETUP: Duration = Duration::from_secs(15);
/// An agent that does not answer for this long is killed, even if nobody wants its memory.
const SILENCE: Duration = Duration::from_secs(30);
const MASTER: &str = "master";
const STORE: &str = "store";
const MOUNT: &str = "mount";
const HOST: &str = "host";

/// Connects to the master. Returns this host's address in the connection. Resolving the name may
/// take long. Nobody waits for it, because no segment is lent without an agent.
fn reach(master: &str) -> Result<IpAddr, String> {
    let mut last = "no address".to_owned();
    for address in master.to_socket_addrs().map_err(|error| error.to_string())? {
        let stream = TcpStream::connect_timeout(&address, REACH);
        match stream.and_then(|stream| stream.local_addr()) {
            Ok(own) => return Ok(own.ip()),
            Err(error) => last = error.to_string(),
        }
    }
    Err(last)
}

impl SegmentLender {
    pub(super) fn start_agent(&mut self) {
        let now = Instant::now();
        if let Helper::Starting { until, has_told, .. } = self.helper {
            if until <= now {
                if !has_told {
                    let text = format!("was not set up within {SETUP:?}");
                    self.not_set_up(MASTER, &text);
                }
                self.end_agent();
            }
            return;
        }
        if !matches!(self.helper, Helper::None) || self.is_stopping || self.start_at > now {
            return;
        }
        let master = self.settings.master.clone();
        let own = match reach(&master) {
            Ok(own) => own,
            Err(error) => {
                self.pause_starts();
                return self
                    .master_lost(&format!("the master at {master} is unreachable: {error}"));
            }
        };
        if own.is_loopback() && self.settings.host.is_none() {
            self.tell(HOST, &format!("other hosts cannot reach {own}; give --host if they shall"));
        }
        let host = self.settings.host.clone().unwrap_or_else(|| own.to_string());
        match Agent::start(&self.settings, &host) {
            Ok(agent) => {
                self.helper =
                    Helper::Starting { agent, until: Instant::now() + SETUP, has_told: false }
            }
            Err(error) => {
                self.pause_starts();
                self.tell(STORE, &format!("no agent: {error}"));
            }
        }
    }

    fn pause_starts(&mut self) {
        self.start_at = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }

    fn master_lost(&mut self, text: &str) {
        if self.now.is_master_up {
            self.count(Counter::MasterLost);
        }
        self.now.is_master_up = false;
        text.clone_into(&mut self.now.master);
        self.tell(MASTER, text);
    }

    /// Returns when an agent that does not answer is killed.
    fn end_of_silence(&self) -> Option<Instant> {
        let told = self.slots.iter().filter_map(|slot| match &slot.state {
            State::Mounting(held) | State::Leaving(held) => Some(held.told),
            _ => None,
        });
        let asked = self.check.map(|(_, asked)| asked);
        told.chain(asked).min().map(|since| since.max(self.heard) + SILENCE)
    }

    pub(super) fn next_check(&self) -> Option<Instant> {
        let next = self.check.is_none().then_some(self.check_at);
        next.into_iter().chain(self.end_of_silence()).min()
    }

    /// Asks the master by the agent, from time to time.
    pub(super) fn check_master(&mut self) {
        let now = Instant::now();
        if self.end_of_silence().is_some_and(|end| end <= now) {
            return self.kill(&format!("it did not answer for {SILENCE:?}"));
        }
        let Helper::Ready(agent) = &mut self.helper else { return };
        if self.check.is_none() && self.check_at <= now {
            self.check = Some((agent.tell("check"), now));
        }
    }

    /// Takes the agent's answers that are there.
    pub(super) fn take_answers(&mut self) {
        let (Helper::Starting { agent, .. } | Helper::Ready(agent) | Helper::Dying { agent, .. }) =
            &mut self.helper
        else {
            return;
        };
        let answers = agent.answers();
        agent.read_log(&mut self.log);
        if matches!(self.helper, Helper::Dying { .. }) {
            return;
        }
        for answer in answers {
            match answer {
                Answer { number: 0, body: Ok(text) } => self.set_up(&text),
                Answer { number: 0, body: Err(refused) } => self.set_up_refused(&refused),
                Answer { number, body } if self.check.is_some_and(|(check, _)| check == number) => {
                    self.checked(body);
                }
                Answer { number, body } => self.answered(number, body),
            }
        }
    }

    fn set_up(&mut self, text: &str) {
        self.helper = match std::mem::replace(&mut self.helper, Helper::None) {
            Helper::Starting { agent, .. } => Helper::Ready(agent),
            other => return self.helper = other,
        };
        self.count(Counter::Started);
        self.pause = PAUSE_MIN;
        (self.check, self.check_at) = (None, Instant::now() + self.settings.every);
        self.now.is_master_up = true;
        let (version, host) = text.split_once(' ').unwrap_or((text, ""));
        self.now.master = format!("answers; Mooncake {version}, this host is {host}");
        self.told.remove(STORE);
        self.told.remove(MASTER);
        let master = &self.settings.master;
        self.log(&format!("the master at {master} answers; Mooncake {version}, here {host}"));
    }

    /// The agent ends after this answer.
    fn set_up_refused(&mut self, refused: &Refused) {
        let Helper::Starting { agent, has_told, .. } = &mut self.helper else { return };
        let text = format!("is not set up: {refused}{}", agent.error());
        if !std::mem::replace(has_told, true) {
            self.not_set_up(STORE, &text);
        }
    }

    fn not_set_up(&mut self, trouble: &'static str, why: &str) {
        self.count(Counter::NotSetUp);
        let text = format!("the store at {} {why}", self.settings.master);
        self.now.is_master_up = false;
        self.now.master.clone_from(&text);
        self.tell(trouble, &text);
    }

    fn checked(&mut self, body: Result<String, Refused>) {
        (self.check, self.check_at) = (None, Instant::now() + self.settings.every);
        match body {
            Ok(_) => {
                self.now.is_master_up = true;
                "answers".clone_into(&mut self.now.master);
                let master = &self.settings.master;
                self.clear(MASTER, &format!("the master at {master} answers again"));
            }
            Err(refused) => {
                let master = &self.settings.master;
                self.master_lost(&format!("the master at {master} is lost: {refused}"));
            }
        }
    }

    /// Takes the answer to a mount or an unmount.
    fn answered(&mut self, number: u64, body: Result<String, Refused>) {
        self.heard = Instant::now();
        let is_of = |slot: &Slot| slot.state.held().is_some_and(|held| held.command == number);
        let Some(at) = self.slots.iter().position(is_of) else { return };
        match (std::mem::take(&mut self.slots[at].state), body) {
            (State::Mounting(mut held), Ok(segment)) => {
                let took = held.told.elapsed();
                self.shown.mount.record(took.as_nanos() as u64);
                self.count(Counter::Mounted);
                (held.segment, held.since, held.given) =
                    (segment, Instant::now(), held.given + took);
                let is_recalled = held.recall.is_some();
                self.slots[at].state = State::Lent(held);
                self.clear(MOUNT, "the store takes segments again");
                if is_recalled {
                    self.unmount(at);
                }
            }
            (State::Leaving(held), Ok(_)) => {
                let took = held.told.elapsed();
                self.shown.unmount.record(took.as_nanos() as u64);
                self.now.last_unmount = took;
                self.count(Counter::Unmounted);
                self.release(at, held, "unmounted");
            }
            (State::Mounting(held), Err(refused)) if !refused.is_mapped() => {
                self.count(Counter::Refused);
                let log = self.agent().map(Agent::error).unwrap_or_default();
                self.tell(MOUNT, &format!("the store refuses a segment: {refused}{log}"));
                (self.ask_at, self.check_at) =
                    (Instant::now() + self.settings.every, Instant::now());
                self.release(at, held, "not mounted");
                self.slots[at].why = "the store refused it";
            }
            (state, Err(refused)) => {
                self.slots[at].state = state;
                self.kill(&refused.to_string());
            }
            (state, Ok(_)) => self.slots[at].state = state,
        }
    }

    /// Sees to the agent's end.
    pub(super) fn take_end(&mut self) {
        self.take_answers();
        let was_ready = match std::mem::replace(&mut self.helper, Helper::None) {
            Helper::None => return,
            Helper::Starting { mut agent, has_told, .. } => {
                let status = agent.wait();
                if !has_told {
                    let last = agent.last_words();
                    self.not_set_up(
                        STORE,
                        &format!("is not set up: the agent ended: {status}{last}"),
                    );
                }
                false
            }
            Helper::Ready(mut agent) => {
                let (status, log) = (agent.wait(), agent.error());
                self.count(Counter::Died);
                self.log(&format!("the agent ended: {status}{log}; its segments are gone"));
                true
            }
            Helper::Dying { mut agent, killed, was_ready } => {
                agent.wait();
                self.shown.kill.record(killed.elapsed().as_nanos() as u64);
                was_ready
            }
        };
        self.check = None;
        self.doom();
        for at in 0..self.slots.len() {
            match std::mem::take(&mut self.slots[at].state) {
                State::Dying(held) => self.release(at, held, "after the agent's end"),
                other => self.slots[at].state = other,
            }
        }
        match was_ready {
            // Readers may use addresses of the old agent for the store's lease time.
            true => self.start_at = Instant::now() + self.settings.rest,
            false => self.pause_starts(),
        }
    }
}
