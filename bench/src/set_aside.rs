//! [`SetAside`]: pages in the machine's hugetlb pool for everybody, for as long as this lives. A
//! killed benchmark leaves them there: `glebe contig status` shows them.
//!
//! Unit: hugepages.

use glebe::contig::{grow_pool, shrink_pool, Error, Growth};
use glebe::units::PageSize;

/// Pages that were added to the pool; taken off when this is dropped.
pub(crate) struct SetAside {
    size: PageSize,
    growth: Growth,
}

impl SetAside {
    /// Adds `pages` of `size`, all of them or none.
    pub(crate) fn new(size: PageSize, pages: u64) -> Result<Self, Error> {
        Ok(Self { size, growth: grow_pool(size, pages, false)? })
    }
}

impl Drop for SetAside {
    fn drop(&mut self) {
        let pages = self.growth.added + self.growth.absorbed;
        if let Err(error) = shrink_pool(self.size, pages) {
            eprintln!("glebe-bench: {pages} pages of {} stay: {error}", self.size.bytes());
        }
    }
}
