//! [`Shares`] says how fragmented free memory is: what share of it lies in long free runs.
//!
//! *Free memory* is the pages in the kernel's free lists. A *free run* is adjacent huge pages of
//! the smallest size all of whose frames are free; the idle pages of pools are not free memory.
//! Lengths are bytes. Without `/proc/kpageflags`, which needs `CAP_SYS_ADMIN`, only the runs of one
//! huge page are known, from `/proc/buddyinfo`.

use std::io::{self, Write};

use glebe::error::OsError;
use glebe::internal::sys::machine::buddyinfo::free_blocks;
use glebe::internal::sys::machine::hugetlb::smallest;
use glebe::internal::sys::machine::kpage::{Occupancy, Use};
use glebe::internal::sys::machine::meminfo;
use glebe::internal::sys::page_size;
use glebe::units::{Bytes, PageSize, Pages};
use serde_json::{json, Value};

/// The least lengths of runs that shares are told of.
pub const LENGTHS: [Bytes; 4] = [Bytes::mib(2), Bytes::mib(32), Bytes::mib(128), Bytes::gib(1)];
pub const UNKNOWN: &str = "unknown without root";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shares {
    pub free: Bytes,
    pub all: Bytes,
    /// Bytes in free runs of at least each of [`LENGTHS`]; `None` if unknown.
    pub in_runs: [Option<Bytes>; LENGTHS.len()],
}

impl Shares {
    /// Looks at the machine, whose blocks, huge pages of the smallest size, have these uses; `None`
    /// if frames are hidden.
    pub fn look(blocks: Option<&[(Use, Occupancy)]>) -> Result<Self, OsError> {
        let all = meminfo::total()?;
        if let Some(blocks) = blocks {
            return Ok(Self::of_blocks(blocks, smallest(), all));
        }
        let [free, in_blocks] = [page_size(), smallest()]
            .map(|size| free_blocks(size).map(|blocks| Pages::new(blocks).bytes(size)));
        Ok(Self::of_lists(smallest(), in_blocks?, free?, all))
    }

    fn of_blocks(blocks: &[(Use, Occupancy)], block: PageSize, all: Bytes) -> Self {
        let runs = free_runs(blocks, block);
        let sum = |least: Bytes| {
            let long = runs.iter().filter(|len| **len >= least).map(|len| len.get());
            Some(Bytes::new(long.sum()))
        };
        let free = Pages::new(blocks.iter().map(|(_, frames)| frames.free).sum());
        Self { free: free.bytes(page_size()), all, in_runs: LENGTHS.map(sum) }
    }

    /// The kernel's free lists have `in_blocks` in free blocks of at least one huge page.
    fn of_lists(block: PageSize, in_blocks: Bytes, free: Bytes, all: Bytes) -> Self {
        // The kernel changes its lists between two readings.
        let known = |least: Bytes| (least == block.bytes()).then_some(in_blocks.min(free));
        Self { free, all, in_runs: LENGTHS.map(known) }
    }

    /// Returns the parts of free and of all memory, from 0 to 1; `None` without such memory.
    pub fn parts(&self, bytes: Bytes) -> (Option<f64>, Option<f64>) {
        let of = |whole: Bytes| match whole.get() {
            0 => None,
            whole => Some(bytes.get() as f64 / whole as f64),
        };
        (of(self.free), of(self.all))
    }

    pub fn json(&self) -> Value {
        let row = |(least, bytes): (&Bytes, &Option<Bytes>)| {
            let parts = bytes.map(|bytes| self.parts(bytes));
            json!({
                "at_least_bytes": least.get(),
                "bytes": bytes.map(Bytes::get),
                "of_free": parts.and_then(|(free, _)| free),
                "of_all": parts.and_then(|(_, all)| all),
            })
        };
        json!({
            "free_bytes": self.free.get(),
            "all_bytes": self.all.get(),
            "runs": LENGTHS.iter().zip(&self.in_runs).map(row).collect::<Vec<_>>(),
        })
    }

    pub fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "free memory      {}; its part in free runs of at least:", self.free)?;
        for (least, bytes) in LENGTHS.iter().zip(&self.in_runs) {
            write!(out, "  {:<14}", least.to_string())?;
            match bytes.map(|bytes| self.parts(bytes)) {
                Some((free, all)) => {
                    let percent = |part: f64| format!("{:.1} %", part * 100.0);
                    let [free, all] =
                        [free, all].map(|part| part.map_or_else(|| "-".to_owned(), percent));
                    writeln!(out, "{free:>8}, and {all} of all memory")?;
                }
                None => writeln!(out, " {UNKNOWN}")?,
            }
        }
        Ok(())
    }
}

