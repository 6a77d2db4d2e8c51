//! Refuses requests for lack of memory, and sees to more: by growth, or by recalls of leases.

use std::time::Instant;

use glebe::internal::sync::Ordering;
use glebe::reserve::ReserveError;
use glebe::units::{Bytes, Pages};
use glebe_lease::wire::{Answer, Message};
use rustix::io::Errno;

use super::{Refusal, Server};
use crate::growth::Task;
use crate::stats::Counter;

impl Server {
    /// A revocable request neither adds memory nor recalls leases: it only takes idle memory.
    pub(super) fn refusal(
        &mut self,
        pages: Pages,
        is_revocable: bool,
        error: &ReserveError,
    ) -> Refusal {
        let longest = self.longest();
        let bytes = pages.bytes(glebe::page_size()).get();
        let returning = self.kept.returning.load(Ordering::Acquire);
        // Memory that comes back may complete a run; a recall is of use only if bytes are missing.
        let missing = bytes.saturating_sub(self.free()).saturating_sub(returning);
        let is_for_lack =
            matches!(error, ReserveError::NoRun { .. } | ReserveError::NoAlignedRun { .. });
        let is_coming = missing == 0 && returning > 0;
        let more = if missing > 0 { missing } else { bytes };
        let may_press = is_for_lack && !is_revocable;
        if may_press && !is_coming && self.add_memory(more) {
            let text = "memory is being added".to_owned();
            return Refusal { errno: Errno::AGAIN, limit: longest, text };
        }
        let is_taken =
            may_press && missing > 0 && (self.ask_back(missing) || self.soon_revocable > 0);
        if is_for_lack && is_coming || is_taken {
            let notice = self.settings.notice.as_millis();
            let text = format!("memory is being taken back, within {notice} ms or a little more");
            return Refusal { errno: Errno::AGAIN, limit: longest, text };
        }
        let [asked, run] = [bytes, longest].map(Bytes::new);
        let brick = self.brick;
        let text = format!(
            "{asked} asked for, in bricks of {brick}; the longest free run has {run}: {error}"
        );
        Refusal { errno: Errno::NOMEM, limit: longest, text }
    }

    /// Returns the bytes that may be added to the reserve.
    pub(super) fn growable(&self) -> u64 {
        self.kept.growth.left(self.kept.grown(&self.reserve)).get()
    }

    /// Asks the grower for memory. Returns false if there may be no more.
    fn add_memory(&mut self, bytes: u64) -> bool {
        let bytes = bytes.next_multiple_of(self.brick.get());
        let asked = &self.kept.growth.asked;
        if asked.load(Ordering::Acquire) > 0 {
            return true;
        }
        let may = bytes <= self.growable();
        if may {
            asked.store(bytes, Ordering::Release);
        }
        may && self.grower.send(Task::Add(Bytes::new(bytes))).is_ok()
    }

    fn ask_back(&mut self, missing: u64) -> bool {
        let until = Instant::now() + self.settings.notice;
        let Some(asked) = self.leases.recall(missing, until) else { return false };
        let milliseconds = self.settings.notice.as_millis() as u64;
        for (lease, key) in asked {
            self.count(Counter::Recalled);
            let _ =
                self.send(key, Message { call: 0, lease, body: Answer::Recall { milliseconds } });
        }
        true
    }
}
