//! `glebe contig status` shows pools, free memory, runs, and what the kernel offers for contiguous
//! memory.

use std::fmt::Display;
use std::io::{self, Write};
use std::time::Duration;

use glebe::contig::PoolLock;
use glebe::error::OsError;
use glebe::internal::sys::machine::buddyinfo;
use glebe::internal::sys::machine::hugetlb::{sizes, Pool, PoolCounts};
use glebe::internal::sys::machine::kpage::{self, survey, Occupancy, Use};
use glebe::internal::sys::machine::meminfo;
use glebe::internal::sys::machine::numa;
use glebe::internal::sys::memory::dma_heap;
use glebe::internal::sys::page_size;
use glebe::probe::{State, Support};
use glebe::units::{Bytes, PageSize, Pages};
use serde_json::{json, Value};

use super::fragmentation::Fragmentation;
use super::nodes::{views, NodeView};
use crate::Outcome;

const PATIENCE: Duration = Duration::from_secs(1);

/// Returns the smallest page size of a pool, or the base page size without pools.
pub fn block() -> PageSize {
    sizes().pop().unwrap_or_else(page_size)
}

struct Runs {
    uses: Vec<Use>,
    /// Lengths in bytes of runs of pool pages, used or idle, longest first.
    pools: Vec<Bytes>,
    /// Lengths in bytes of runs of free blocks, longest first.
    free: Vec<Bytes>,
}

impl Runs {
    /// Returns the runs of blocks of `block` frames.
    fn of(blocks: &[(Use, Occupancy)], block: Pages) -> Self {
        let page = page_size();
        let uses: Vec<Use> = blocks.iter().map(|(found, _)| *found).collect();
        let longest_first = |counts: fn(Use) -> bool| {
            let runs = kpage::runs(&uses, block, counts);
            let mut runs: Vec<Bytes> = runs.iter().map(|(_, len)| len.bytes(page)).collect();
            runs.sort_unstable_by(|a, b| b.cmp(a));
            runs
        };
        let is_free = |of| of == Use::Free;
        let [pools, free] = [longest_first(Use::is_pool), longest_first(is_free)];
        Self { uses, pools, free }
    }
}

/// If a pool is writable, undoes changes that killed processes left in pools. Returns notes about
/// the changes, or the error.
fn mend() -> Vec<String> {
    let is_changeable = |size: PageSize| Pool::of(size).is_some_and(|pool| pool.is_writable());
    if !sizes().into_iter().any(is_changeable) {
        return Vec::new();
    }
    match PoolLock::within(PATIENCE) {
        Ok(lock) => lock.notes().to_vec(),
        Err(error) => vec![error.to_string()],
    }
}

/// What the command shows.
struct Status {
    mended: Vec<String>,
    pools: Vec<(PageSize, PoolCounts)>,
    available: Bytes,
    largest: Result<Bytes, OsError>,
    runs: Result<Runs, OsError>,
    fragmentation: Fragmentation,
    pin: State,
    nodes: Vec<u32>,
    by_node: Result<Vec<NodeView>, OsError>,
}

pub fn run(len: Option<Bytes>, as_json: bool, out: &mut dyn Write) -> Outcome {
    let status = Status::look(len)?;
    if as_json {
        serde_json::to_writer_pretty(&mut *out, &status.json()).map_err(io::Error::from)?;
        return Ok(writeln!(out)?);
    }
    Ok(status.write_text(out)?)
}

impl Status {
    fn look(len: Option<Bytes>) -> Result<Self, Box<dyn std::error::Error>> {
        let mended = mend();
        let mut pools: Vec<(PageSize, PoolCounts)> = Vec::new();
        for size in sizes() {
            if let Some(pool) = Pool::of(size) {
                pools.push((size, pool.counts()?));
            }
        }
        let (available, largest) = (meminfo::available()?, buddyinfo::longest_free_block(None));
        let each = block().bytes().pages_down(page_size());
        let blocks = survey(each);
        let fragmentation = Fragmentation::look(blocks.as_deref().ok(), len)?;
        let runs = blocks.map(|blocks| Runs::of(&blocks, each));
        let support = Support::probe();
        let state = |key: &str| {
            let row = support.mechanisms().iter().find(|row| row.key == key);
            row.map_or(State::No, |row| row.state)
        };
        let pin = state("io_uring.buffers");
        let nodes = numa::online().iter().map(|node| node.0).collect();
        let by_node = views(runs.as_ref().ok().map(|runs| &runs.uses[..]), block());
        Ok(Self { mended, pools, available, largest, runs, fragmentation, pin, nodes, by_node })
    }

