//! [`SetAside`]: pages in the machine's hugetlb pool for everybody, for as long as this lives. A
//! killed benchmark leaves them there: `glebe contig release` takes them off.
//!
//! Unit: hugepages.

use glebe::contig::{grow_pool, Error, PoolChange, PoolLock};
use glebe::error::OsError;
use glebe::sys::hugetlb::Pool;
use glebe::units::PageSize;

/// Pages that were added to the pool; taken off when this is dropped.
pub(crate) struct SetAside {
    size: PageSize,
    growth: PoolChange,
}

impl SetAside {
    /// Adds `pages` of `size`, all of them or none.
    pub(crate) fn new(size: PageSize, pages: u64) -> Result<Self, Error> {
        Ok(Self { size, growth: grow_pool(size, pages, false)? })
    }
}

impl Drop for SetAside {
    fn drop(&mut self) {
        let pages = self.growth.pages + self.growth.absorbed;
        if let Err(error) = take_off(self.size, pages) {
            eprintln!("glebe-bench: {pages} pages of {} stay: {error}", self.size.bytes());
        }
    }
}

/// Also pages in use, which leave the pool when they are freed.
fn take_off(size: PageSize, pages: u64) -> Result<(), OsError> {
    let _lock = PoolLock::acquire()?;
    let Some(pool) = Pool::of(size) else { return Ok(()) };
    pool.set_persistent(pool.counts()?.persistent().saturating_sub(pages))
}
