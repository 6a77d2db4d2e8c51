//! [`Rate`] measures durations by the processor's own clock, because reading the kernel's clock is
//! slow after a long sleep. [`Rate`] uses the kernel's clock if the processor is not x86-64, or its
//! clock ticks unevenly or may not be read.
//!
//! Source: the time-stamp counter (CPUID 8000_0007h EDX bit 8), prctl(2) PR_GET_TSC.
#![allow(unsafe_code)] // Safety: reading a counter touches no memory.

use std::time::{Duration, Instant};

use crate::internal::sync::First;

const MEASURED: Duration = Duration::from_millis(2);
const TRIES: u32 = 8;
const SHIFT: u32 = 24;

#[cfg(all(target_arch = "x86_64", not(miri)))]
fn find_even() -> bool {
    use std::arch::x86_64::__cpuid;
    const TSC_ENABLE: i32 = 1;
    let mut allowed = 0_i32;
    // SAFETY: prctl writes one int, and CPUID reads no memory.
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
    // SAFETY: callers run only after `find_even` returned true.
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

/// Reads both clocks several times, and returns the pair that took the least time. If another
/// program ran between the two reads, the rate would be wrong as long as the process lives.
fn both() -> (Instant, u64) {
    let read = || {
        let (before, at) = (counter(), Instant::now());
        let gap = counter().wrapping_sub(before);
        (gap, (at, before.wrapping_add(gap / 2)))
    };
    let mut least = read();
    for _ in 1..TRIES {
        let next = read();
        if next.0 < least.0 {
            least = next;
        }
    }
    least.1
}

fn kernel_nanos() -> u64 {
    static START: First<Instant> = First::new();
    let start = START.get_or_compute(Instant::now);
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Nanoseconds per tick, times 2^24; 0 if ticks are nanoseconds of the kernel's clock.
    nanos_fixed: u64,
}

impl Rate {
    /// Returns this machine's rate.
    pub fn measured() -> Self {
        static RATE: First<Rate> = First::new();
        *RATE.get_or_compute(|| {
            if !find_even() {
                return Self { nanos_fixed: 0 };
            }
            let (begin, from) = both();
            while begin.elapsed() < MEASURED {
                std::hint::spin_loop();
            }
            let (end, to) = both();
            let (nanos, ticks) = ((end - begin).as_nanos(), to.wrapping_sub(from));
            let fixed = (nanos << SHIFT).checked_div(u128::from(ticks)).unwrap_or(0);
            Self { nanos_fixed: u64::try_from(fixed).unwrap_or(0) }
        })
    }

    #[inline]
    pub fn now(&self) -> u64 {
        if self.nanos_fixed == 0 {
            return kernel_nanos();
        }
        counter()
    }

    /// Returns the nanoseconds since `tick`; 0 if another processor's counter is behind.
    #[inline]
    pub fn nanos_since(&self, tick: u64) -> u64 {
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