/// Returns the lengths of the free runs, in the order of frames.
pub fn free_runs(blocks: &[(Use, Occupancy)], block: PageSize) -> Vec<Bytes> {
    let parts = blocks.chunk_by(|(a, _), (b, _)| (*a == Use::Free) == (*b == Use::Free));
    let free = parts.filter(|part| part[0].0 == Use::Free);
    free.map(|part| Pages::new(part.len() as u64).bytes(block)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HUGE: PageSize = PageSize::new(2 << 20).unwrap();

    fn text(shares: &Shares) -> String {
        let mut out = Vec::new();
        shares.print(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    /// Returns blocks in which runs of these lengths, in blocks, are free. A block between two of
    /// them has `between` free frames.
    fn drawn(runs: &[usize], between: u64) -> Vec<(Use, Occupancy)> {
        let frames = |free| Occupancy { free, movable: 512 - free, ..Occupancy::default() };
        let run = |len: &usize| {
            let free = std::iter::repeat_n((Use::Free, frames(512)), *len);
            free.chain([(Use::Other, frames(between))])
        };
        runs.iter().flat_map(run).collect()
    }

    #[test]
    fn each_run_counts_for_every_length_that_it_reaches() {
        if page_size().bytes() != Bytes::new(4096) {
            return println!("skipped: the drawing has pages of 4 KiB");
        }
        let runs = [512, 100, 64, 63, 16, 15, 1];
        let lengths: Vec<Bytes> = runs.iter().map(|len| Bytes::mib(2 * *len as u64)).collect();
        assert_eq!(free_runs(&drawn(&runs, 511), HUGE), lengths);
        let in_runs = [1542, 1510, 1352, 1024].map(|sum| Some(Bytes::mib(sum)));
        let whole = Shares::of_blocks(&drawn(&runs, 0), HUGE, Bytes::mib(3084));
        assert_eq!((whole.free, whole.in_runs), (Bytes::mib(1542), in_runs));
        let told = text(&whole);
        assert!(told.contains("\n  2 MiB          100.0 %, and 50.0 % of all memory\n"), "{told}");
        assert!(told.contains("\n  1 GiB           66.4 %, and 33.2 % of all memory\n"), "{told}");
        // Free small pages between used ones are free memory, but in no run.
        let holed = Shares::of_blocks(&drawn(&runs, 256), HUGE, Bytes::mib(3084));
        assert_eq!((holed.free, holed.in_runs), (Bytes::mib(1549), in_runs));
        let value = holed.json();
        assert_eq!(value["runs"][3]["bytes"], 1 << 30);
        assert_eq!(value["runs"][3]["of_free"], 1024.0 / 1549.0);
        assert_eq!(value["runs"][3]["of_all"], 1024.0 / 3084.0);
    }

    #[test]
    fn hidden_frames_leave_longer_runs_unknown_and_not_zero() {
        let (free, all) = (Bytes::mib(100), Bytes::mib(400));
        let shares = Shares::of_lists(HUGE, Bytes::mib(50), free, all);
        assert_eq!(shares.in_runs, [Some(Bytes::mib(50)), None, None, None]);
        let told = text(&shares);
        assert_eq!(told.matches(UNKNOWN).count(), 3, "{told}");
        assert!(told.contains("  2 MiB           50.0 %, and 12.5 %"), "{told}");
        let value = shares.json();
        assert!(value["runs"][1]["bytes"].is_null() && value["runs"][1]["of_free"].is_null());
        let larger = PageSize::new(32 << 20).unwrap();
        let shares = Shares::of_lists(larger, Bytes::mib(32), free, all);
        assert_eq!(shares.in_runs, [None, Some(Bytes::mib(32)), None, None]);
        let raced = Shares::of_lists(HUGE, Bytes::mib(101), free, all);
        assert_eq!(raced.in_runs[0], Some(free), "no share exceeds the whole");
    }

    #[test]
    fn a_part_of_no_free_memory_has_no_value() {
        let none = Shares::of_blocks(&[], HUGE, Bytes::gib(1));
        assert_eq!(none.parts(none.in_runs[0].unwrap()), (None, Some(0.0)));
        let told = text(&none);
        assert_eq!(told.matches("  -, and 0.0 % of all memory\n").count(), 4, "{told}");
        let value = none.json();
        assert!(value["runs"][0]["of_free"].is_null(), "{value}");
        assert_eq!(
            (&value["runs"][0]["bytes"], &value["runs"][0]["of_all"]),
            (&0.into(), &0.0.into())
        );
    }
}
