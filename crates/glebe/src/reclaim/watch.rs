//! [`Watch`] arms the kernel's notices. Only the timer is certain to wake a reclaimer, because the
//! kernel may refuse notices.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use glebe_os::error::OsError;
use glebe_os::internal::sys::files::epoll::{Epoll, Wakes};
use glebe_os::internal::sys::files::event_fd::{EventFd, TimerFd};
use glebe_os::internal::sys::machine::cgroup::events::Events;
use glebe_os::internal::sys::machine::cgroup::usage::Group;
use glebe_os::internal::sys::machine::psi;
use glebe_os::internal::sys::machine::usage_threshold::UsageThreshold;
use glebe_os::units::Bytes;

const REFUSED_FOR: Duration = Duration::from_secs(60);
/// Bytes that may be charged before the kernel checks a threshold.
const NEAR: Bytes = Bytes::mib(4);
/// An armed threshold stays if the new level differs by at most `level >> LEVEL_SHIFT`.
const LEVEL_SHIFT: u32 = 6;

/// `Watched` names the source of each kernel notice, or why there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Watched {
    /// The group with the least room, or "the machine".
    pub limit: Result<String, String>,
    /// Usage near a group's limit: a threshold in cgroup version 1, `memory.events` in version 2.
    pub threshold: Result<String, String>,
    /// Stalls (PSI), or the file of `MEMORY_PRESSURE_WATCH`.
    pub stalls: Result<String, String>,
}

/// `Bell` lets a thread wait without the reclaimer's lock.
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

    pub(super) fn wait(&self, time: Option<Duration>) -> Result<bool, OsError> {
        let own = [&self.timer.as_fd(), &self.stop.as_fd()].map(AsRawFd::as_raw_fd);
        let told = self.epoll.wait(time)?;
        Ok(told.iter().flatten().any(|event| !own.contains(&event.fd)))
    }

    pub(super) fn stop(&self) {
        self.stop.signal();
    }

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

#[derive(Debug)]
pub(super) struct Watch {
    threshold: Option<UsageThreshold>,
    events: Option<Events>,
    trigger: Option<psi::Trigger>,
    watched: Watched,
    refused: Option<Instant>,
}

impl Watch {
    /// Watches only stalls, because the threshold's level is unknown yet.
    pub(super) fn new(bell: &Bell, root: &Path, group: Option<&Group>) -> Self {
        let (trigger, stalls) = match stalls(bell, root, group) {
            Ok((trigger, path)) => (Some(trigger), Ok(path)),
            Err(why) => (None, Err(why.to_string())),
        };
        let threshold = Err("not armed: no group of version 1 has a limit and room".to_owned());
        let watched = Watched { limit: Ok(String::new()), threshold, stalls };
        Self { threshold: None, events: None, trigger, watched, refused: None }
    }

    pub(super) fn watched(&self, limit: Result<String, String>) -> Watched {
        Watched { limit, ..self.watched.clone() }
    }

    pub(super) fn tells_above(&self, used: Bytes) -> bool {
        let above = |armed: &UsageThreshold| armed.level().saturating_sub(used);
        self.threshold.as_ref().is_some_and(|armed| above(armed) > NEAR)
    }

    /// Returns true if the kernel gave a notice since the last call.
    pub(super) fn settle(&mut self, bell: &Bell) -> bool {
        let mut was_told = self.threshold.as_ref().is_some_and(UsageThreshold::was_crossed);
        was_told |= self.settle_events();
        let Some(trigger) = &mut self.trigger else { return was_told };
        let own = trigger.as_fd().as_raw_fd();
        let events = bell.epoll.wait(Some(Duration::ZERO)).unwrap_or_default();
        let event = events.iter().flatten().find(|event| event.fd == own);
        // The read also sees a notice that arrived after the wait.
        let read = trigger.drain();
        was_told |= event.is_some() || read.had_bytes;
        if event.is_some_and(|event| event.is_over) || read.is_over {
            self.trigger = None;
            self.watched.stalls = Err("the file that was watched has ended".to_owned());
        }
        was_told
    }

    /// Arms a threshold at `level` (cgroup version 1) or follows the group's events (version 2).
    /// Returns true after trying to arm. `level` is `None` while memory is short, because arming
    /// takes up to tens of ms.
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

    /// Returns true if the group hit a limit since the last call. Each look calls this, because
    /// epoll may refuse `memory.events`.
    fn settle_events(&mut self) -> bool {
        let Some(events) = &mut self.events else { return false };
        events.has_more().unwrap_or_else(|why| {
            self.watched.threshold = Err(why.to_string());
            self.events = None;
            false
        })
    }
}

fn stalls(
    bell: &Bell,
    root: &Path,
    group: Option<&Group>,
) -> Result<(psi::Trigger, String), OsError> {
    let var = std::env::var_os;
    let (watch, write) = (var("MEMORY_PRESSURE_WATCH"), var("MEMORY_PRESSURE_WRITE"));
    let watch = match psi::PsiWatch::named(watch.as_deref(), write.as_deref())? {
        Some(watch) => watch,
        None => match group.filter(|group| group.is_v2()) {
            Some(group) => psi::PsiWatch::group(group.dir()),
            None => psi::PsiWatch::system(root),
        },
    };
    let trigger = psi::Trigger::open(&watch)?;
    bell.epoll.add(trigger.as_fd(), trigger.wakes())?;
    Ok((trigger, watch.path.display().to_string()))
}
