//! [`Stats`] of an area satisfies three conditions while no call runs:
//!
//! * `stored = ended + present_pages`
//! * `present_pages` counts unsaved, saved and same-filled pages
//! * `charged <= limit`, and `charged` is the sum of the blocks of unsaved pages

use super::area::Area;
use crate::swap::copies::Copy;
use crate::swap::file::SpillFile;
use glebe_os::internal::stats::{shown, statistics, texts};
use glebe_os::internal::sys::page_size;
use glebe_os::units::{Bytes, Pages};

statistics! {
    labels {}
    counters {
        Stored stored Count "pages that were stored";
        Ended ended Count "pages that were replaced, taken or invalidated";
        Filled filled Count "pages that one word fills, which take no room";
        Refused refused Count "stores that were refused";
        Through through Count "pages that the file had when their store returned";
        Cleaned cleaned Count "pages that were written later";
        WrittenBytes written_bytes Bytes "bytes of pages written to the file, without rounding";
        Waited waited Count "stores that wrote older pages first";
        Loaded loaded Count "pages loaded that were not in the file, or are the same all over";
        LoadedKept loaded_kept Count "pages loaded from copies that are kept";
        ReadBack read_back Count "pages loaded from the file";
        KeptLost kept_lost Count "kept copies that a load found gone";
        Missed missed Count "loads of what was not stored";
        Damaged damaged Count "loads of pages that were not what was stored";
    }
    gauges {
        present "present_pages" "pages stored";
        unsaved "unsaved_pages" "pages that the file does not have";
        saved "saved_pages" "pages that the file has";
        kept "kept_pages" "saved pages with a copy that may still be there";
        same_filled "same_filled_pages" "pages that one word fills";
        own "own_pages" "ordinary memory for pages that the file does not have";
        file "file_pages" "pages of the file that hold copies";
    }
    bytes {
        unsaved_block_bytes "bytes of pages that the file does not have";
        charged_bytes "bytes charged for them";
        limit_bytes "the most that may be: write-back and put-back";
    }
    durations {}
}

impl Area {
    /// Returns the statistics; zeros in a forked child. Cost: O(pages).
    #[must_use]
    pub fn stats(&self) -> Stats {
        if self.alive().is_err() {
            return Stats::default();
        }
        let file = self.copies.file.as_ref().map_or(Bytes::ZERO, SpillFile::held);
        let state = self.unsaved.get();
        let mut stats = Stats {
            charged_bytes: Bytes::new(state.charged),
            limit_bytes: Bytes::new(state.limit()),
            own: self.copies.pool.held().pages_up(page_size()),
            file: file.pages_up(page_size()),
            ..self.counts.sum()
        };
        let add = |to: &mut Pages| *to = *to + Pages::new(1);
        for (_, entry) in (0..self.entries.chunks()).flat_map(|nth| self.entries.chunk(nth)) {
            add(&mut stats.present);
            match (entry.copy, entry.copy.in_pool()) {
                (Copy::Filled(_), _) => add(&mut stats.same_filled),
                (_, Some(block)) => {
                    add(&mut stats.unsaved);
                    stats.unsaved_block_bytes =
                        stats.unsaved_block_bytes + Bytes::new(block.len as u64);
                }
                _ => add(&mut stats.saved),
            }
            if entry.kept.is_some() {
                add(&mut stats.kept);
            }
        }
        stats
    }
}

impl Stats {
    /// Checks, while no call runs, that totals add up and the limit holds.
    ///
    /// # Errors
    /// The condition that fails, with its values.
    pub fn check(&self) -> Result<(), String> {
        let same = |what: &str, a: u64, b: u64| {
            (a == b).then_some(()).ok_or_else(|| format!("{what}: {a} is not {b}"))
        };
        let kinds = self.unsaved + self.saved + self.same_filled;
        same("stored", self.stored, self.ended + self.present.get())?;
        same("present", self.present.get(), kinds.get())?;
        same("charged", self.charged_bytes.get(), self.unsaved_block_bytes.get())?;
        if self.charged_bytes > self.limit_bytes {
            let (charged, limit) = (self.charged_bytes, self.limit_bytes);
            return Err(format!("{charged} are charged, the limit is {limit}"));
        }
        Ok(())
    }
}

shown!(Stats);

texts!(Stats, page_size().bytes(), "glebe_swap_area_", "area");
