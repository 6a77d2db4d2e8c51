//! [`StandingPool`] is the peer: pages that the kernel's pool has set aside.

use memmap2::MmapOptions;

use super::PAGE;
use crate::clock::timed;
use crate::memory::SetAside;
use crate::Outcome;

/// Pages added to the pool until dropped. Growing makes other processes' surplus pages persistent;
/// the drop makes those that are still in use surplus again.
pub(crate) struct StandingPool(#[allow(dead_code)] SetAside);

impl StandingPool {
    pub(crate) fn new(pages: u64) -> Outcome<Self> {
        Ok(Self(SetAside::new(PAGE, pages)?))
    }

    /// Returns the time to map pages and touch each, in microseconds.
    pub(crate) fn map(&self, pages: u64) -> Outcome<f64> {
        let len = (pages * PAGE.bytes().get()) as usize;
        let (map, took) = timed(|| {
            let mut options = MmapOptions::new();
            let mut map = options.len(len).huge(Some(PAGE.shift() as u8)).map_anon()?;
            map.iter_mut().step_by(PAGE.bytes().as_usize()).for_each(|byte| *byte = 1);
            Ok::<_, std::io::Error>(map)
        });
        map?;
        Ok(took.wall_us)
    }
}
