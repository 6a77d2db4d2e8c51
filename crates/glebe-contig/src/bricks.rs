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
/// kernel would otherwise take surplus pages out of the pool. An error is the kernel's refusal of
/// one brick.
pub fn recast(
    old: &[Brick],
    page: PageSize,
    lens: impl Iterator<Item = Bytes>,
) -> Vec<Result<Brick, OsError>> {
    // Made first, so that a lack of descriptors is known before pages are freed.
    let mut new: Vec<Result<Brick, OsError>> = lens.map(|len| Brick::new(len, page)).collect();
    let mut recast = || {
        // A brick that is not cut keeps its pages, so a new one cannot be filled.
        old.iter().rev().for_each(|brick| drop(brick.cut()));
        for brick in &mut new {
            if let Some(error) = brick.as_ref().ok().and_then(|brick| brick.fill().err()) {
                *brick = Err(error);
            }
        }
    };
    let mut is_done = false;
    let pool = Pool::of(page).filter(Pool::is_writable).filter(|_| !old.is_empty());
    if let Some((lock, pool)) = pool.and_then(|pool| Some((PoolLock::acquire().ok()?, pool))) {
        // An error comes before the body: the pool's record cannot be written.
        let done: Result<(), OsError> = lock.with_pages(&pool, 0, |_| {
            recast();
            Ok(())
        });
        is_done = done.is_ok();
    }
    if !is_done {
        recast();
    }
    new
}
