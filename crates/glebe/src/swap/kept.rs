//! [`Kept`]: copies of a file's blocks, which may vanish at any moment.
//!
//! On a reserve, they use lent pages, which first class and other tenants take without notice.
//! Otherwise, they use a pool of ordinary memory that drops its oldest when full. Readers check
//! each block, as from the file. Cost and locks: the pool's.

use std::sync::Arc;

use crate::reserve::LentObjectPool;
use crate::zpool::internal::with_buffer;
use crate::zpool::{Handle, ObjectPool};

#[derive(Clone, Debug)]
pub(super) enum Kept {
    Lent(LentObjectPool),
    Own(Arc<ObjectPool>),
}

impl Kept {
    pub(super) fn insert(&self, bytes: &[u8]) -> Option<Handle> {
        match self {
            Self::Lent(pool) => pool.insert(bytes).ok(),
            Self::Own(pool) => pool.insert(bytes).ok(),
        }
    }

    /// Copies a block to `out`. Returns its length unless the block is gone.
    pub(super) fn read_to(&self, handle: Handle, out: &mut [u8]) -> Option<usize> {
        match self {
            Self::Lent(pool) => pool.read(handle, out).ok().flatten(),
            Self::Own(pool) => pool.read(handle, out).ok(),
        }
    }

    pub(super) fn read<R>(
        &self,
        handle: Handle,
        len: usize,
        work: impl FnOnce(&[u8]) -> R,
    ) -> Option<R> {
        with_buffer(len, |bytes| {
            let len = self.read_to(handle, bytes)?;
            Some(work(&bytes[..len]))
        })
    }

    pub(super) fn remove(&self, handle: Handle) {
        let _ = match self {
            Self::Lent(pool) => pool.remove(handle),
            Self::Own(pool) => pool.remove(handle),
        };
    }
}
