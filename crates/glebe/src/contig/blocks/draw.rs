//! The huge pages of evacuated blocks, out of the hugetlb pool.
//!
//! The kernel fills the pool from movable memory first, and of that from the pages that have been
//! free longest. So the pool grows in steps, each a single write, until the wanted frames are seen
//! in it; a step's pages are on top of the pool, and are what a mapping gets. They are promised to
//! a mapping under the lock and populated without it, where another may draw from the pool too: the
//! frames are read then. Counts and frames are huge pages.

use std::ops::Range;

use super::plan::Plan;
use super::work::BlockWork;
use crate::contig::hugetlb::{is_in_pool, Builder};
use crate::contig::Error;
use crate::error::OsError;
use crate::mapping::Mapping;

/// Pages that are added at a time until the first of the wanted ones comes.
const STEP: u64 = 64;
/// Steps that bring none of them, at most.
const VAIN_MAX: u32 = 3;

/// A mapping that gets the wanted pages when it is populated, and perhaps some more; and one of
/// others that came meanwhile, which keeps these in the pool until the wanted ones are out of it.
pub(super) type Drawn = (Mapping, Option<Mapping>);

/// Puts the blocks of `plan`, whose frames are `within`, back as movable memory and has the pool
/// take each at once, before others do; grows the pool by up to `most` until as many wanted pages
/// lie in it side by side as `builder` needs. `None` where they do not come.
pub(super) fn draw(
    work: &BlockWork,
    builder: &Builder<'_>,
    plan: &Plan,
    within: &Range<u64>,
    most: u64,
) -> Result<Option<Drawn>, Error> {
    let (size, pages) = (builder.pool.size(), builder.pages);
    let in_pool = || -> Result<Vec<u64>, OsError> {
        let seen =
            within.clone().map(|number| Ok((number, is_in_pool(&work.frames, number, size)?)));
        let seen: Result<Vec<_>, OsError> = seen.collect();
        Ok(seen?.into_iter().filter(|(_, is)| *is).map(|(number, _)| number).collect())
    };
    work.lock.with_growth(&builder.pool, most, |growing| {
        let each = (within.end - within.start) / plan.blocks.len().max(1) as u64;
        let (mut came, mut vain) = (0, 0);
        for block in &plan.blocks {
            work.blocks.put_on_line(*block, true)?;
            came += growing.by(each.min(pages.saturating_sub(came)))?;
        }
        if let Some(slack) = plan.slack {
            work.blocks.put_on_line(slack, true)?;
        }
        let mut here = in_pool()?;
        let (mut others, mut fresh) = if here.is_empty() { (came, 0) } else { (0, came) };
        while longest(&here) < pages {
            let step = if here.is_empty() { STEP } else { pages - longest(&here) };
            if others + fresh + step > most || vain > VAIN_MAX {
                return Ok(None);
            }
            let came = growing.by(step)?;
            let before = std::mem::replace(&mut here, in_pool()?).len();
            if came == 0 {
                return Ok(None);
            }
            match here.is_empty() {
                true => others += came,
                false => fresh += came,
            }
            vain = if here.len() == before && before > 0 { vain + 1 } else { 0 };
        }
        let others = (others > 0).then(|| builder.private(others)).transpose()?;
        Ok(Some((builder.private(fresh)?, others)))
    })
}

/// The most frames side by side.
fn longest(frames: &[u64]) -> u64 {
    frames.chunk_by(|a, b| a + 1 == *b).map(<[u64]>::len).max().unwrap_or(0) as u64
}
