//! Huge pages of given frames, out of the hugetlb pool.
//!
//! The kernel fills the pool from movable memory first, and of that from the pages that have been
//! free longest. So the pool grows in steps until the wanted frames are seen in it; a step's pages
//! are on top of the pool, and are what a mapping gets. They are promised to a mapping under the
//! lock and populated without it, where another may draw from the pool too: the frames are read
//! then, and what is missing is told. Counts and frames are huge pages.

use std::collections::BTreeMap;
use std::ops::Range;

use super::plan::Plan;
use super::work::BlockWork;
use crate::contig::{runs, Error, Proof, Run};
use crate::error::OsError;
use crate::mapping::{Mapping, Stretch, Visibility};
use crate::sys::hugetlb::Pool;
use crate::sys::movability::Kind;
use crate::sys::page_size;
use crate::sys::pagemap::Pagemap;
use crate::units::{Bytes, PageSize, Pages, Pfn};

/// Pages that are added at a time until the first of the wanted ones comes.
const STEP: u64 = 64;
/// Steps that bring none of them, at most.
const VAIN_MAX: u32 = 3;

/// Pages that are promised, and populated later.
pub(super) struct Promised {
    /// Has the wanted pages once it is populated, and perhaps some more.
    pub mapping: Mapping,
    /// Others that came meanwhile: promised as well, so that they stay in the pool until the wanted
    /// ones are out of it.
    pub others: Option<Mapping>,
}

/// What is wanted of the pool.
pub(super) struct Draw<'a> {
    pub pool: &'a Pool,
    /// The blocks, off line, and one more to put back behind them.
    pub plan: &'a Plan,
    /// Their frames.
    pub within: Range<u64>,
    /// How many side by side.
    pub pages: u64,
    /// The most that may be added to the pool for a moment.
    pub most: u64,
}

/// Puts the blocks back as movable memory and has the pool take each at once, before others do;
/// grows the pool until the wanted pages are in it, and promises them to a mapping. `None` where
/// they do not come.
pub(super) fn promise(work: &BlockWork, draw: &Draw<'_>) -> Result<Option<Promised>, Error> {
    let Draw { pool, plan, within, pages, most } = draw;
    work.lock.with_growth(pool, *most, |growing| {
        let each = (within.end - within.start) / plan.blocks.len().max(1) as u64;
        let mut came = 0;
        for block in &plan.blocks {
            work.blocks.put_on_line(*block, true)?;
            came += growing.by(each.min(*pages - came))?;
        }
        if let Some(slack) = plan.slack {
            work.blocks.put_on_line(slack, true)?;
        }
        let mut here = in_pool(work, pool.size(), within)?;
        let (mut others, mut fresh) = if here.is_empty() { (came, 0) } else { (0, came) };
        let mut vain = 0;
        while longest(&here) < *pages {
            let step = if here.is_empty() { STEP } else { pages - longest(&here) };
            if others + fresh + step > *most || vain > VAIN_MAX {
                return Ok(None);
            }
            let came = growing.by(step)?;
            let before = std::mem::replace(&mut here, in_pool(work, pool.size(), within)?);
            if came == 0 {
                return Ok(None);
            }
            match here.is_empty() {
                true => others += came,
                false => fresh += came,
            }
            vain = if here.len() == before.len() && !here.is_empty() { vain + 1 } else { 0 };
        }
        let map = |pages: u64| {
            Mapping::hugetlb(Pages::new(pages).bytes(pool.size()), pool.size(), Visibility::PRIVATE)
        };
        let others = if others > 0 { Some(map(others)?) } else { None };
        Ok(Some(Promised { mapping: map(fresh)?, others }))
    })
}

/// The frames of `within` that are in the pool.
fn in_pool(work: &BlockWork, size: PageSize, within: &Range<u64>) -> Result<Vec<u64>, OsError> {
    let each = size.bytes().pages_down(page_size()).get();
    let mut here = Vec::new();
    for frame in within.clone() {
        if work.frames.kind(Pfn::new(frame * each))? == Kind::Pool {
            here.push(frame);
        }
    }
    Ok(here)
}

/// The most frames side by side.
fn longest(frames: &[u64]) -> u64 {
    frames.chunk_by(|a, b| a + 1 == *b).map(<[u64]>::len).max().unwrap_or(0) as u64
}

/// Keeps of a populated mapping `pages` pages with frames side by side of `within`, in order, and
/// gives the rest back; `None` where they are not in it.
pub(super) fn keep_run(
    mapping: Mapping,
    size: PageSize,
    within: &Range<u64>,
    pages: u64,
) -> Result<Option<(Mapping, (Vec<Run>, Proof))>, Error> {
    let each = size.bytes().pages_down(page_size()).get();
    let entries = Pagemap::open()?.entries(mapping.addr(), mapping.len(), size)?;
    let frames = entries.iter().map(|entry| entry.frame().unwrap_or_default().get() / each);
    let places: BTreeMap<u64, u64> =
        frames.zip(0..).filter(|(frame, _)| within.contains(frame)).collect();
    let here: Vec<(u64, u64)> = places.into_iter().collect();
    let run = here.chunk_by(|a, b| a.0 + 1 == b.0).find(|run| run.len() as u64 >= pages);
    let Some(run) = run else { return Ok(None) };
    let kept = run.iter().take(pages as usize).map(|(_, place)| (0, *place));
    let stretches = Stretch::of_pages(kept, size);
    let whole = [Stretch { part: 0, offset: Bytes::ZERO, len: mapping.len() }];
    let mapping = match stretches[..] == whole {
        true => mapping,
        false => Mapping::gathered(vec![mapping], &stretches, size)?,
    };
    let runs = runs::read(&mapping, size)?;
    Ok((runs.0.len() == 1).then_some((mapping, runs)))
}
