//! Reads from `/proc/zoneinfo` the free memory that each zone can give without reclaim, and
//! shortens the processors' own lists of free pages.
//!
//! Taking more could bring a zone below its low watermark, where the kernel drops page cache.
//! Source: proc_zoneinfo(5), admin-guide/sysctl/vm (`lowmem_reserve_ratio`, `stat_refresh`),
//! mm/page_alloc.c.

use std::fs::OpenOptions;
use std::ops::Range;
use std::path::Path;

use crate::error::OsError;
use crate::internal::sys::files::file;
use crate::internal::sys::machine::buddyinfo;
use crate::internal::sys::machine::numa::Node;
use crate::internal::sys::page_size;
use crate::units::{PageSize, Pages, Pfn};

const PATH: &str = "/proc/zoneinfo";
const REFRESH: &str = "/proc/sys/vm/stat_refresh";
/// Writes to [`REFRESH`] between two readings of the free pages.
const WRITES: u32 = 32;
const LOOKS_MAX: u32 = 16;

/// Returns the free pages of `size` that a node, or all nodes, can give while no zone falls below
/// high watermark plus protection.
pub fn obtainable(size: PageSize, node: Option<Node>) -> Result<u64, OsError> {
    let text = file::text(PATH)?;
    let mut blocks = buddyinfo::free_blocks_of_zones(size)?;
    blocks.retain(|(zone, _)| node.is_none() || node_of(zone) == node);
    let pages_each = size.bytes().pages_down(page_size());
    Ok(sum(&spare_of_zones(&text), &blocks, pages_each))
}

pub fn frames_of_nodes() -> Result<Vec<(Node, Range<Pfn>)>, OsError> {
    Ok(spans(&file::text(PATH)?))
}

fn spans(text: &str) -> Vec<(Node, Range<Pfn>)> {
    let of_zone = |zone: &str| {
        let (name, rest) = zone.split_once('\n')?;
        let [first, len, present] =
            ["start_pfn:", "spanned ", "present "].map(|name| field(rest, name));
        let (first, len) = (Pfn::new(first?), Pages::new(len?));
        present.filter(|present| *present > 0)?;
        Some((node_of(name)?, first..first.plus(len)))
    };
    text.split("Node ").skip(1).filter_map(of_zone).collect()
}

fn node_of(name: &str) -> Option<Node> {
    name.split(',').next()?.trim().parse().ok().map(Node)
}

fn field(zone: &str, name: &str) -> Option<u64> {
    let line = zone.lines().map(str::trim).find(|line| line.starts_with(name))?;
    line[name.len()..].trim().parse().ok()
}

fn sum(spare: &[(String, Pages)], blocks: &[(String, u64)], each: Pages) -> u64 {
    let of_zone = |(name, blocks): &(String, u64)| {
        let spare = spare.iter().find(|(zone, _)| zone == name).map_or(0, |(_, pages)| pages.get());
        (spare / each.get().max(1)).min(*blocks)
    };
    blocks.iter().map(of_zone).sum()
}

fn spare_of_zones(text: &str) -> Vec<(String, Pages)> {
    let mut zones = Vec::new();
    for zone in text.split("Node ").skip(1) {
        let Some((name, rest)) = zone.split_once('\n') else { continue };
        let numbers = |line: &str| -> u64 {
            let digits = line.split(|c: char| !c.is_ascii_digit());
            digits.filter_map(|number| number.parse().ok()).max().unwrap_or(0)
        };
        let protection = rest.lines().find(|line| line.trim().starts_with("protection:"));
        let (Some(free), Some(high)) = (field(rest, "pages free"), field(rest, "high ")) else {
            continue;
        };
        let kept = high.saturating_add(protection.map_or(0, numbers));
        zones.push((plain(name), Pages::new(free.saturating_sub(kept))));
    }
    zones
}

fn plain(name: &str) -> String {
    name.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Flushes the kernel's statistics up to 512 times, because each flush takes some pages off each
/// processor's own list.
pub fn empty_processor_lists() {
    let huge = PageSize::new(2 << 20);
    let free = || huge.and_then(|size| buddyinfo::free_blocks(size).ok()).unwrap_or(0);
    let Ok(mut refresh) = file::open(Path::new(REFRESH), OpenOptions::new().write(true)) else {
        return;
    };
    let mut before = free();
    for _ in 0..LOOKS_MAX {
        for _ in 0..WRITES {
            if file::write(&mut refresh, b"1").is_err() {
                return;
            }
        }
        let now = free();
        if now <= before {
            return;
        }
        before = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        "Node 0, zone      DMA\n  per-node stats\n      nr_free 5\n  pages free     3840\n\
        \x20       boost    0\n        min      10\n        low      13\n        high     16\n\
        \x20       spanned  4095\n        present  3998\n\
        \x20       protection: (0, 2975, 23000, 23000, 23000)\n      nr_free_pages 3840\n\
        \x20 start_pfn:           1\n\
        Node 0, zone   Normal\n  pages free     5000\n        high     900\n\
        \x20       spanned  9000\n        present  8000\n\
        \x20       protection: (0, 0, 0, 0, 0)\n  start_pfn:           1048576\n\
        Node 1, zone  Movable\n  pages free     0\n        high     0\n\
        \x20       spanned  0\n        present  0\n        protection: (0, 0)\n";

    #[test]
    fn a_zone_keeps_its_watermark_and_its_protection() {
        let spare = spare_of_zones(TEXT);
        let named = |zone: &str, pages| (format!("0, zone {zone}"), Pages::new(pages));
        let movable = ("1, zone Movable".to_owned(), Pages::ZERO);
        assert_eq!(spare, [named("DMA", 0), named("Normal", 4100), movable]);
        let blocks = |dma, normal| [(0, dma), (1, normal)].map(|(n, b)| (spare[n].0.clone(), b));
        assert_eq!(sum(&spare, &blocks(6, 20), Pages::new(512)), 8, "8 are 4096 pages");
        assert_eq!(sum(&spare, &blocks(6, 3), Pages::new(512)), 3);
    }

    #[test]
    fn a_zone_with_memory_has_frames_on_its_node() {
        let span = |first, end| (Node(0), Pfn::new(first)..Pfn::new(end));
        assert_eq!(spans(TEXT), [span(1, 4096), span(1_048_576, 1_057_576)]);
        assert!(!frames_of_nodes().unwrap().is_empty());
    }

    #[test]
    fn no_more_can_be_had_than_is_free() {
        let size = PageSize::new(2 << 20).unwrap();
        empty_processor_lists();
        let (some, all) = (obtainable(size, None).unwrap(), buddyinfo::free_blocks(size).unwrap());
        assert!(some <= all + all / 2 + 64, "{some} of {all}");
    }
}
