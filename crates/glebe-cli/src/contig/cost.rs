//! [`cheapest`] finds the place where one run would cost least: the fewest pages to move.
//!
//! A place is adjacent blocks, each a huge page of the smallest size. Free frames and idle pages of
//! pools cost nothing, and the kernel can move or drop pages of programs and files. A frame counts
//! as *stuck* if the kernel holds it or may hold it, or if it is of a pool's page in use. The time
//! is linear in the number of blocks. Moves may still fail, because no file shows pinned pages.

use glebe::contig::internal::{explain_on, FrameUses};
use glebe::internal::sys::machine::hugetlb::{sizes, smallest, Pool};
use glebe::internal::sys::machine::kpage::{Occupancy, Use};
use glebe::internal::sys::page_size;
use glebe::units::{Bytes, PageSize, Pages, Pfn};
use serde_json::{json, Value};

use super::shares::UNKNOWN;

/// The cost of one run at one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cost {
    /// Pages that cannot be moved, as far as one knows. With any, the run cannot be had here.
    pub stuck: Pages,
    /// Pages to move or drop.
    pub moved: Pages,
    /// The first frame.
    pub at: Pfn,
}

impl Cost {
    fn of(found: Use, frames: &Occupancy) -> (u64, u64) {
        match found {
            Use::Free | Use::PoolIdle => (0, 0),
            Use::PoolInUse => (frames.pool, 0),
            _ => (frames.fixed + frames.unmarked + frames.pool, frames.movable),
        }
    }
}

/// Returns the place of `len` bytes with the fewest stuck pages, and of these the one with the
/// fewest pages to move; `None` if no place is so long. `blocks` has an entry for each `each`
/// frames, from frame 0 on.
pub fn cheapest(blocks: &[(Use, Occupancy)], each: Pages, len: Bytes) -> Option<Cost> {
    let width = len.pages_up(page_size()).get().div_ceil(each.get()).max(1);
    let width = usize::try_from(width).ok().filter(|width| *width <= blocks.len())?;
    let costs: Vec<(u64, u64)> = blocks.iter().map(|(found, of)| Cost::of(*found, of)).collect();
    let (mut stuck, mut moved) = (0, 0);
    let mut best: Option<Cost> = None;
    for (end, cost) in costs.iter().enumerate() {
        stuck += cost.0;
        moved += cost.1;
        let Some(first) = (end + 1).checked_sub(width) else { continue };
        let at = Pfn::new(first as u64 * each.get());
        let here = Cost { stuck: Pages::new(stuck), moved: Pages::new(moved), at };
        best = best.into_iter().chain([here]).min();
        stuck -= costs[first].0;
        moved -= costs[first].1;
    }
    best
}

/// The outlook of a request for one run of `len`, with its cost.
pub struct Request {
    len: Bytes,
    verdict: &'static str,
    why: String,
    /// `None` if frames are hidden; `Some(None)` if no place is so long.
    cost: Option<Option<Cost>>,
    in_pools: Bytes,
}

impl Request {
    /// Looks at the machine, whose blocks, huge pages of the smallest size, have these uses; `None`
    /// if frames are hidden.
    pub fn look(
        len: Bytes,
        blocks: Option<&[(Use, Occupancy)]>,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let uses = blocks.map(|blocks| blocks.iter().map(|(found, _)| *found).collect());
        let outlook = explain_on(len, None, &FrameUses::of(uses))?;
        let each = smallest().bytes().pages_down(page_size());
        let cost = blocks.map(|blocks| cheapest(blocks, each, len));
        let idle = |size: PageSize| {
            let pages = Pages::new(Pool::of(size)?.counts().ok()?.available());
            Some(pages.checked_bytes(size)?.get())
        };
        let in_pools = Bytes::new(sizes().into_iter().filter_map(idle).sum());
        Ok(Self { len, verdict: outlook.verdict.as_str(), why: outlook.why, cost, in_pools })
    }

    pub fn json(&self) -> Value {
        let cost = self.cost.flatten();
        json!({
            "len_bytes": self.len.get(),
            "verdict": self.verdict,
            "why": self.why,
            "pages_to_move": cost.map(|cost| cost.moved.get()),
            "pages_stuck": cost.map(|cost| cost.stuck.get()),
            "pool_free_bytes": self.in_pools.get(),
        })
    }
}

