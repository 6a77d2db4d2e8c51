//! The huge pages of evacuated blocks, out of the hugetlb pool.
//!
//! The kernel fills the pool from movable memory first, and of that from the pages that have been
//! free longest. So the pool grows in steps, by promises to mappings of ours ([`Promised`]), until
//! the wanted frames are seen in it; a step's pages are on top of the pool, and are what a mapping
//! gets. They are promised under the lock and populated without it, where another may draw from
//! the pool too: the frames are read then. Counts and frames are huge pages.

use std::ops::Range;

use super::plan::Plan;
use super::work::BlockWork;
use crate::contig::hugetlb::{is_in_pool, Builder, Promised};
use crate::contig::Error;
use crate::error::OsError;
use crate::mapping::Mapping;

/// Pages that are added at a time until the first of the wanted ones comes.
const STEP: u64 = 64;
/// Steps that bring none of them, at most.
const VAIN_MAX: u32 = 3;

/// Mappings that get the wanted pages when they are populated, and perhaps some more; and promises
/// of others that came meanwhile, which keep these in the pool until the wanted ones are out of it.
pub(super) type Drawn = (Vec<Mapping>, Promised);

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
    work.lock.with_surplus(&builder.pool, most, || {
        let mut promised = Promised::new(size);
        // Idle pages would be promised before the pool grows.
        promised.more(builder, builder.pool.counts()?.available())?;
        let most = most.saturating_add(promised.pages());
        let each = (within.end - within.start) / plan.blocks.len().max(1) as u64;
        let mut fresh = 0;
        for block in &plan.blocks {
            work.blocks.put_on_line(*block, true)?;
            fresh += promised.more(builder, each.min(pages - fresh))?;
        }
        if let Some(slack) = plan.slack {
            work.blocks.put_on_line(slack, true)?;
        }
        let (mut here, mut vain) = (in_pool()?, 0);
        while longest(&here) < pages {
            if here.is_empty() {
                fresh = 0;
            }
            let step = if here.is_empty() { STEP } else { pages - longest(&here) };
            if promised.pages() + step > most || vain > VAIN_MAX {
                return Ok(None);
            }
            let came = promised.more(builder, step)?;
            if came == 0 {
                return Ok(None);
            }
            fresh += came;
            let before = std::mem::replace(&mut here, in_pool()?).len();
            vain = if here.len() == before && before > 0 { vain + 1 } else { 0 };
        }
        let mut wanted = Vec::new();
        while fresh > 0 {
            let Some(mapping) = promised.take() else { break };
            fresh = fresh.saturating_sub(mapping.len().pages_up(size).get());
            wanted.push(mapping);
        }
        Ok(Some((wanted, promised)))
    })
}

/// The most frames side by side.
fn longest(frames: &[u64]) -> u64 {
    frames.chunk_by(|a, b| a + 1 == *b).map(<[u64]>::len).max().unwrap_or(0) as u64
}
