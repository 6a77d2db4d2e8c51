//! [`Started`]: a program that was started in time, with the pages that it needs.

use glebe::units::Bytes;

use super::lending::Lending;
use super::origin::Origin;
use super::process::hugetlb_of;
use crate::clock::timed;
use crate::lease::StandingPool;
use crate::Outcome;

pub(super) struct Started<T> {
    /// Dropped first.
    pub(super) program: T,
    pub(super) ms: f64,
    _pages: Option<StandingPool>,
}

impl<T> Started<T> {
    /// Starts a program that needs `pages` pages. Only for [`Origin::Raised`], the time includes
    /// the raise of the pool's size.
    pub(super) fn new(
        origin: Origin,
        pages: u64,
        lending: &Lending,
        start: impl FnOnce() -> Outcome<T>,
    ) -> Outcome<Self> {
        // The server's zeroing would slow down any program.
        lending.wait_for_stock()?;
        let aside = |when| -> Outcome<Option<StandingPool>> {
            (origin == when).then(|| StandingPool::new(pages)).transpose()
        };
        let standing = aside(Origin::Standing)?;
        // The pages of a pool that has served before are in memory of the host, if this machine is
        // a virtual one. The server's pages are there too.
        standing.iter().try_for_each(|pool| pool.map(pages).map(drop))?;
        let (had, took) = timed(|| Ok::<_, crate::Failure>((aside(Origin::Raised)?, start()?)));
        let (raised, program) = had?;
        Ok(Self { program, ms: took.wall_us / 1e3, _pages: standing.or(raised) })
    }
}

/// Returns true if a program did not get its huge pages from its origin. Since its start it has
/// touched at least `touched` bytes; leases for it have at least `held`.
pub(super) fn fell_back(
    origin: Origin,
    lending: &Lending,
    process: u32,
    (touched, held): (Bytes, Bytes),
) -> Outcome<bool> {
    let is_leased = match origin {
        Origin::Without => return Ok(false),
        Origin::Glebe => lending.held()? >= held,
        Origin::Standing | Origin::Raised => lending.held()? == Bytes::ZERO,
    };
    Ok(!is_leased || hugetlb_of(process)? < touched)
}
