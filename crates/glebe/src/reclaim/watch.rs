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
    /// A threshold of a group's usage, which only version 1 has.
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
        Self { threshold: None, trigger, watched, refused: None }
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
    /// take tens of ms for it: not for times when memory is short.
    pub(super) fn arm(&mut self, bell: &Bell, group: &Group, level: Bytes, now: Instant) -> bool {
        if group.is_v2() {
            self.threshold = None;
            return false;
        }
        let near = level.get() >> LEVEL_SHIFT;
        let is_near = |armed: &UsageThreshold| armed.level().get().abs_diff(level.get()) <= near;
        let was_refused =
            self.refused.is_some_and(|at| now.saturating_duration_since(at) < REFUSED_FOR);
        if self.threshold.as_ref().is_some_and(is_near) || was_refused {
            return false;
        }
        self.threshold = None;
        let armed = UsageThreshold::arm(group.dir(), level);
        let added = armed.and_then(|it| bell.epoll.add(it.as_fd(), Wakes::Readable).map(|()| it));
        match added {
            Ok(threshold) => {
                self.threshold = Some(threshold);
                self.watched.threshold = Ok(group.dir().display().to_string());
            }
            Err(why) => {
                self.refused = Some(now);
                self.watched.threshold = Err(why.to_string());
            }
        }
        true
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
