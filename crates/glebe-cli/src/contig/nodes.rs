//! [`NodeView`] is what `glebe contig` shows of a NUMA node: pools, memory, and runs.

use std::fmt::Write as _;
use std::ops::Range;
use std::path::Path;

use glebe::contig::Node;
use glebe::error::OsError;
use glebe::internal::sys::machine::absent::mark_elsewhere;
use glebe::internal::sys::machine::hugetlb::PoolCounts;
use glebe::internal::sys::machine::kpage::{runs, Use};
use glebe::internal::sys::machine::node_supply::Supply;
use glebe::internal::sys::machine::zones::frames_of_nodes;
use glebe::page_size;
use glebe::units::{Bytes, PageSize, Pages, Pfn};
use serde_json::{json, Value};

/// The uses of blocks of `block`, from frame 0 on, and the frames of each node.
pub struct Frames<'a> {
    uses: &'a [Use],
    block: PageSize,
    of_nodes: Vec<(Node, Range<Pfn>)>,
}

pub struct NodeView {
    supply: Supply,
    seen: Option<Seen>,
}

/// What visible frames show of a node.
struct Seen {
    /// Addresses in bytes; neighbouring zones are joined.
    places: Vec<Range<Bytes>>,
    free_run: Bytes,
    pool_run: Bytes,
}

/// Returns the view of each node with memory; none if the kernel lists no nodes. `uses` has the use
/// of each `block` if frames are visible.
pub fn views(uses: Option<&[Use]>, block: PageSize) -> Result<Vec<NodeView>, OsError> {
    let of = |uses| frames_of_nodes().map(|of_nodes| Frames { uses, block, of_nodes });
    let frames = uses.map(of).transpose()?;
    views_below(Path::new("/"), frames.as_ref())
}

fn views_below(root: &Path, frames: Option<&Frames<'_>>) -> Result<Vec<NodeView>, OsError> {
    let view = |supply: Supply| {
        let seen = frames.map(|frames| frames.seen_on(supply.node));
        NodeView { supply, seen }
    };
    Ok(Supply::below(root)?.into_iter().map(view).collect())
}

impl Frames<'_> {
    fn seen_on(&self, node: Node) -> Seen {
        let page = page_size();
        let each = self.block.bytes().pages_down(page);
        let mut uses = self.uses.to_vec();
        mark_elsewhere(&mut uses, each, node, &self.of_nodes);
        let longest = |counts: fn(Use) -> bool| {
            let all = runs(&uses, each, counts).into_iter();
            all.map(|(_, len)| len.bytes(page)).max().unwrap_or_default()
        };
        let [free_run, pool_run] = [longest(|of| of == Use::Free), longest(Use::is_pool)];
        Seen { places: self.places(node), free_run, pool_run }
    }

    fn places(&self, node: Node) -> Vec<Range<Bytes>> {
        let each = self.block.bytes().pages_down(page_size()).get();
        let at = |frame: u64| Pages::new(frame).bytes(page_size());
        let mut own: Vec<Range<Bytes>> = Vec::new();
        for (_, frames) in self.of_nodes.iter().filter(|(of, _)| *of == node) {
            // The first frame of a machine is often on no node.
            let start = at(frames.start.get() / each * each);
            let end = at(frames.end.get());
            match own.last_mut().filter(|last| last.end == start) {
                Some(last) => last.end = end,
                None => own.push(start..end),
            }
        }
        own
    }
}

impl NodeView {
    /// Returns the node's memory on one line, and a line for each pool.
    pub fn text(&self) -> String {
        let Supply { node, memory, longest_block, pools } = &self.supply;
        let runs = match (&self.seen, longest_block) {
            (Some(seen), _) => {
                format!("longest free run {}, of pools {}", seen.free_run, seen.pool_run)
            }
            (None, Some(len)) => format!("longest free block {len}"),
            (None, None) => "longest free run hidden".to_owned(),
        };
        let name = node.to_string();
        let mut text = format!("{name:<17}{} available, {runs}\n", memory.available);
        for (size, counts) in pools {
            let PoolCounts { total, free, surplus, .. } = counts;
            let all = Pages::new(*total).checked_bytes(*size).unwrap_or_default();
            let name = format!("  hugetlb {}", size.bytes());
            let _ =
                writeln!(text, "{name:<16} {total} pages ({all}), {free} free, {surplus} surplus");
        }
        text
    }

    /// Returns the node's addresses and longest runs on one line, for a map.
    pub fn map_line(&self) -> Option<String> {
        let Seen { places, free_run, pool_run } = self.seen.as_ref()?;
        let place = |place: &Range<Bytes>| format!("{} to {}", place.start, place.end);
        let places = places.iter().map(place).collect::<Vec<_>>().join(", ");
        let node = self.supply.node;
        Some(format!("{node}: {places}; longest free run {free_run}, of huge pages {pool_run}"))
    }

