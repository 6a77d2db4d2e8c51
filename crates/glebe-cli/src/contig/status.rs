//! `glebe contig status` shows the pools, free memory and runs at this moment.

use std::fmt::Display;
use std::io::{self, Write};
use std::time::Duration;

use glebe::contig::PoolLock;
use glebe::error::OsError;
use glebe::internal::sys::machine::buddyinfo;
use glebe::internal::sys::machine::hugetlb::{sizes, Pool, PoolCounts};
use glebe::internal::sys::machine::kpage::{self, uses, Use};
use glebe::internal::sys::machine::meminfo;
use glebe::internal::sys::machine::numa;
use glebe::internal::sys::memory::dma_heap;
use glebe::internal::sys::page_size;
use glebe::probe::{State, Support};
use glebe::units::{Bytes, PageSize, Pages};
use serde_json::json;

use crate::Outcome;

/// How long `mend` waits for another process that holds the pool lock.
const PATIENCE: Duration = Duration::from_secs(1);

/// Returns the smallest page size of a pool, or the base page size without pools.
pub fn block() -> PageSize {
    sizes().pop().unwrap_or_else(page_size)
}

/// Returns the lengths of the runs of pool pages, longest first.
fn runs() -> Result<Vec<Bytes>, OsError> {
    let page = page_size();
    let block = block().bytes().pages_down(page);
    let runs = kpage::runs(&uses(block)?, block, Use::is_pool);
    let mut runs: Vec<Bytes> = runs.iter().map(|(_, len)| len.bytes(page)).collect();
    runs.sort_unstable_by(|a, b| b.cmp(a));
    Ok(runs)
}

/// Undoes what killed processes added to the pools. Returns the changes, or why it could not look.
/// Does nothing if no pool is writable.
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

/// Prints the status.
pub fn run(as_json: bool, out: &mut dyn Write) -> Outcome {
    let mended = mend();
    let mut pools: Vec<(PageSize, PoolCounts)> = Vec::new();
    for size in sizes() {
        if let Some(pool) = Pool::of(size) {
            pools.push((size, pool.counts()?));
        }
    }
    let (available, largest) = (meminfo::available()?, buddyinfo::longest_free_block());
    let runs = runs();
    let support = Support::probe();
    let state = |key: &str| {
        let row = support.mechanisms().iter().find(|row| row.key == key);
        row.map_or(State::No, |row| row.state)
    };
    let pin = state("io_uring.buffers");
    let nodes: Vec<u32> = numa::online().iter().map(|node| node.0).collect();
    if as_json {
        let pool = |(size, counts): &(PageSize, PoolCounts)| {
            json!({
                "page_bytes": size.bytes().get(),
                "total": counts.total,
                "free": counts.free,
                "reserved": counts.reserved,
                "surplus": counts.surplus,
            })
        };
        let value = json!({
            "pools": pools.iter().map(pool).collect::<Vec<_>>(),
            "available_bytes": available.get(),
            "largest_free_block_bytes": largest.as_ref().ok().map(|len| len.get()),
            "pool_runs_bytes": runs.as_ref().ok().map(|runs| {
                runs.iter().map(|len| len.get()).collect::<Vec<_>>()
            }),
            "long_term_pin": pin.as_str(),
            "dma_heaps": dma_heap::heaps(),
            "nodes": nodes,
            "mended": mended,
        });
        serde_json::to_writer_pretty(&mut *out, &value).map_err(io::Error::from)?;
        return Ok(writeln!(out)?);
    }
    for (size, counts) in &pools {
        print_pool(*size, counts, out)?;
    }
    match &runs {
        Ok(runs) if runs.is_empty() => writeln!(out, "runs of pools    none")?,
        Ok(runs) => writeln!(out, "runs of pools    {}, longest {}", runs.len(), runs[0])?,
        Err(error) => writeln!(out, "runs of pools    hidden: {error}")?,
    }
    let largest = largest.map_or_else(|hidden| hidden.to_string(), |len| len.to_string());
    writeln!(out, "memory           {available} available, longest free block {largest}")?;
    writeln!(out, "long-term pin    {pin}")?;
    for note in &mended {
        writeln!(out, "pools            {note}")?;
    }
    match dma_heap::heaps()[..] {
        [] => writeln!(out, "dma-heaps        none")?,
        ref heaps => writeln!(out, "dma-heaps        {}", listed(heaps, |path| path.display()))?,
    }
    writeln!(out, "NUMA nodes       {}", counted(&nodes))?;
    Ok(())
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
