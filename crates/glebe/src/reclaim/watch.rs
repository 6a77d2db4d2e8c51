//! [`Watch`]: what wakes a reclaimer: a clock, a threshold of usage, stalls, a thread that wants
//! it to end; all behind one descriptor.
//!
//! Only the clock is sure. The others wake earlier where the kernel lets them, and what was refused
//! is kept as text ([`Watched`]). A threshold is armed anew when its level has moved, and a file
//! that ends is forgotten. Cost: a system call for each that is set or cleared.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::error::OsError;
use crate::sys::cgroup::events::Events;
use crate::sys::cgroup::usage::Group;
use crate::sys::epoll::{Epoll, Wakes};
use crate::sys::event_fd::{EventFd, TimerFd};
use crate::sys::psi;
use crate::sys::usage_threshold::UsageThreshold;
use crate::units::Bytes;

/// After a refusal it is tried again so much later.
const REFUSED_FOR: Duration = Duration::from_secs(60);
/// What a group of few processors is charged before the kernel looks at thresholds again.
const NEAR: Bytes = Bytes::mib(4);
/// A threshold that is off by less than this part of its level stays, as a shift.
const LEVEL_SHIFT: u32 = 6;

/// Which of the kernel's notices a reclaimer gets: the file of each, or why not.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Watched {
    /// The group with the least room, or the machine; what was wrong with the groups, where the
    /// machine decides for that.
    pub limit: Result<String, String>,
    /// That a group's usage is near its limit: a threshold in version 1, in version 2
    /// `memory.events`.
    pub threshold: Result<String, String>,
    /// Stalls for want of memory (PSI), or what `MEMORY_PRESSURE_WATCH` names.
    pub stalls: Result<String, String>,
}

/// What can be waited for without a lock.
#[derive(Debug)]
pub(super) struct Bell {
    epoll: Epoll,
    timer: TimerFd,
    stop: EventFd,
}

impl Bell {
    pub(super) fn new() -> Result<Self, OsError> {
        let bell = Self { epoll: Epoll::new()?, timer: TimerFd::new()?, stop: EventFd::new()? };
        bell.epoll.add(bell.timer.as_fd(), Wakes::Readable)?;
        bell.epoll.add(bell.stop.as_fd(), Wakes::Readable)?;
        Ok(bell)
    }

    /// Waits for anything, at most so long; whether the kernel told something.
    pub(super) fn wait(&self, time: Option<Duration>) -> Result<bool, OsError> {
        let own = [&self.timer.as_fd(), &self.stop.as_fd()].map(AsRawFd::as_raw_fd);
        let told = self.epoll.wait(time)?;
        Ok(told.iter().flatten().any(|event| !own.contains(&event.fd)))
    }

    /// Wakes the thread.
    pub(super) fn stop(&self) {
        self.stop.signal();
    }

