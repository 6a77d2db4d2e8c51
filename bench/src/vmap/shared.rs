//! [`Shared`]: positions that many threads hand out.

use std::sync::{Mutex, MutexGuard, PoisonError};

use glebe::extent::Extent;
use glebe::free_tree::{FreeTree, Sharded};

use super::space::{Place, Space};
use super::state::END;

/// What all threads use.
#[allow(clippy::large_enum_variant)] // a run has one
pub(super) enum Shared {
    /// One exact tree, which a call holds while it looks and changes.
    Exact(Mutex<FreeTree>),
    /// A tree for many threads.
    Sharded(Sharded),
}

impl Shared {
    /// All is free; for so many free extents. As in the kernel, nothing is at 0, which would be
    /// a multiple of every alignment.
    pub(super) fn new(most: usize, sharded: bool) -> Self {
        let span = Extent::new(1, END - 1).expect("a space is not empty");
        if sharded {
            let tree = Sharded::new(span, most);
            tree.free(span).expect("empty before");
            return Self::Sharded(tree);
        }
        let mut tree = FreeTree::new(span, most);
        tree.free(span).expect("empty before");
        Self::Exact(Mutex::new(tree))
    }

    /// In the rows.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Exact(_) => "glebe, one tree behind a lock",
            Self::Sharded(_) => "glebe sharded",
        }
    }

    #[inline]
    pub(super) fn alloc(&self, len: u64, align: u64) -> Option<Place> {
        match self {
            Self::Exact(tree) => Space::alloc(&mut *lock(tree), len, align, None),
            Self::Sharded(tree) => {
                let found = tree.alloc(len, align).expect("a request in order");
                found.map(|extent| Place::at(extent.start()))
            }
        }
    }

    #[inline]
    pub(super) fn free(&self, place: Place, len: u64) {
        match self {
            Self::Exact(tree) => Space::free(&mut *lock(tree), place, len),
            Self::Sharded(tree) => {
                let extent = Extent::new(place.start.into(), len).expect("taken before");
                tree.free(extent).expect("taken before");
            }
        }
    }
}

fn lock(tree: &Mutex<FreeTree>) -> MutexGuard<'_, FreeTree> {
    // A call that panics ends the run.
    tree.lock().unwrap_or_else(PoisonError::into_inner)
}
