//! [`Counters`] counts a worker's commands, bytes and closed connections. Only the worker's thread
//! adds; any thread may read or reset. A command on a large item also counts in a `large_`
//! counter.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($name:ident)*) => {
        #[derive(Debug, Default)]
        pub(super) struct Counters { $(pub(super) $name: Counter,)* }

        #[derive(Clone, Copy, Debug, Default)]
        pub(super) struct Sums { $(pub(super) $name: u64,)* }

        impl Counters {
            pub(super) fn sum<'a>(all: impl Iterator<Item = &'a Self>) -> Sums {
                let mut sums = Sums::default();
                for one in all { $(sums.$name += one.$name.get();)* }
                sums
            }

            pub(super) fn reset(&self) {
                $(self.$name.0.store(0, Ordering::Relaxed);)*
            }
        }
    };
}

counters! {
    auth_cmds auth_errors ssl_handshake_errors
    get_hits get_misses cmd_get cmd_set cmd_flush cmd_touch cmd_meta touch_hits touch_misses
    delete_hits delete_misses incr_hits incr_misses decr_hits decr_misses cas_hits cas_misses
    cas_badval bytes_read bytes_written idle_kicks answer_kicks value_kicks
    conn_yields
    large_get_hits large_cmd_set large_touch_hits large_delete_hits large_incr_hits large_decr_hits
    large_cas_hits large_cas_badval
}

#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    #[inline]
    pub(super) fn add(&self, n: u64) {
        // No other thread adds. A reset between load and store is lost.
        self.0.store(self.get() + n, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
