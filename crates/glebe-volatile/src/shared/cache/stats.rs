//! Statistics of a shared cache, of this process.

use glebe_os::internal::stats::{shown, statistics, texts};
use glebe_os::internal::sys::page_size;

statistics! {
    labels {}
    counters {
        Hits hits Count "lookups that found their entry whole";
        Misses misses Count "lookups that did not";
        Told told Count "misses of get, which builds nothing";
        Built built Count "misses whose value was built";
        Failed failed Count "misses whose builder failed or panicked";
        Lost lost Count "entries found that were lost, torn, or another key's of the same hash";
        Waited waited Count "lookups that waited for another builder of the same key";
        NotKept not_kept Count "values built that were not kept: no refills now, or no slot";
        Removed removed Count "entries that the program removed";
    }
    gauges {
        total "total_pages" "pages of all entries that there can be";
    }
    durations {}
}

impl Stats {
    /// Checks that `misses = told + built + failed`, which holds while no call is under way.
    ///
    /// # Errors
    /// Returns the values if the sum differs.
    pub fn check(&self) -> Result<(), String> {
        let Self { misses, told, built, failed, .. } = self;
        if *misses == told + built + failed {
            return Ok(());
        }
        Err(format!("misses {misses} are not told {told} + built {built} + failed {failed}"))
    }
}

shown!(Stats);

texts!(Stats, page_size().bytes(), "glebe_shared_cache_", "cache");