    /// Wakes so much later, and not before for the clock's sake.
    pub(super) fn wake_after(&self, time: Duration) -> Result<(), OsError> {
        self.timer.clear();
        self.timer.set(time)
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Watch {
    threshold: Option<UsageThreshold>,
    /// Of a group of version 2.
    events: Option<Events>,
    trigger: Option<psi::Trigger>,
    watched: Watched,
    refused: Option<Instant>,
}

impl Watch {
    /// Begins with stalls; thresholds are armed when their level is known.
    pub(super) fn new(bell: &Bell, root: &Path, group: Option<&Group>) -> Self {
        let (trigger, stalls) = match stalls(bell, root, group) {
            Ok((trigger, path)) => (Some(trigger), Ok(path)),
            Err(why) => (None, Err(why.to_string())),
        };
        let threshold = Err("not armed: no group of version 1 has a limit and room".to_owned());
        let watched = Watched { limit: Ok(String::new()), threshold, stalls };
        Self { threshold: None, events: None, trigger, watched, refused: None }
    }

    /// What there is, beside the limit.
    pub(super) fn watched(&self, limit: Result<String, String>) -> Watched {
        Watched { limit, ..self.watched.clone() }
    }

    /// Whether a threshold tells when usage rises from `used` on: it must lie well above.
    pub(super) fn tells_above(&self, used: Bytes) -> bool {
        let above = |armed: &UsageThreshold| armed.level().saturating_sub(used);
        self.threshold.as_ref().is_some_and(|armed| above(armed) > NEAR)
    }

    /// Clears what woke; whether there was a notice of the kernel's.
    pub(super) fn settle(&mut self, bell: &Bell) -> bool {
        let mut was_told = self.threshold.as_ref().is_some_and(UsageThreshold::was_crossed);
        was_told |= self.settle_events();
        let Some(trigger) = &mut self.trigger else { return was_told };
        let own = trigger.as_fd().as_raw_fd();
        let is_over = match bell.epoll.wait(Some(Duration::ZERO)) {
            Ok(events) => {
                let of_trigger = events.iter().flatten().find(|event| event.fd == own);
                was_told |= of_trigger.is_some();
                of_trigger.is_some_and(|event| event.is_over)
            }
            Err(_) => false,
        };
        if is_over || !trigger.drain() {
            self.trigger = None;
            self.watched.stalls = Err("the file that was watched has ended".to_owned());
        }
        was_told
    }

    /// Has usage of `group` tell when it crosses `level`; whether that begins now. The kernel may
    /// take tens of ms for it: there is no level while memory is short. In version 2 the group's
    /// events tell instead.
    pub(super) fn arm(
        &mut self,
        bell: &Bell,
        group: &Group,
        level: Option<Bytes>,
        now: Instant,
    ) -> bool {
        let was_refused =
            self.refused.is_some_and(|at| now.saturating_duration_since(at) < REFUSED_FOR);
        if group.is_v2() {
            self.threshold = None;
            if !was_refused {
                self.follow_events(bell, group, now);
            }
            return false;
        }
        self.events = None;
        let Some(level) = level.filter(|level| !was_refused && !self.is_armed_near(*level)) else {
            return false;
        };
        self.threshold = None;
        let armed = UsageThreshold::arm(group.dir(), level);
        let added = armed.and_then(|it| bell.epoll.add(it.as_fd(), Wakes::Readable).map(|()| it));
        match added {
            Ok(threshold) => {
                self.threshold = Some(threshold);
                self.watched.threshold = Ok(group.dir().display().to_string());
            }
            Err(why) => self.refuse(&why, now),
        }
        true
    }

    fn is_armed_near(&self, level: Bytes) -> bool {
        let off = |armed: &UsageThreshold| armed.level().get().abs_diff(level.get());
        self.threshold.as_ref().is_some_and(|armed| off(armed) <= level.get() >> LEVEL_SHIFT)
    }

    fn refuse(&mut self, why: &OsError, now: Instant) {
        self.refused = Some(now);
        self.watched.threshold = Err(why.to_string());
    }

    /// Has events of a group of version 2 wake, as far as the kernel lets them.
    fn follow_events(&mut self, bell: &Bell, group: &Group, now: Instant) {
        let is_known = |events: &Events| events.path().parent() == Some(group.dir());
        if self.events.as_ref().is_some_and(is_known) {
            return;
        }
        match Events::open(group.dir()) {
            Ok(events) => {
                let added = bell.epoll.add(events.as_fd(), Wakes::Urgent);
                let path = events.path().display().to_string();
                self.watched.threshold = added.map(|()| path).map_err(|why| why.to_string());
                self.events = Some(events);
            }
            Err(why) => self.refuse(&why, now),
        }
    }

    /// Whether the group met a limit. Read at every look: it may be that it cannot be waited for.
    fn settle_events(&mut self) -> bool {
        let Some(events) = &mut self.events else { return false };
        events.has_more().unwrap_or_else(|why| {
            self.watched.threshold = Err(why.to_string());
            self.events = None;
            false
        })
    }
}

/// What the environment names, else the file of the group, else that of the machine.
fn stalls(
    bell: &Bell,
    root: &Path,
    group: Option<&Group>,
) -> Result<(psi::Trigger, String), OsError> {
    let var = std::env::var_os;
    let (watch, write) = (var("MEMORY_PRESSURE_WATCH"), var("MEMORY_PRESSURE_WRITE"));
    let watch = match psi::Watch::named(watch.as_deref(), write.as_deref())? {
        Some(watch) => watch,
        None => match group.filter(|group| group.is_v2()) {
            Some(group) => psi::Watch::group(group.dir()),
            None => psi::Watch::system(root),
        },
    };
    let trigger = psi::Trigger::open(&watch)?;
    bell.epoll.add(trigger.as_fd(), trigger.wakes())?;
    Ok((trigger, watch.path.display().to_string()))
}
