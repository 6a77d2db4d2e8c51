//! Takes the huge pages of evacuated blocks into the hugetlb pool.
//!
//! The kernel fills the pool from movable memory first, with the pages that were free longest.
//! Other pages may precede the wanted frames, so the pool grows in steps. Counts and frames are
//! huge pages.

use std::ops::Range;

use super::plan::BlockPlan;
use super::work::BlockWork;
use crate::hugetlb::{is_in_pool, Builder};
use crate::Error;
use glebe_os::error::OsError;
use glebe_os::internal::mapping::Mapping;

/// Pages of a step before the first wanted page comes.
const STEP: u64 = 64;
/// `draw` gives up after more steps than this in a row without a new wanted page.
const VAIN_MAX: u32 = 3;

/// Mappings that reserve the wanted pages (and perhaps more), and the pages that came earlier.
pub(super) type Drawn = (Mapping, Option<Mapping>);

/// Puts the blocks of `plan` back as movable memory, and grows the pool by at most `most` pages.
/// Returns `None` if no run of `builder.pages` frames of `within` comes.
pub(super) fn draw(
    work: &BlockWork,
    builder: &Builder<'_>,
    plan: &BlockPlan,
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

fn longest(frames: &[u64]) -> u64 {
    frames.chunk_by(|a, b| a + 1 == *b).map(<[u64]>::len).max().unwrap_or(0) as u64
}
