//! [`Kept`]: copies of what a file has, which may go at any moment.
//!
//! On a reserve they are in lent pages: first class and other tenants take these, and nobody is
//! told. Without one they are in a pool of ordinary memory, whose oldest go when it is full. What
//! is kept here is a block, as in the file, and is checked as one. Cost and locks: the pool's.

use std::sync::Arc;

use crate::reserve::LentObjectPool;
use crate::zpool::{with_buffer, Handle, ObjectPool};

/// See the module.
#[derive(Clone, Debug)]
pub(super) enum Kept {
    Lent(LentObjectPool),
    Own(Arc<ObjectPool>),
}

impl Kept {
    /// Keeps a block of up to a page, if there is room.
    pub(super) fn insert(&self, bytes: &[u8]) -> Option<Handle> {
        match self {
            Self::Lent(pool) => pool.insert(bytes).ok(),
            Self::Own(pool) => pool.insert(bytes).ok(),
        }
    }

    /// Copies a block to `out`, if it is still there; its length.
    pub(super) fn read_to(&self, handle: Handle, out: &mut [u8]) -> Option<usize> {
        match self {
            Self::Lent(pool) => pool.read(handle, out).ok().flatten(),
            Self::Own(pool) => pool.read(handle, out).ok(),
        }
    }

    /// Hands a block of `len` bytes to `work`, if it is still there.
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

    /// Forgets a block, whether or not it is still there.
    pub(super) fn remove(&self, handle: Handle) {
        let _ = match self {
            Self::Lent(pool) => pool.remove(handle),
            Self::Own(pool) => pool.remove(handle),
        };
    }
}
