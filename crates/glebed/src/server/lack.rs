//! Refuses requests for lack of memory, and sees to more: by growth, or by recalls of leases.

use std::time::Instant;

use glebe::internal::sync::Ordering;
use glebe::reserve::ReserveError;
use glebe::units::{Bytes, Pages};
use glebe_lease::wire::{Answer, Flags, Message};
use rustix::io::Errno;

use super::cached::SWEEP;
use super::{Refusal, Server};
use crate::growth::Task;
use crate::stats::Counter;

impl Server {
    /// A revocable request takes idle memory only: no memory of caches or leases, and no growth.
    pub(super) fn refusal(&mut self, pages: Pages, flags: Flags, error: &ReserveError) -> Refusal {
        let longest = self.longest();
        let bytes = pages.bytes(glebe::page_size()).get();
        let returning = self.kept.returning.load(Ordering::Acquire);
        let of_caches = if flags.revocable { self.caches.bytes() } else { 0 };
        let free = self.free_with_filling().saturating_sub(of_caches);
        let missing = bytes.saturating_sub(free).saturating_sub(returning);
        let is_for_lack =
            matches!(error, ReserveError::NoRun { .. } | ReserveError::NoAlignedRun { .. });
        // Memory that comes back may complete a run.
        let is_coming = missing == 0 && (returning > 0 || self.coming > 0);
        let more = if missing > 0 { missing } else { bytes };
        let may_press = is_for_lack && !flags.revocable;
        if may_press && !is_coming && self.add_memory(more) {
            let text = "memory is being added".to_owned();
            return Refusal { errno: Errno::AGAIN, limit: longest, text };
        }
        let notice = self.settings.notice.as_millis();
        let taken = format!("memory is being taken back, within {notice} ms or a little more");
        let taken = match is_for_lack && is_coming {
            true => Some(taken),
            false if may_press && missing > 0 => self.recalled(missing, taken),
            false if may_press && flags.contiguous => self.recalled_for_run(bytes, taken),
            false => None,
        };
        if let Some(text) = taken {
            return Refusal { errno: Errno::AGAIN, limit: longest, text };
        }
        let [asked, run] = [bytes, longest].map(Bytes::new);
        let (brick, none) = (self.brick, self.none_added());
        let text = format!(
            "{asked} asked for, in bricks of {brick}; the longest free run has {run}: {error}{none}"
        );
        Refusal { errno: Errno::NOMEM, limit: longest, text }
    }

    /// Recalls leases if all revocable ones, with those that are being made, have `bytes`. Returns
    /// why the request may succeed soon: `taken`, or that a lease is being made.
    fn recalled(&mut self, bytes: u64, taken: String) -> Option<String> {
        let there = self.leases.revocable_bytes();
        if there >= bytes {
            self.ask_back(bytes);
            return Some(taken);
        }
        let making = "a revocable lease is being made, and can be taken back then";
        (there + self.soon_revocable >= bytes).then(|| making.to_owned())
    }

    /// Recalls leases whose memory may complete a run. Users cannot end all revocable leases by
    /// requests for runs that never come.
    fn recalled_for_run(&mut self, bytes: u64, taken: String) -> Option<String> {
        if self.leases.next_end().is_some() {
            return Some(taken);
        }
        let least = bytes.min(self.leases.revocable_bytes() + self.soon_revocable);
        if least == 0 || self.next_recall > Instant::now() {
            return None;
        }
        let recalled = self.recalled(least, taken);
        if self.leases.next_end().is_some() {
            self.next_recall = Instant::now() + SWEEP;
        }
        recalled
    }

    /// Returns the bytes that may be added to the reserve.
    pub(super) fn growable(&self) -> u64 {
        self.kept.growth.left(self.kept.grown(&self.reserve)).get()
    }

    /// Returns the end of a refusal's text: why no memory is added now.
    pub(super) fn none_added(&self) -> String {
        self.kept.growth.resting().map_or_else(String::new, |why| format!("; {why}"))
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

    fn ask_back(&mut self, missing: u64) {
        let until = Instant::now() + self.settings.notice;
        let milliseconds = self.settings.notice.as_millis() as u64;
        for (lease, key) in self.leases.recall(missing, until) {
            self.count(Counter::Recalled);
            let _ =
                self.send(key, Message { call: 0, lease, body: Answer::Recall { milliseconds } });
        }
    }
}
