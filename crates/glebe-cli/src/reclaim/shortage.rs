//! [`Shortage`] logs when a shortage of memory begins and when it has been over for a while.

use std::time::{Duration, Instant};

use glebe::reclaim::{ReclaimError, Reclaimed, Reclaimer, Watched};
use glebe::units::{Bytes, Pages};

use super::log::Log;

/// Time with enough memory before a shortage counts as over.
const OVER: Duration = Duration::from_secs(1);

#[derive(Default)]
pub struct Shortage {
    /// Time of the last poll that found memory short; `None` after the shortage.
    last: Option<Instant>,
    is_blind: bool,
    groups: Option<String>,
}

impl Shortage {
    pub fn is_short(&self) -> bool {
        self.last.is_some()
    }

    /// Logs the result of a poll. Returns true if a shortage begins or ends.
    pub fn look(
        &mut self,
        done: Result<Reclaimed, ReclaimError>,
        reclaimer: &Reclaimer,
        now: Instant,
        log: Log,
    ) -> bool {
        let done = match done {
            Ok(done) => done,
            Err(why) => {
                if !self.is_blind {
                    log.warn(why);
                }
                self.is_blind = true;
                return false;
            }
        };
        if std::mem::take(&mut self.is_blind) {
            log.tell("how much memory there is can be told again");
        }
        let stats = reclaimer.stats();
        let bytes = |pages: Pages| pages.bytes(glebe::page_size());
        let (room, limit, margin) = (bytes(stats.room), bytes(stats.limit), bytes(stats.margin));
        if done.asked > Bytes::ZERO || room < margin {
            let (asked, freed) = (done.asked, done.freed());
            let failed = match done.failed {
                0 => String::new(),
                n => format!("; {n} purges failed"),
            };
            log.detail(format!(
                "{freed} freed of {asked}; {room} to be had, the margin {margin}{failed}"
            ));
            if self.last.replace(now).is_some() {
                return false;
            }
            log.tell(match asked {
                Bytes::ZERO => format!(
                    "memory is short: {room} of {limit} to be had, less than {margin}; \
                    nothing can be purged"
                ),
                _ => format!("memory is short: of {limit}, {asked} are to go"),
            });
            return true;
        }
        let is_over = self.last.is_some_and(|last| now.saturating_duration_since(last) >= OVER);
        if is_over {
            self.last = None;
            log.tell(format!("memory is short no more: {room} of {limit} to be had"));
        }
        is_over
    }

    /// Logs when the groups become unreadable or readable again, and each new reason.
    pub fn groups(&mut self, watched: &Watched, log: Log) {
        let wrong = watched.limit.as_ref().err().cloned();
        if wrong != self.groups {
            match &wrong {
                Some(why) => log.warn(format!("{why}: the machine's memory counts alone")),
                None => log.tell("the limits of the groups count again"),
            }
        }
        self.groups = wrong;
    }
}