impl std::fmt::Display for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let len = format!("for {}", self.len);
        writeln!(f, "{len:<17}{}: {}", self.verdict, self.why)?;
        let bytes = |pages: Pages| pages.bytes(page_size());
        match self.cost {
            None => writeln!(f, "  to move        {UNKNOWN}")?,
            Some(None) => writeln!(f, "  to move        no place is so long")?,
            Some(Some(Cost { stuck, moved, .. })) if stuck == Pages::ZERO => {
                writeln!(f, "  to move        {moved} ({}) at the cheapest place", bytes(moved))?;
            }
            Some(Some(Cost { stuck, .. })) => {
                let of = bytes(stuck);
                writeln!(
                    f,
                    "  to move        no place can be cleared; the best has {stuck} ({of}) \
                    that the kernel or a pool may hold"
                )?;
            }
        }
        writeln!(f, "  in pools       {} free", self.in_pools)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EACH: Pages = Pages::new(512);

    fn blocks(drawn: &str) -> Vec<(Use, Occupancy)> {
        let none = Occupancy::default();
        let block = |sign| match sign {
            '.' => (Use::Free, Occupancy { free: 512, ..none }),
            'o' => (Use::PoolIdle, Occupancy { pool: 512, ..none }),
            '#' => (Use::PoolInUse, Occupancy { pool: 512, ..none }),
            'T' => (Use::Thp, Occupancy { movable: 512, ..none }),
            'k' => (Use::Other, Occupancy { free: 511, unmarked: 1, ..none }),
            ':' => (Use::Other, Occupancy { free: 412, movable: 100, ..none }),
            _ => (Use::Absent, Occupancy { fixed: 512, ..none }),
        };
        drawn.chars().map(block).collect()
    }

    fn cost(drawn: &str, mib: u64) -> Option<(u64, u64, u64)> {
        let each = Bytes::mib(2).pages_down(page_size());
        assert_eq!(each, EACH, "the drawing has blocks of 512 pages");
        let found = cheapest(&blocks(drawn), EACH, Bytes::mib(mib));
        found.map(|cost| (cost.stuck.get(), cost.moved.get(), cost.at.get() / 512))
    }

    #[test]
    fn the_cheapest_place_has_the_fewest_pages_to_move() {
        if page_size().bytes() != Bytes::new(4096) {
            return println!("skipped: the drawing has pages of 4 KiB");
        }
        let drawn = "k::.TT.o.::k";
        assert_eq!(cost(drawn, 6), Some((0, 0, 6)), "free memory beside an idle page of a pool");
        assert_eq!(cost(drawn, 5), Some((0, 0, 6)), "a part of a block takes it whole");
        assert_eq!(cost(drawn, 8), Some((0, 100, 6)));
        assert_eq!(cost(drawn, 10), Some((0, 200, 6)));
        assert_eq!(cost(drawn, 14), Some((0, 1124, 2)), "the first of two");
        assert_eq!(cost(drawn, 20), Some((0, 2 * 512 + 400, 1)));
        assert_eq!(cost(drawn, 22), Some((1, 2 * 512 + 400, 0)), "the kernel holds a page");
        assert_eq!(cost(drawn, 24), Some((2, 2 * 512 + 400, 0)));
        assert_eq!(cost(drawn, 26), None, "longer than memory");
        assert_eq!(cost("#.#", 4), Some((512, 0, 0)), "another program uses the page");
        assert_eq!((cost("", 2), cost(" .", 2)), (None, Some((0, 0, 1))));
    }

    #[test]
    fn a_request_says_its_cost_or_why_there_is_none() {
        let cost = |stuck, moved| {
            Some(Cost { stuck: Pages::new(stuck), moved: Pages::new(moved), at: Pfn::new(0) })
        };
        for (cost, told) in [
            (None, UNKNOWN),
            (Some(None), "no place is so long"),
            (Some(cost(0, 0)), "0 pages (0 B) at the cheapest place"),
            (Some(cost(0, 7)), "7 pages ("),
            (Some(cost(3, 7)), "no place can be cleared; the best has 3 pages ("),
        ] {
            let why = "because".to_owned();
            let (len, in_pools) = (Bytes::mib(64), Bytes::mib(2));
            let request = Request { len, verdict: "no", why, cost, in_pools };
            let text = request.to_string();
            assert!(text.starts_with("for 64 MiB       no: because\n  to move        "), "{text}");
            assert!(
                text.contains(told) && text.ends_with("  in pools       2 MiB free\n"),
                "{text}"
            );
            let json = request.json();
            let cost = cost.flatten();
            assert_eq!(json["pages_to_move"].as_u64(), cost.map(|cost| cost.moved.get()));
            assert_eq!(json["pages_stuck"].as_u64(), cost.map(|cost| cost.stuck.get()));
        }
    }
}
