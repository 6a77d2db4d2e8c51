//! [`recast`] replaces bricks that another process has held by new ones.

use super::pool::PoolLock;
use super::Contig;
use glebe_os::error::OsError;
use glebe_os::internal::mapping::Bricks;
use glebe_os::internal::sys::machine::hugetlb::Pool;
use glebe_os::internal::sys::memory::brick::Brick;
use glebe_os::units::{Bytes, PageSize};

/// Returns the bricks of memory built with [`Options::bricks`](super::Options::bricks).
#[must_use]
pub fn bricks(contig: &Contig) -> Option<&Bricks> {
    contig.mapping().bricks()
}

/// Cuts `old` bricks and fills new ones of `lens`, if possible from the same frames in the same
/// order: a pool hands out first what was freed last. Holds the [`PoolLock`] meanwhile, because the
/// kernel would otherwise take surplus pages out of the pool. The kernel may refuse single bricks.
///
/// # Errors
/// If the pool's record cannot be written; nothing is cut then.
pub fn recast(
    old: &[Brick],
    page: PageSize,
    lens: impl Iterator<Item = Bytes>,
) -> Result<Vec<Result<Brick, OsError>>, OsError> {
    let filled = |len| {
        let new = Brick::new(len, page)?;
        new.fill().map(|()| new)
    };
    let recast = || {
        // A brick that is not cut keeps its pages, so a new one cannot be filled.
        old.iter().rev().for_each(|brick| drop(brick.cut()));
        lens.map(filled).collect()
    };
    let pool = Pool::of(page).filter(Pool::is_writable).filter(|_| !old.is_empty());
    match pool.and_then(|pool| Some((PoolLock::acquire().ok()?, pool))) {
        Some((lock, pool)) => lock.with_pages(&pool, 0, |_| Ok(recast())),
        None => Ok(recast()),
    }
}
