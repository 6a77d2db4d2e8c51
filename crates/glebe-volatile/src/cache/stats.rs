//! Statistics of a cache.

use glebe_os::internal::stats::{shown, statistics, texts};
use glebe_os::internal::sys::page_size;

statistics! {
    labels {}
    counters {
        Hits hits Count "lookups that found their entry whole";
        Misses misses Count "lookups that did not";
        Told told Count "misses of get, which builds nothing";
        Built built Count "misses whose value was built";
        Handed handed Count "misses that got what another thread built meanwhile";
        Failed failed Count "misses whose builder failed or panicked, or had no memory";
        Refused refused Count "misses refused: too long, or a builder that waits for itself";
        Purges purges Count "entries that were found lost, in whole or in part";
        Rebuilds rebuilds Count "values built in the place of an entry that was found lost";
        NotKept not_kept Count "values built that were not kept: no room, or no refills now";
        Evicted evicted Count "marked entries dropped for others, by the cap or for addresses";
        Removed removed Count "entries that the program removed";
        Stuck stuck Pages "pages that the kernel refused to take back and that are not used again";
        Saved saved_ns Nanos "time that building what was hit had taken";
    }
    gauges {
        kept "kept_pages" "pages of entries, those that the kernel took since among them";
        hot "hot_pages" "pages of entries that were asked for lately and are not marked";
        marked "marked_pages" "pages that the kernel may take";
        total "total_pages" "pages of addresses";
    }
    durations {
        build "build" "build" "values built";
    }
}

impl Stats {
    /// Checks that misses = told + built + handed + failed + refused, which holds while no call
    /// runs.
    ///
    /// # Errors
    /// Returns the values if not.
    pub fn check(&self) -> Result<(), String> {
        let Self { misses, told, built, handed, failed, refused, .. } = self;
        if *misses == told + built + handed + failed + refused {
            return Ok(());
        }
        Err(format!(
            "misses {misses} are not told {told} + built {built} + handed {handed} \
             + failed {failed} + refused {refused}"
        ))
    }
}

shown!(Stats);

texts!(Stats, page_size().bytes(), "glebe_cache_", "cache");
