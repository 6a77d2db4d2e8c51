//! Asks the daemon for leases, and has their files mounted.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use glebe_lease::wire::{Flags, Name, Wish};
use glebe_lease::{Client, Lease, LeaseError};
use glebe_os::internal::sys::processes::thread;
use glebe_os::units::Bytes;

use super::{Helper, SegmentLender};
use crate::slot::{Held, Slot, State};
use crate::status::Counter;

/// Longest wait for a daemon that does not answer.
const LIMIT: Duration = Duration::from_secs(10);
/// Name of the connections and leases in lists.
const NAME: &str = "lend";
const DAEMON: &str = "daemon";
const MEMORY: &str = "memory";
const BRICK: &str = "brick";
const LEASE: &str = "lease";

/// The daemon's answer for a slot, and how long it took.
#[derive(Debug)]
pub(super) struct Made {
    slot: usize,
    got: Result<(Client, Lease), NotMade>,
    took: Duration,
}

#[derive(Debug)]
enum NotMade {
    Daemon(LeaseError),
    /// The daemon's brick, which the segment is no multiple of: a lease would be longer.
    Brick(Bytes),
}

impl From<LeaseError> for NotMade {
    fn from(error: LeaseError) -> Self {
        Self::Daemon(error)
    }
}

fn lease(daemon: &std::path::Path, len: Bytes) -> Result<(Client, Lease), NotMade> {
    let client = Client::connect_within(daemon, NAME, LIMIT)?.patience(Duration::ZERO);
    if len.get() % client.brick().get() != 0 {
        return Err(NotMade::Brick(client.brick()));
    }
    let flags = Flags { contiguous: false, one_file: true, revocable: true };
    let wish = Wish { bytes: len.get(), flags, name: Name::new(NAME), ..Wish::default() };
    let lease = client.lease(wish)?;
    Ok((client, lease))
}

impl SegmentLender {
    /// Returns the slot that is next, and when.
    fn next_slot(&self) -> Option<(usize, Instant)> {
        let may = matches!(self.helper, Helper::Ready(_)) && self.now.is_master_up;
        if !may || self.is_asking || self.is_stopping {
            return None;
        }
        let waits = |slot: &Slot| matches!(slot.state, State::Waiting);
        let waiting = self.slots.iter().enumerate().filter(|(_, slot)| waits(slot));
        let at = |slot: &Slot| slot.until.map_or(self.ask_at, |until| until.max(self.ask_at));
        waiting.map(|(nth, slot)| (nth, at(slot))).min_by_key(|(_, at)| *at)
    }

    pub(super) fn next_ask(&self) -> Option<Instant> {
        self.next_slot().map(|(_, at)| at)
    }

    /// Asks the daemon for one lease, in a thread.
    pub(super) fn ask(&mut self) {
        let Some((slot, at)) = self.next_slot() else { return };
        if at > Instant::now() {
            return;
        }
        let (daemon, len) = (self.settings.daemon.clone(), self.settings.segment);
        let (made, wake) = (self.made.0.clone(), Arc::clone(&self.wake));
        let started = thread::start("glebe-lend-ask", move || {
            let begin = Instant::now();
            let got = lease(&daemon, len);
            let _ = made.send(Made { slot, got, took: begin.elapsed() });
            wake.signal();
        });
        match started {
            Ok(()) => {
                self.is_asking = true;
                self.slots[slot].state = State::Asking;
            }
            Err(error) => {
                self.ask_at = Instant::now() + self.settings.every;
                self.tell("thread", &format!("no thread to ask for memory: {error}"));
            }
        }
    }

    pub(super) fn take_made(&mut self) {
        self.wake.clear();
        while let Ok(Made { slot, got, took }) = self.made.1.try_recv() {
            self.is_asking = false;
            self.slots[slot].rest(None, "");
            match got {
                // A lender that stops would mount it only to unmount it.
                Ok(_) if self.is_stopping => {}
                Ok((client, lease)) => self.mount(slot, client, lease, took),
                Err(why) => self.refused(&why),
            }
        }
    }

    fn mount(&mut self, slot: usize, client: Client, lease: Lease, given: Duration) {
        self.now.is_daemon_up = true;
        "answers".clone_into(&mut self.now.daemon);
        self.clear(DAEMON, "the daemon answers again");
        self.clear(MEMORY, "the daemon gives memory again");
        self.told.remove(BRICK);
        self.told.remove(LEASE);
        let Helper::Ready(agent) = &mut self.helper else { return };
        let Some(file) = lease.files().next().map(|file| file.as_raw_fd()) else { return };
        // The agent opens the lender's file by this path, so no descriptor has to be sent.
        let path = format!("/proc/{}/fd/{file}", std::process::id());
        let command = agent.tell(&format!("mount {path} {}", lease.len().get()));
        let (told, segment) = (Instant::now(), String::new());
        let held = Held { lease, client, given, command, told, segment, since: told, recall: None };
        self.slots[slot].state = State::Mounting(held);
        // A recall may have come with the lease.
        self.take_recalls(&[slot]);
    }

    fn refused(&mut self, why: &NotMade) {
        self.ask_at = Instant::now() + self.settings.every;
        let again = format!("asks again every {:?}", self.settings.every);
        let (trouble, text) = match why {
            NotMade::Daemon(LeaseError::Refused { text, .. }) => {
                self.count(Counter::NoMemory);
                (MEMORY, format!("gives no memory: {text}"))
            }
            NotMade::Brick(brick) => {
                let wish = "give a --segment that is a multiple of it";
                (BRICK, format!("has bricks of {brick}; {wish}, not {}", self.settings.segment))
            }
            NotMade::Daemon(
                error @ (LeaseError::NoDaemon { .. }
                | LeaseError::Silent { .. }
                | LeaseError::Malformed(_)
                | LeaseError::Connection(_)),
            ) => return self.daemon_lost(&format!("{error}; {again}")),
            NotMade::Daemon(error) => (LEASE, format!("gave memory that cannot be used: {error}")),
        };
        self.now.is_daemon_up = true;
        self.clear(DAEMON, "the daemon answers again");
        self.tell(trouble, &format!("the daemon {text}; {again}"));
        self.now.daemon = text;
    }

    pub(super) fn daemon_lost(&mut self, text: &str) {
        self.now.is_daemon_up = false;
        text.clone_into(&mut self.now.daemon);
        self.tell(DAEMON, text);
    }
}
