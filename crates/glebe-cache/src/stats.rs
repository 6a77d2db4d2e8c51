//! [`Stats`] counts what a process did with a cache.

use glebe_os::internal::stats::{openmetrics, shown, statistics, Set};
use glebe_os::page_size;

statistics! {
    labels {}
    counters {
        Hits hits Count "values found";
        Misses misses Count "keys without a value";
        Stored stored Count "values stored";
        NotKept not_kept Count "values not stored for lack of memory";
        Removed removed Count "keys removed";
    }
    gauges {}
    durations {}
}

impl Stats {
    /// Returns OpenMetrics 1.0 text.
    #[must_use]
    pub fn to_openmetrics(&self) -> String {
        let sets = [Set { labels: Vec::new(), rows: self.rows() }];
        openmetrics("glebe_shared_cache_", page_size().bytes(), &sets)
    }
}

shown!(Stats);
