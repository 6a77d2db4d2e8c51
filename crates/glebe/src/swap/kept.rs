//! [`Kept`] stores copies of a file's blocks.
//!
//! A copy may vanish when another client takes its lent page, or when the cache's own pool is full.
//! A read then returns `None`. Locks: the pool's.

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
