//! [`Small`] stores values of up to half a page, many to a page.
//!
//! All caches of a reserve share one pool of objects. New objects are in at most [`STAGED_MAX`]
//! bytes of ordinary memory. Older objects are on idle pages of the reserve, and vanish when a
//! block takes these pages. A read returns a whole object or nothing, because the pool checks the
//! page's use before and after the copy.

use std::sync::OnceLock;

use glebe::reserve::{LentObjectPool, Reserve};
use glebe::zpool::{Codec, Error, Handle};
use glebe::Bytes;

use crate::Result;

/// Maximum bytes of ordinary memory for new objects.
const STAGED_MAX: u64 = 4 << 20;
/// Least bytes of the reserve per byte of ordinary memory for new objects.
const RESERVE_PER_STAGED: u64 = 64;

#[derive(Default)]
pub(crate) struct Small(OnceLock<LentObjectPool>);

/// Returns true if the object exists.
fn is_there<T>(answer: std::result::Result<Option<T>, Error>) -> Result<bool> {
    match answer {
        Ok(found) => Ok(found.is_some()),
        Err(Error::Stale) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

impl Small {
    fn pool(&self, reserve: &Reserve) -> Result<&LentObjectPool> {
        if let Some(pool) = self.0.get() {
            return Ok(pool);
        }
        let share = reserve.len().bytes(glebe::page_size()).get() / RESERVE_PER_STAGED;
        let staging = Bytes::new(share.min(STAGED_MAX));
        let made = reserve.object_pool().codec(Codec::None).staging(staging).build()?;
        // If two threads build a pool at once, one pool is dropped.
        Ok(self.0.get_or_init(|| made))
    }

    pub(super) fn insert(&self, reserve: &Reserve, value: &[u8]) -> Result<Option<Handle>> {
        // The pool takes no empty object.
        let bytes = if value.is_empty() { &[0] } else { value };
        match self.pool(reserve)?.insert(bytes) {
            Ok(handle) => Ok(Some(handle)),
            Err(Error::Full { .. } | Error::Space) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Fills `out`, which has the value's length. Returns true if the object exists.
    pub(super) fn read(&self, handle: Handle, out: &mut [u8]) -> Result<bool> {
        let Some(pool) = self.0.get() else { return Ok(false) };
        let out = if out.is_empty() { &mut [0] } else { out };
        is_there(pool.read(handle, out))
    }

    pub(super) fn has(&self, handle: Handle) -> Result<bool> {
        let Some(pool) = self.0.get() else { return Ok(false) };
        is_there(pool.len_of(handle))
    }

    pub(super) fn remove(&self, handle: Handle) -> Result<()> {
        let Some(pool) = self.0.get() else { return Ok(()) };
        is_there(pool.remove(handle).map(Some)).map(drop)
    }
}