    fn json(&self) -> Value {
        let pool = |(size, counts): &(PageSize, PoolCounts)| {
            json!({
                "page_bytes": size.bytes().get(),
                "total": counts.total,
                "free": counts.free,
                "reserved": counts.reserved,
                "surplus": counts.surplus,
            })
        };
        let runs = self.runs.as_ref().ok();
        let lengths = |runs: &[Bytes]| runs.iter().map(|len| len.get()).collect::<Vec<_>>();
        let by_node = self.by_node.as_ref().ok();
        json!({
            "pools": self.pools.iter().map(pool).collect::<Vec<_>>(),
            "available_bytes": self.available.get(),
            "largest_free_block_bytes": self.largest.as_ref().ok().map(|len| len.get()),
            "longest_free_run_bytes": runs.map(|runs| longest(&runs.free).get()),
            "fragmentation": self.fragmentation.json(),
            "pool_runs_bytes": runs.map(|runs| lengths(&runs.pools)),
            "long_term_pin": self.pin.as_str(),
            "dma_heaps": dma_heap::heaps(),
            "nodes": self.nodes,
            "by_node": by_node.map(|all| all.iter().map(NodeView::json).collect::<Vec<_>>()),
            "mended": self.mended,
        })
    }

    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        for (size, counts) in &self.pools {
            print_pool(*size, counts, out)?;
        }
        match &self.runs {
            Ok(Runs { pools, .. }) if pools.is_empty() => writeln!(out, "runs of pools    none")?,
            Ok(Runs { pools, .. }) => {
                writeln!(out, "runs of pools    {}, longest {}", pools.len(), longest(pools))?;
            }
            Err(error) => writeln!(out, "runs of pools    hidden: {error}")?,
        }
        let free = longest_free(&self.runs, &self.largest);
        writeln!(out, "memory           {} available, {free}", self.available)?;
        self.fragmentation.print(out)?;
        writeln!(out, "long-term pin    {}", self.pin)?;
        for note in &self.mended {
            writeln!(out, "pools            {note}")?;
        }
        match dma_heap::heaps()[..] {
            [] => writeln!(out, "dma-heaps        none")?,
            ref heaps => {
                writeln!(out, "dma-heaps        {}", listed(heaps, |path| path.display()))?
            }
        }
        writeln!(out, "NUMA nodes       {}", counted(&self.nodes))?;
        match &self.by_node {
            // The lines above say all of a single node.
            Ok(views) if views.len() < 2 => Ok(()),
            Ok(views) => views.iter().try_for_each(|view| out.write_all(view.text().as_bytes())),
            Err(error) => writeln!(out, "                 hidden: {error}"),
        }
    }
}

/// Describes the longest free run or, if the kernel hides `/proc/kpageflags`, the longest block in
/// the kernel's free lists, which do not join adjacent blocks.
fn longest_free(runs: &Result<Runs, OsError>, block: &Result<Bytes, OsError>) -> String {
    match (runs, block) {
        (Ok(runs), _) => format!("longest free run {}", longest(&runs.free)),
        (Err(_), Ok(len)) => format!("longest free block {len}"),
        (Err(_), Err(hidden)) => format!("longest free run hidden: {hidden}"),
    }
}

fn longest(runs: &[Bytes]) -> Bytes {
    runs.first().copied().unwrap_or_default()
}

fn print_pool(size: PageSize, counts: &PoolCounts, out: &mut dyn Write) -> io::Result<()> {
    let PoolCounts { total, free, reserved, surplus } = counts;
    let all = Pages::new(*total).checked_bytes(size).unwrap_or_default();
    writeln!(
        out,
        "hugetlb {:<8} {total} pages ({all}), {free} free, {reserved} promised, {surplus} surplus",
        size.bytes().to_string(),
    )
}

fn counted(nodes: &[u32]) -> String {
    let word = if nodes.len() == 1 { "number" } else { "numbers" };
    format!("{}, {word} {}", nodes.len(), listed(nodes, |node| *node))
}

fn listed<'a, T, D: Display>(all: &'a [T], shown: impl Fn(&'a T) -> D) -> String {
    all.iter().map(|one| shown(one).to_string()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_counted_and_numbered() {
        assert_eq!(counted(&[0]), "1, number 0");
        assert_eq!(counted(&[0, 2]), "2, numbers 0, 2");
    }
}
