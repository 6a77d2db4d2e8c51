//! [`MachineNow`] is the machine's memory: pressure, pools of huge pages, free blocks.

use std::fs;

use glebe::internal::sys::machine::hugetlb::{sizes, Pool, PoolCounts};
use glebe::internal::sys::machine::{buddyinfo, meminfo};
use glebe::units::{Bytes, PageSize, Pages};

const PRESSURE: &str = "/proc/pressure/memory";

#[derive(Clone, Debug, Default)]
pub struct MachineNow {
    pub total: Option<Bytes>,
    pub available: Option<Bytes>,
    /// Share of the last 10 s in which some task waited for memory, and all tasks, in percent.
    pub pressure: Option<[f64; 2]>,
    pub pools: Vec<(PageSize, PoolCounts)>,
    pub longest_block: Option<Bytes>,
}

impl MachineNow {
    pub fn look() -> Self {
        let pool = |size| Some((size, Pool::of(size)?.counts().ok()?));
        Self {
            total: meminfo::total().ok(),
            available: meminfo::available().ok(),
            pressure: fs::read_to_string(PRESSURE).ok().as_deref().and_then(pressure),
            pools: sizes().into_iter().filter_map(pool).collect(),
            longest_block: buddyinfo::longest_free_block(None).ok(),
        }
    }

    /// Returns how long tasks waited for memory, and two lines of text; "?" stands for a number
    /// that the kernel hides.
    pub fn lines(&self) -> [String; 3] {
        let bytes = |of: Option<Bytes>| of.map_or_else(|| "?".to_owned(), |it| it.to_string());
        let pressure = self.pressure.map_or_else(
            || "pressure unknown".to_owned(),
            |[some, full]| format!("pressure some {some:.1} %, full {full:.1} %"),
        );
        let [total, available, block] = [self.total, self.available, self.longest_block].map(bytes);
        let pools: Vec<String> = self.pools.iter().filter_map(pool).collect();
        let pools = match pools.is_empty() {
            true => "no pages in pools".to_owned(),
            false => pools.join("; "),
        };
        [
            pressure,
            format!("memory {total}, {available} available; longest free block {block}"),
            pools,
        ]
    }
}

/// Returns nothing of a pool without pages.
fn pool((size, counts): &(PageSize, PoolCounts)) -> Option<String> {
    let PoolCounts { total, free, reserved, .. } = *counts;
    let each = size.bytes();
    let all = Pages::new(total).checked_bytes(*size).unwrap_or_default();
    let promised = if reserved > 0 { format!(", {reserved} promised") } else { String::new() };
    (total > 0).then(|| format!("pool of {each}: {all}, {free} of {total} pages free{promised}"))
}

/// Reads `some avg10=0.12 avg60=...` and the line `full`.
fn pressure(text: &str) -> Option<[f64; 2]> {
    let of = |kind: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(kind))?;
        line.trim_start().strip_prefix("avg10=")?.split(' ').next()?.parse().ok()
    };
    Some([of("some")?, of("full")?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pressure_is_that_of_the_last_seconds() {
        let text = "some avg10=1.50 avg60=0.12 avg300=0.03 total=54\n\
                    full avg10=0.25 avg60=0.00 avg300=0.00 total=7\n";
        assert_eq!(pressure(text), Some([1.5, 0.25]));
        assert_eq!(pressure("some avg10=1.50\n"), None);
        assert_eq!(pressure("some avg10=\nfull avg10=\n"), None);
    }

    #[test]
    fn hidden_numbers_are_not_zero() {
        let lines = MachineNow::default().lines();
        let memory = "memory ?, ? available; longest free block ?";
        assert_eq!(lines, ["pressure unknown", memory, "no pages in pools"]);
    }
}