    pub fn json(&self) -> Value {
        let Supply { node, memory, longest_block, pools } = &self.supply;
        let pool = |(size, counts): &(PageSize, PoolCounts)| {
            let PoolCounts { total, free, surplus, .. } = counts;
            json!({
                "page_bytes": size.bytes().get(), "total": total, "free": free, "surplus": surplus,
            })
        };
        let place = |Range { start, end }: &Range<Bytes>| {
            let [start, end] = [start, end].map(|at| at.get());
            json!({ "start_bytes": start, "end_bytes": end })
        };
        let seen = self.seen.as_ref();
        json!({
            "node": node.0,
            "total_bytes": memory.total.get(),
            "free_bytes": memory.free.get(),
            "available_bytes": memory.available.get(),
            "largest_free_block_bytes": longest_block.map(Bytes::get),
            "longest_free_run_bytes": seen.map(|seen| seen.free_run.get()),
            "longest_pool_run_bytes": seen.map(|seen| seen.pool_run.get()),
            "places": seen.map(|seen| seen.places.iter().map(place).collect::<Vec<_>>()),
            "pools": pools.iter().map(pool).collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use glebe_testing::two_nodes;

    use super::*;

    fn block() -> PageSize {
        PageSize::new(2 << 20).unwrap()
    }

    /// Frames of which node 0 has the first six blocks and node 2 the next four.
    fn frames(uses: &[Use]) -> Frames<'_> {
        let each = block().bytes().pages_down(page_size()).get();
        let zone = |node, from: u64, to: u64| (Node(node), Pfn::new(from)..Pfn::new(to * each));
        let of_nodes = vec![zone(0, 1, 2), zone(0, 2 * each, 6), zone(2, 6 * each, 10)];
        Frames { uses, block: block(), of_nodes }
    }

    #[test]
    fn each_node_shows_its_own_pools_memory_and_runs() {
        use Use::{Free, Other, PoolIdle, PoolInUse};
        let root = two_nodes();
        let uses = [Other, PoolIdle, PoolInUse, Other, Free, Free, Free, Free, Free, PoolIdle];
        let views = views_below(root.path(), Some(&frames(&uses))).unwrap();
        let text: Vec<String> = views.iter().map(NodeView::text).collect();
        assert_eq!(
            text[0],
            "node 0           110 KiB available, longest free run 4 MiB, of pools 4 MiB\n\
            \x20 hugetlb 1 GiB  0 pages (0 B), 0 free, 0 surplus\n\
            \x20 hugetlb 2 MiB  64 pages (128 MiB), 8 free, 0 surplus\n"
        );
        assert_eq!(
            text[1],
            "node 2           6.8 MiB available, longest free run 6 MiB, of pools 2 MiB\n\
            \x20 hugetlb 1 GiB  1 pages (1 GiB), 1 free, 0 surplus\n\
            \x20 hugetlb 2 MiB  32 pages (64 MiB), 32 free, 6 surplus\n"
        );
        let lines: Vec<String> = views.iter().filter_map(NodeView::map_line).collect();
        assert_eq!(
            lines,
            [
                "node 0: 0 B to 12 MiB; longest free run 4 MiB, of huge pages 4 MiB",
                "node 2: 12 MiB to 20 MiB; longest free run 6 MiB, of huge pages 2 MiB",
            ]
        );
        let value = views[1].json();
        assert_eq!(
            (&value["node"], &value["longest_free_run_bytes"]),
            (&2.into(), &(6 << 20).into())
        );
        let place = json!({ "start_bytes": 12 << 20, "end_bytes": 20 << 20 });
        assert_eq!(value["places"], json!([place]));
        assert_eq!(
            value["pools"][1],
            json!({
                "page_bytes": 2 << 20, "total": 32, "free": 32, "surplus": 6,
            })
        );
    }

    #[test]
    fn hidden_frames_leave_the_free_lists() {
        let root = two_nodes();
        let views = views_below(root.path(), None).unwrap();
        let block = Bytes::new(page_size().bytes().get() * 4);
        let line = format!("node 2           6.8 MiB available, longest free block {block}\n");
        assert!(views[1].text().starts_with(&line), "{}", views[1].text());
        assert!(views[1].map_line().is_none());
        let value = views[1].json();
        assert!(value["longest_free_run_bytes"].is_null(), "{value}");
        assert_eq!(value["largest_free_block_bytes"], block.get());
    }
}
