//! [`MachineNow`] is the machine's memory: pressure, free runs, pools of huge pages, the bank.
//!
//! Looks take no lock, and read no table that has a word for each page of the machine.

use std::fs;

use glebe::contig::internal::Glance;
use glebe::internal::sys::machine::hugetlb::{sizes, Pool, PoolCounts};
use glebe::internal::sys::machine::{buddyinfo, meminfo};
use glebe::units::{Bytes, PageSize, Pages};

use crate::contig::{Shares, LENGTHS};

const PRESSURE: &str = "/proc/pressure/memory";

#[derive(Clone, Debug, Default)]
pub struct MachineNow {
    pub total: Option<Bytes>,
    pub available: Option<Bytes>,
    /// Share of the last 10 s in which some task waited for memory, and all tasks, in percent.
    pub pressure: Option<[f64; 2]>,
    pub pools: Vec<(PageSize, PoolCounts)>,
    /// Free memory, and its part in free runs, as far as the kernel tells every user.
    pub free: Option<Shares>,
    pub longest_block: Option<Bytes>,
    /// `None` without a bank, or if only root may see it.
    pub bank: Option<Glance>,
}

impl MachineNow {
    pub fn look(bank: Option<Glance>) -> Self {
        let pool = |size| Some((size, Pool::of(size)?.counts().ok()?));
        Self {
            total: meminfo::total().ok(),
            available: meminfo::available().ok(),
            pressure: fs::read_to_string(PRESSURE).ok().as_deref().and_then(pressure),
            pools: sizes().into_iter().filter_map(pool).collect(),
            free: Shares::look(None).ok(),
            longest_block: buddyinfo::longest_free_block(None).ok(),
            bank,
        }
    }

    /// Returns lines of text; "?" stands for a number that the kernel hides.
    pub fn lines(&self) -> Vec<String> {
        let pressure = self.pressure.map_or_else(
            || "unknown".to_owned(),
            |[some, full]| format!("some {some:.1} %, full {full:.1} %"),
        );
        let [total, available] = [self.total, self.available].map(or_hidden);
        let pools: Vec<String> = self.pools.iter().filter_map(pool).collect();
        let pools = match pools.is_empty() {
            true => "no pages in pools".to_owned(),
            false => pools.join("; "),
        };
        let mut lines = vec![
            format!("memory {total}, {available} available; pressure {pressure}"),
            format!("{}longest free block {}", self.runs(), or_hidden(self.longest_block)),
            pools,
        ];
        lines.extend(self.bank.as_ref().map(|Glance { blocks, len, drawn }| {
            let word = if *blocks == 1 { "block" } else { "blocks" };
            format!("bank of movable memory: {len} in {blocks} {word}, {drawn} in huge-page pools")
        }));
        lines
    }

    fn runs(&self) -> String {
        let Some(shares) = &self.free else { return String::new() };
        let part = |(least, bytes): (&Bytes, &Option<Bytes>)| {
            let (part, _) = shares.parts((*bytes)?);
            Some(format!("{:.0} % in runs of at least {least}", part? * 100.0))
        };
        let known = LENGTHS.iter().zip(&shares.in_runs).filter_map(part);
        let parts: String = known.map(|part| format!(", {part}")).collect();
        format!("free {}{parts}; ", shares.free)
    }
}

fn or_hidden(bytes: Option<Bytes>) -> String {
    bytes.map_or_else(|| "?".to_owned(), |it| it.to_string())
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
        let memory = "memory ?, ? available; pressure unknown";
        assert_eq!(lines, [memory, "longest free block ?", "no pages in pools"]);
    }

    #[test]
    fn free_runs_and_the_bank_have_a_line_each() {
        let free = Shares {
            free: Bytes::gib(2),
            all: Bytes::gib(8),
            in_runs: [Some(Bytes::gib(1)), None, Some(Bytes::mib(512)), None],
        };
        let bank = Glance { blocks: 16, len: Bytes::gib(2), drawn: Bytes::mib(384) };
        let longest_block = Some(Bytes::mib(4));
        let lines = MachineNow {
            free: Some(free),
            longest_block,
            bank: Some(bank),
            ..MachineNow::default()
        };
        let lines = lines.lines();
        let runs = "free 2 GiB, 50 % in runs of at least 2 MiB, 25 % in runs of at least 128 MiB; \
                    longest free block 4 MiB";
        assert_eq!(lines[1], runs);
        let bank_line = "bank of movable memory: 2 GiB in 16 blocks, 384 MiB in huge-page pools";
        assert_eq!(lines[3], bank_line);
    }

    #[test]
    fn a_look_at_this_machine_knows_its_free_memory() {
        let machine = MachineNow::look(None);
        let (free, total) = (machine.free.unwrap().free, machine.total.unwrap());
        assert!(free > Bytes::ZERO && free < total, "{free} of {total}");
    }
}
