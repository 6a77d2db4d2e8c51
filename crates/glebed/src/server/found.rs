//! [`Found`] is memory for a lease, before it is taken.

use std::sync::Arc;

use glebe::internal::sync::Ordering;
use glebe::internal::ClosedBlock;
use glebe::reserve::{Promise, ReserveError};
use glebe::units::Pages;

use crate::keeper::Kept;

#[derive(Debug)]
pub(super) enum Found {
    /// Zeroed ahead.
    Ready(Vec<ClosedBlock>),
    /// Set aside.
    Placed(Vec<Promise>, Placed),
}

/// Counts bytes that no client was promised, but that are set aside.
#[derive(Debug)]
pub(super) struct Placed(Arc<Kept>, u64);

impl Drop for Placed {
    fn drop(&mut self) {
        self.0.placed.fetch_sub(self.1, Ordering::AcqRel);
    }
}

impl Found {
    pub(super) fn placed(runs: Vec<Promise>, kept: &Arc<Kept>) -> Self {
        let pages: u64 = runs.iter().map(|run| run.pages().get()).sum();
        let bytes = Pages::new(pages).bytes(glebe::page_size()).get();
        kept.placed.fetch_add(bytes, Ordering::AcqRel);
        Self::Placed(runs, Placed(Arc::clone(kept), bytes))
    }

    /// Takes the memory, which is zeroed first unless it was zeroed ahead.
    pub(super) fn taken(self) -> Result<Vec<ClosedBlock>, ReserveError> {
        match self {
            Self::Ready(blocks) => Ok(blocks),
            Self::Placed(runs, _placed) => runs.into_iter().map(ClosedBlock::of_promise).collect(),
        }
    }
}
