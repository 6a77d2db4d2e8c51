//! [`Found`] is memory for a lease, before it is taken.

use glebe::internal::ClosedBlock;
use glebe::reserve::{Promise, ReserveError};

#[derive(Debug)]
pub(super) enum Found {
    /// Zeroed ahead.
    Ready(Vec<ClosedBlock>),
    /// Set aside.
    Placed(Vec<Promise>),
}

impl Found {
    /// Takes the memory, which is zeroed first unless it was zeroed ahead.
    pub(super) fn taken(self) -> Result<Vec<ClosedBlock>, ReserveError> {
        match self {
            Self::Ready(blocks) => Ok(blocks),
            Self::Placed(runs) => runs.into_iter().map(ClosedBlock::of_promise).collect(),
        }
    }
}
