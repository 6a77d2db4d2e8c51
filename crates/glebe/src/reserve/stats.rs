//! [`Stats`] describes a reserve.
//!
//! Identities while no call is under way ([`Stats::check`]):
//!
//! * `stored + rejected_recalled = live + evicted + replaced + invalidated_pages + recalled`
//! * `total = live + held + free`
//! * `packed_stored = packed + packed_dropped + packed_lost`

use glebe_os::internal::stats::{json, openmetrics, openmetrics_of, shown, statistics, Set};
use glebe_os::internal::sys::page_size;

statistics! {
    labels {}
    counters {
        Stored stored Pages "pages that tenants stored (GCMA: cc_stored_pages)";
        Loaded loaded Count "gets that hit (GCMA: cc_loaded_pages)";
        Missed missed Count "gets that missed (GCMA: cc_load_failed_pages)";
        Evicted evicted Pages "pages dropped for other tenant pages (GCMA: cc_evicted_pages)";
        Recalled recalled Pages
            "pages that first class took from tenants (GCMA: cc_reclaimed_pages)";
        Replaced replaced Pages "pages dropped for a newer page of their key";
        InvalidatedPages invalidated_pages Pages
            "pages dropped as invalid (GCMA: cc_invalidated_pages)";
        InvalidatedObjects invalidated_objects Count
            "objects invalidated (GCMA: cc_invalidated_inodes)";
        InvalidatedPools invalidated_pools Count
            "pools invalidated (GCMA: cc_invalidated_fses)";
        InvalidateFailed invalidate_failed Count "pages to be invalidated that were not there";
        Rejected rejected Count "puts that kept nothing";
        RejectedRecalled rejected_recalled Pages
            "pages taken from a tenant in the middle of a put";
        ZeroedAhead zeroed_ahead Pages "pages made zero in the background";
        Allocs allocs Count "first-class blocks given";
        AllocFailures alloc_failures Count "first-class requests for which no run was free";
        Barriers barriers Count "recalls that interrupted tenants by a barrier";
        WaitedForWriter waited_for_writer Count
            "first-class requests that waited for a tenant's copy";
        PackedStored packed_stored Count "pages that were put compressed";
        PackedLoaded packed_loaded Count "gets that hit a compressed page";
        PackedDropped packed_dropped Count "compressed pages dropped: replaced, invalid, displaced";
        PackedLost packed_lost Count "compressed pages found lost with the lent pages they were in";
    }
    gauges {
        total "total_pages" "pages in the reserve";
        live "live_pages" "pages that tenants use";
        held "held_pages" "pages that first class holds";
        free "free_pages" "pages that nobody uses";
        packed "packed_pages" "pages in the page cache that are stored compressed";
    }
    durations {
        alloc_ns "alloc" "grant" "first-class requests that were granted";
    }
}

pub(super) const PREFIX: &str = "glebe_reserve_";

impl Counts {
    pub(super) fn here(&self, counter: Counter) -> u64 {
        self.0.here(counter as usize)
    }
}

impl Stats {
    /// Returns one JSON object. Names end in their unit, except those of counts.
    #[must_use]
    pub fn to_json(&self) -> String {
        json(&self.rows())
    }

    /// Returns OpenMetrics 1.0 text, in seconds and bytes.
    #[must_use]
    pub fn to_openmetrics(&self) -> String {
        self.openmetrics_with(Vec::new())
    }

    /// Returns the OpenMetrics text of several reserves, each with its name as the label `reserve`.
    /// Names must be unique.
    #[must_use]
    pub fn openmetrics_of(reserves: &[(&str, &Stats)]) -> String {
        let all = reserves.iter().map(|(name, stats)| (*name, stats.rows()));
        openmetrics_of(PREFIX, page_size().bytes(), "reserve", all)
    }

    pub(crate) fn openmetrics_with(&self, labels: Vec<(&'static str, String)>) -> String {
        openmetrics(PREFIX, page_size().bytes(), &[Set { labels, rows: self.rows() }])
    }

    /// Tests that the counters add up, which is certain only while no call runs.
    ///
    /// # Errors
    /// Returns the failed identity and its values.
    pub fn check(&self) -> Result<(), String> {
        let came = self.stored + self.rejected_recalled;
        let went = self.evicted + self.replaced + self.invalidated_pages + self.recalled;
        if came != self.live.get() + went {
            return Err(format!(
                "stored {} + rejected_recalled {} is not live {} + gone {went}",
                self.stored,
                self.rejected_recalled,
                self.live.get()
            ));
        }
        let all = self.live + self.held + self.free;
        if all != self.total {
            return Err(format!("live, held and free are {all}, the reserve has {}", self.total));
        }
        let gone = self.packed_dropped + self.packed_lost;
        if self.packed_stored != self.packed.get() + gone {
            return Err(format!(
                "packed_stored {} is not packed {} + gone {gone}",
                self.packed_stored,
                self.packed.get()
            ));
        }
        Ok(())
    }
}

shown!(Stats);
