//! The processor's own clock, for durations: no kernel page is read, which a call after a long
//! sleep would have to fetch first. Where that clock does not tick evenly or may not be read, and
//! on other processors than x86-64, the kernel's monotonic clock stands in.
//!
//! Units: ticks of [`Rate::now`]; a [`Rate`] turns them into nanoseconds. Source: the time-stamp
//! counter (CPUID 8000_0007h EDX bit 8), prctl(2) PR_GET_TSC.
#![allow(unsafe_code)] // Safety: reading a counter touches no memory.

use std::time::{Duration, Instant};

use crate::sync::First;

/// How long the rate is measured, once in a process, or by each thread that is among the first.
const MEASURED: Duration = Duration::from_millis(2);
const SHIFT: u32 = 24;

/// Whether the processor's counter may be used; asked once.
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn find_even() -> bool {
    use std::arch::x86_64::__cpuid;
    const TSC_ENABLE: i32 = 1;
    let mut allowed = 0_i32;
    // SAFETY: writes one int. The highest leaf is asked for before the one of power management.
    unsafe {
        libc::prctl(libc::PR_GET_TSC, &raw mut allowed);
        let invariant =
            __cpuid(0x8000_0000).eax >= 0x8000_0007 && __cpuid(0x8000_0007).edx & 1 << 8 != 0;
        allowed == TSC_ENABLE && invariant
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
fn counter() -> u64 {
    // SAFETY: allowed, says `find_even`.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
fn find_even() -> bool {
    false
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
fn counter() -> u64 {
    0
}

fn kernel_nanos() -> u64 {
    static START: First<Instant> = First::new();
    let start = START.get_or_compute(Instant::now);
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// How fast the clock ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rate {
    /// Nanoseconds a tick, in fixed point; 0: the kernel's clock, whose ticks are nanoseconds.
    nanos_fixed: u64,
}

impl Rate {
    /// The rate on this machine, measured against the kernel's clock once in a process.
    pub(crate) fn measured() -> Self {
        static RATE: First<Rate> = First::new();
        *RATE.get_or_compute(|| {
            if !find_even() {
                return Self { nanos_fixed: 0 };
            }
            let (begin, from) = (Instant::now(), counter());
            while begin.elapsed() < MEASURED {
                std::hint::spin_loop();
            }
            let (nanos, ticks) = (begin.elapsed().as_nanos(), counter().wrapping_sub(from));
            let fixed = (nanos << SHIFT).checked_div(u128::from(ticks)).unwrap_or(0);
            Self { nanos_fixed: u64::try_from(fixed).unwrap_or(0) }
        })
    }

    /// The clock now, in its own ticks.
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        if self.nanos_fixed == 0 {
            return kernel_nanos();
        }
        counter()
    }

    /// Nanoseconds since a tick that [`Rate::now`] gave. 0 where the counters of two processors
    /// disagree.
    #[inline]
    pub(crate) fn nanos_since(&self, tick: u64) -> u64 {
        let ticks = self.now().saturating_sub(tick);
        if self.nanos_fixed == 0 {
            return ticks;
        }
        ((u128::from(ticks) * u128::from(self.nanos_fixed)) >> SHIFT) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bound on the clock itself, not on speed: a second is a second, within the noise of two
    /// reads.
    #[test]
    fn both_clocks_tell_the_time_that_passed() {
        for rate in [Rate::measured(), Rate { nanos_fixed: 0 }] {
            let outer = Instant::now();
            let tick = rate.now();
            let inner = Instant::now();
            std::thread::sleep(Duration::from_millis(200));
            let least = inner.elapsed().as_nanos() as u64;
            let took = rate.nanos_since(tick);
            let most = outer.elapsed().as_nanos() as u64;
            assert!(took * 100 >= least * 98, "{took} of {least} at least, by {rate:?}");
            assert!(took * 98 <= most * 100, "{took} of {most} at most, by {rate:?}");
        }
    }
}
