//! [`SegmentLender`] is the loop that lends segments and takes them back.
//!
//! One thread waits for the daemon's recalls, the agent's answers and deadlines. Another one asks
//! the daemon for a lease, because the daemon zeroes its memory first. Each lease has its own
//! connection, so a recall never waits for an answer.

mod agents;
mod leases;
mod recalls;

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::Arc;
use std::time::{Duration, Instant};

use glebe_os::internal::sync::lock;
use glebe_os::internal::sys::files::event_fd::EventFd;
use glebe_os::internal::sys::files::socket::Bound;
use glebe_os::internal::sys::processes::time_slice;
use rustix::event::{poll, PollFd, PollFlags, Timespec};

use crate::agent::Agent;
use crate::backoff::Backoff;
use crate::log::Log;
use crate::settings::{LendError, Settings};
use crate::slot::{Held, Slot, State, Why};
use crate::status::{serve, Counter, Now, Shown};
use leases::Made;

/// The helper process.
#[derive(Debug)]
enum Helper {
    None,
    /// Its store is being set up, until then at most. It may have told why it cannot be, and ends.
    Starting {
        agent: Agent,
        until: Instant,
        has_told: bool,
    },
    Ready(Agent),
    /// It was killed, at that time. Its store may have had segments.
    Dying {
        agent: Agent,
        killed: Instant,
        was_ready: bool,
    },
}

/// Lends idle memory of a daemon as segments of a Mooncake Store.
#[derive(Debug)]
pub struct SegmentLender {
    /// Dropped first: the drop waits for the agent's end.
    helper: Helper,
    slots: Vec<Slot>,
    settings: Settings,
    shown: Arc<Shown>,
    _bound: Option<Bound>,
    /// When to start an agent, and the next pause after a failure.
    start_at: Instant,
    pause: Duration,
    /// The latest answer to a mount or an unmount. A check has a thread of the agent of its own.
    heard: Instant,
    /// A question for the master that has no answer, and when to ask the next one.
    check: Option<(u64, Instant)>,
    check_at: Instant,
    /// When to ask the daemon, and whether a thread does.
    ask_at: Instant,
    is_asking: bool,
    made: (Sender<Made>, Receiver<Made>),
    wake: Arc<EventFd>,
    is_stopping: bool,
    /// Troubles that were told and have not ended.
    told: BTreeSet<&'static str>,
    now: Now,
    log: Log,
}

/// The slots' descriptors follow this many others.
const FIXED: usize = 5;

/// Descriptors that are readable.
#[derive(Debug, Default)]
struct Readable {
    stop: bool,
    end: bool,
    slots: Vec<usize>,
}

impl SegmentLender {
    /// Checks the settings and Python's package, and serves the status.
    ///
    /// # Errors
    /// See [`LendError`].
    pub fn new(settings: Settings) -> Result<Self, LendError> {
        settings.check()?;
        Agent::check(&settings.python)?;
        let shown = Arc::new(Shown::new());
        let bound = settings.status.as_deref().map(|path| serve(path, &shown)).transpose()?;
        let segments = settings.segments();
        let slots = (0..segments)
            .map(|_| Slot::new(Backoff::new(settings.rest, settings.rest_max)))
            .collect();
        let now = Now {
            wanted: segments * settings.segment.get(),
            segment: settings.segment.get(),
            master: "not reached yet".to_owned(),
            daemon: "not asked yet".to_owned(),
            ..Now::default()
        };
        let begin = Instant::now();
        Ok(Self {
            helper: Helper::None,
            slots,
            settings,
            shown,
            _bound: bound,
            start_at: begin,
            pause: agents::PAUSE_MIN,
            heard: begin,
            check: None,
            check_at: begin,
            ask_at: begin,
            is_asking: false,
            made: std::sync::mpsc::channel(),
            wake: Arc::new(EventFd::new()?),
            is_stopping: false,
            told: BTreeSet::new(),
            now,
            log: Log::default(),
        })
    }

