//! Statistics of a reserve: one table of counters, from which structure, text and JSON are made.
//!
//! Identities, exact while no call is under way ([`Stats::check`] tests them):
//!
//! * `stored + rejected_recalled = live + evicted + replaced + invalidated_pages + recalled`
//! * `total = live + held + free`

use crate::stats::{json, text, Counters, Latency, Row};
use crate::units::Pages;

macro_rules! counters {
    ($($variant:ident $name:ident $what:literal;)*) => {
        /// A counter's place.
        #[derive(Clone, Copy, Debug)]
        pub(crate) enum Counter { $($variant,)* }

        const COUNTERS: usize = [$(Counter::$variant),*].len();

        /// The statistics of a reserve at one moment.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Stats {
            $(#[doc = $what] pub $name: u64,)*
            /// Pages in the reserve.
            pub total: Pages,
            /// Pages that tenants use.
            pub live: Pages,
            /// Pages that first class holds.
            pub held: Pages,
            /// Pages that nobody uses.
            pub free: Pages,
            /// How long first-class allocations took, in nanoseconds.
            pub alloc_ns: Latency,
        }

        impl Counts {
            /// The counters, summed; the caller adds the pages.
            pub(crate) fn sum(&self) -> Stats {
                Stats { $($name: self.0.sum(Counter::$variant as usize),)* ..Stats::default() }
            }
        }

        impl Stats {
            /// The table: name, value and meaning of each line, in the order of the text.
            #[must_use]
            pub fn rows(&self) -> Vec<Row> {
                let mut rows: Vec<Row> = vec![$((stringify!($name), self.$name, $what),)*];
                rows.extend([
                    ("total_pages", self.total.get(), "pages in the reserve"),
                    ("live_pages", self.live.get(), "pages that tenants use"),
                    ("held_pages", self.held.get(), "pages that first class holds"),
                    ("free_pages", self.free.get(), "pages that nobody uses"),
                    ("alloc_p50_ns", self.alloc_ns.quantile(0.5), "median first-class allocation"),
                    ("alloc_p99_ns", self.alloc_ns.quantile(0.99), "99th percentile of these"),
                    ("alloc_max_ns", self.alloc_ns.max(), "the slowest of these"),
                ]);
                rows
            }
        }
    };
}

counters! {
    Stored stored "pages that tenants stored (GCMA: cc_stored_pages)";
    Loaded loaded "gets that hit (GCMA: cc_loaded_pages)";
    Missed missed "gets that missed (GCMA: cc_load_failed_pages)";
    Evicted evicted "pages dropped for other tenant pages (GCMA: cc_evicted_pages)";
    Recalled recalled "pages that first class took from tenants (GCMA: cc_reclaimed_pages)";
    Replaced replaced "pages dropped for a newer page of their key";
    InvalidatedPages invalidated_pages "pages dropped as invalid (GCMA: cc_invalidated_pages)";
    InvalidatedObjects invalidated_objects "objects invalidated (GCMA: cc_invalidated_inodes)";
    InvalidatedPools invalidated_pools "pools invalidated (GCMA: cc_invalidated_fses)";
    InvalidateFailed invalidate_failed "pages to be invalidated that were not there";
    Rejected rejected "puts that kept nothing";
    RejectedRecalled rejected_recalled "pages taken from a tenant in the middle of a put";
    ZeroedAhead zeroed_ahead "pages made zero in the background";
    Allocs allocs "first-class blocks given";
    AllocFailures alloc_failures "first-class requests for which no run was free";
    Barriers barriers "recalls that interrupted tenants by a barrier";
    WaitedForWriter waited_for_writer "first-class requests that waited for a tenant's copy";
}

/// The counters of one reserve.
#[derive(Debug)]
pub(crate) struct Counts(Counters<COUNTERS>);

impl Counts {
    pub(crate) fn new() -> Self {
        Self(Counters::new())
    }

    #[inline]
    pub(crate) fn add(&self, counter: Counter, n: u64) {
        self.0.add(counter as usize, n);
    }
}

impl Stats {
    /// One JSON object; names end in their unit where it is not a count.
    #[must_use]
    pub fn to_json(&self) -> String {
        json(&self.rows())
    }

    /// Tests the identities of the module's head; they hold while no call is under way.
    ///
    /// # Errors
    /// Which one does not hold, with its values.
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
        Ok(())
    }
}

impl std::fmt::Display for Stats {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&text(&self.rows()))
    }
}
