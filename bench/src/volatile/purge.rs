//! What the kernel purges when it needs so much: in which order, and how much too much.
//!
//! A region is written and marked by quarters, the third first; then memory that cannot be taken
//! back is touched, a known amount beyond the limit. What the unmark tells as lost, less that
//! amount, is the excess. Nothing else in the group gives way. Unit: pages.

use std::path::PathBuf;

use glebe::sys::page_size;
use glebe::units::Bytes;
use serde::{Deserialize, Serialize};

use super::bare::Bare;
use super::marked::{Judged, Marked};
use super::{Error, Which};

pub(super) const LIMIT: Bytes = Bytes::mib(96);
const REGION: Bytes = Bytes::mib(64);
/// Beyond the limit.
pub(super) const NEEDS: [Bytes; 2] = [Bytes::mib(4), Bytes::mib(24)];
/// Quarters of the region in the order in which they are marked.
const ORDER: [u64; 4] = [2, 0, 3, 1];

/// What a child is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    pub(super) which: Which,
    pub(super) rounds: usize,
    /// Says what the group holds now.
    pub(super) usage: PathBuf,
}

/// What one need took.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Taken {
    /// Beyond the limit.
    pub(super) need_pages: u64,
    /// Lost of each quarter, in the order of marking.
    pub(super) lost_pages: [u64; 4],
}

/// All needs of all rounds, and what was wrong.
pub(super) type Answer = (Vec<Taken>, Judged);

/// In the child.
pub(super) fn inside(plan: &Plan) -> Result<Answer, Error> {
    let page = page_size().bytes();
    let mut region = Marked::new(plan.which.map(REGION)?);
    let quarter = REGION.pages_down(page_size()).get() / ORDER.len() as u64;
    let part = |nth: u64| nth * quarter..(nth + 1) * quarter;
    let mut taken = Vec::new();
    for need in (0..plan.rounds).flat_map(|_| NEEDS) {
        ORDER.into_iter().try_for_each(|nth| region.write(part(nth)))?;
        ORDER.into_iter().try_for_each(|nth| region.mark(part(nth)))?;
        let len = LIMIT.saturating_sub(usage(plan)).get() + need.get();
        let len = Bytes::new(len / page.get() * page.get());
        let ballast = Bare::new(len, None)?;
        ballast.touch(Bytes::ZERO, len, page);
        let mut lost_pages = [0; 4];
        for (lost, nth) in lost_pages.iter_mut().zip(ORDER) {
            *lost = region.unmark(part(nth))?;
        }
        drop(ballast);
        taken.push(Taken { need_pages: need.get() / page.get(), lost_pages });
    }
    Ok((taken, region.judged))
}

fn usage(plan: &Plan) -> Bytes {
    let text = std::fs::read_to_string(&plan.usage).unwrap_or_default();
    Bytes::new(text.trim().parse().unwrap_or_default())
}
