//! What the kernel purges when it needs so much: in which order, and how much too much.
//!
//! A region is written and marked by quarters, the third first; then memory that cannot be taken
//! back is touched, a known amount beyond the limit. What the unmark tells as lost, less that
//! amount, is the excess. Nothing else in the group gives way. Unit: pages.

use std::path::PathBuf;

use glebe::sys::page_size;
use glebe::units::Bytes;
use glebe::volatile::Priority;
use serde::{Deserialize, Serialize};

use super::bare::Bare;
use super::{Error, Which};

pub(super) const LIMIT: Bytes = Bytes::mib(96);
pub(super) const REGION: Bytes = Bytes::mib(64);
/// Beyond the limit.
pub(super) const NEEDS: [Bytes; 2] = [Bytes::mib(4), Bytes::mib(24)];
/// Quarters of the region in the order in which they are marked.
pub(super) const ORDER: [u64; 4] = [2, 0, 3, 1];

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

/// In the child.
pub(super) fn inside(plan: &Plan) -> Result<Vec<Taken>, Error> {
    let page = page_size().bytes();
    let region = plan.which.map(REGION)?;
    let quarter = REGION.get() / ORDER.len() as u64;
    let part = |nth: u64| Bytes::new(nth * quarter)..Bytes::new((nth + 1) * quarter);
    let block = vec![0x5a; Bytes::mib(1).as_usize()];
    let mut taken = Vec::new();
    for _ in 0..plan.rounds {
        for need in NEEDS {
            for at in (0..REGION.get()).step_by(block.len()) {
                region.write(Bytes::new(at), &block)?;
            }
            for nth in ORDER {
                region.mark(part(nth), Priority::NORMAL)?;
            }
            let room = LIMIT.saturating_sub(usage(plan));
            let len = room.checked_add(need).unwrap_or(room);
            let len = Bytes::new(len.get() / page.get() * page.get());
            let ballast = Bare::new(len, None)?;
            ballast.touch(Bytes::ZERO, len, page);
            let mut lost_pages = [0; 4];
            for (lost, nth) in lost_pages.iter_mut().zip(ORDER) {
                *lost = region.unmark(part(nth))?.pages().get();
            }
            drop(ballast);
            taken.push(Taken { need_pages: need.get() / page.get(), lost_pages });
        }
    }
    Ok(taken)
}

fn usage(plan: &Plan) -> Bytes {
    let text = std::fs::read_to_string(&plan.usage).unwrap_or_default();
    Bytes::new(text.trim().parse().unwrap_or_default())
}
