//! [`Stats`] of a store or region satisfies three conditions while no call runs:
//!
//! * `created_pages = freed_pages + resident_pages + stored_pages + buried_pages`
//! * `resident_pages = charged_pages <= budget_pages + over_budget_pages`
//! * `coded + raw + filled + reused = evicted + rescued + stayed`

use super::file::SpillFile;
use super::store::Store;
use super::word::{look, WordState};
use glebe_os::internal::stats::{shown, statistics, texts};
use glebe_os::internal::sys::page_size;
use glebe_os::units::{Bytes, Pages};

statistics! {
    labels {}
    counters {
        Created created_pages Pages "pages of objects that were made";
        Freed freed_pages Pages "pages of objects that were freed or taken";
        Dead dead_pages Pages "pages of objects of which the program said that they are dead";
        Loaded loaded Count "objects that were brought to memory";
        Evicted evicted Count "objects that left memory";
        Rescued rescued Count "objects chosen to leave that were used before they had";
        Stayed stayed Count "objects whose pages the kernel did not take";
        Coded coded Count "copies made by the codec";
        Raw raw Count "copies of objects that do not get smaller";
        Filled filled Count "copies of objects that one word fills, which take no room";
        Reused reused Count "objects that left by a copy that was kept";
        KeptDropped kept_dropped Count "kept copies that made room for others";
        Spilled spilled Count "copies that went from the pool to the file";
        SpilledBytes spilled_bytes Bytes "bytes of them";
        ReadBack read_back Count "objects that were brought to memory from the file";
        LoadedIdle loaded_idle Count "objects that the file has and that came from a swap cache";
        CodedBytes coded_bytes Bytes "bytes of objects that the codec made smaller";
        BlockBytes block_bytes Bytes "bytes that it made of them";
        Damaged damaged Count "copies that were not what was stored";
        MovedOut moved_out_pages Pages "pages of a region that were moved into the window";
        Retouched retouched_pages Pages "pages of a region that came back from the window";
        ReadAhead read_ahead_pages Pages "pages of a region that were loaded before a touch";
        Over came_over_pages Pages "pages of a region that came though nothing could leave";
        Refused refused Count "times that no room could be made";
        Stuck stuck_pages Pages "pages nobody wants that the kernel did not take back";
    }
    gauges {
        resident "resident_pages" "pages of objects in memory";
        pinned "pinned_pages" "pages of those that guards pin";
        kept "kept_pages" "pages of those that have a copy too";
        stored "stored_pages" "pages of objects that are not in memory";
        window "window_pages" "pages of a region that wait to be compressed, of those in memory";
        buried "buried_pages" "pages of dead objects that were not freed, which take no memory";
        charged "charged_pages" "pages charged to the budget";
        budget "budget_pages" "the budget";
        over "over_budget_pages" "pages charged beyond it";
        pool "pool_pages" "memory of the copies, everything counted";
        file "file_pages" "pages of the file that hold copies";
    }
    durations {
        load "load" "load" "objects brought to memory";
    }
}

impl Store {
    /// Returns the statistics; zeros in a forked child. Cost: O(objects).
    #[must_use]
    pub fn stats(&self) -> Stats {
        if self.alive().is_err() {
            return Stats::default();
        }
        let mut stats = Stats {
            charged: Pages::new(self.room.charged()),
            budget: Pages::new(self.room.budget()),
            pool: self.copies.pool.held().pages_up(page_size()),
            file: self
                .copies
                .file
                .as_ref()
                .map_or(Bytes::ZERO, SpillFile::held)
                .pages_up(page_size()),
            load: self.loads.snapshot(),
            ..self.counts.sum()
        };
        for slot in self.places.all() {
            let (word, pages) = (look(slot.word()), Pages::new(slot.place().pages()));
            match word.state() {
                WordState::Hole => {}
                WordState::Resident | WordState::Leaving => {
                    stats.resident = stats.resident + pages;
                    if word.guards() > 0 {
                        stats.pinned = stats.pinned + pages;
                    }
                    if word.has_copy() {
                        stats.kept = stats.kept + pages;
                    }
                }
                _ if word.is_dead() => stats.buried = stats.buried + pages,
                _ => stats.stored = stats.stored + pages,
            }
        }
        stats
    }
}

impl Stats {
    /// Tests the conditions while no call runs.
    ///
    /// # Errors
    /// The condition that fails, with its values.
    pub fn check(&self) -> Result<(), String> {
        let same = |what: &str, a: u64, b: u64| {
            (a == b).then_some(()).ok_or_else(|| format!("{what}: {a} is not {b}"))
        };
        let there = self.resident.get() + self.stored.get() + self.buried.get();
        same("created", self.created_pages, self.freed_pages + there)?;
        same("charged", self.charged.get(), self.resident.get())?;
        let copied = self.coded + self.raw + self.filled + self.reused;
        same("copied", copied, self.evicted + self.rescued + self.stayed)?;
        if self.charged > self.budget + self.over {
            return Err(format!("{} are charged, the budget is {}", self.charged, self.budget));
        }
        Ok(())
    }
}

shown!(Stats);

texts!(Stats, page_size().bytes(), "glebe_store_", "store");