    /// Lends until `stop` is readable. Then all segments are unmounted.
    ///
    /// The calling thread gets short time slices, and the agent with it, so that a recall does not
    /// wait long for a busy processor.
    ///
    /// # Errors
    /// If the kernel refuses a call.
    pub fn run(&mut self, stop: BorrowedFd<'_>) -> Result<(), LendError> {
        time_slice::shorten();
        loop {
            if self.is_stopping && self.slots.iter().all(|slot| slot.state.held().is_none()) {
                return Ok(());
            }
            self.end_late();
            self.start_agent();
            self.check_master();
            self.ask();
            self.show();
            let readable = self.wait(stop)?;
            self.take_recalls(&readable.slots);
            self.take_answers();
            self.take_made();
            if readable.end {
                self.take_end();
            }
            if readable.stop {
                self.stop();
            }
        }
    }

    fn agent(&self) -> Option<&Agent> {
        match &self.helper {
            Helper::None => None,
            Helper::Starting { agent, .. } | Helper::Ready(agent) | Helper::Dying { agent, .. } => {
                Some(agent)
            }
        }
    }

    fn wait(&self, stop: BorrowedFd<'_>) -> io::Result<Readable> {
        let agent = self.agent();
        let held = |at: usize| self.slots[at].state.held();
        let waits: Vec<usize> = (0..self.slots.len())
            .filter(|at| held(*at).is_some_and(Held::may_be_recalled))
            .collect();
        let clients = waits.iter().filter_map(|at| held(*at));
        // `wake` fills the place of a missing agent, and of a stop that was seen.
        let wake = self.wake.as_fd();
        let stop_fd = if self.is_stopping { wake } else { stop };
        let [end, output, log] = agent.map_or([wake; 3], Agent::descriptors);
        let mut fds: Vec<PollFd<'_>> = [wake, stop_fd, end, output, log]
            .into_iter()
            .chain(clients.map(|held| held.client.as_fd()))
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        let left = self.next().map(|next| next.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut fds, left.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let is = |at: usize| !fds[at].revents().is_empty();
        Ok(Readable {
            stop: !self.is_stopping && is(1),
            end: agent.is_some() && is(2),
            slots: waits
                .iter()
                .enumerate()
                .filter(|(nth, _)| is(FIXED + nth))
                .map(|it| *it.1)
                .collect(),
        })
    }

    /// Returns the time of the next step without an event.
    fn next(&self) -> Option<Instant> {
        let helper = match &self.helper {
            Helper::None => (!self.is_stopping).then_some(self.start_at),
            Helper::Starting { until, .. } => Some(*until),
            Helper::Ready(_) => self.next_check(),
            Helper::Dying { .. } => self.end_of_dying(),
        };
        [helper, self.deadline(), self.next_ask()].into_iter().flatten().min()
    }

    fn stop(&mut self) {
        self.is_stopping = true;
        for at in 0..self.slots.len() {
            self.recall(at, Why::Stop);
        }
    }

    fn count(&self, counter: Counter) {
        self.shown.counts.add(counter, 1);
    }

    /// Logs an event.
    fn log(&mut self, text: &str) {
        self.log.line("glebe lend", text);
    }

    /// Logs a trouble once, until [`SegmentLender::clear`].
    fn tell(&mut self, trouble: &'static str, text: &str) {
        if self.told.insert(trouble) {
            self.log(text);
        }
    }

    /// Ends a trouble. Logs `text` if it was told.
    fn clear(&mut self, trouble: &'static str, text: &str) {
        if self.told.remove(trouble) {
            self.log(text);
        }
    }

    fn show(&mut self) {
        let now = Instant::now();
        let segment = self.settings.segment.get();
        let sum = |is: &dyn Fn(&Slot) -> bool| {
            self.slots.iter().filter(|slot| is(slot)).count() as u64 * segment
        };
        self.now.lent = sum(&|slot| matches!(slot.state, State::Lent(_)));
        self.now.resting = sum(&|slot| slot.is_resting(now));
        self.now.agent = self.agent().map_or(0, Agent::pid);
        self.now.segments = self.slots.iter().map(|slot| slot.words(now)).collect();
        *lock(&self.shown.now) = self.now.clone();
    }
}
