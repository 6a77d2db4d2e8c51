//! Clocks: wall time, this thread's CPU time, and the date.
//!
//! Units: microseconds as `f64` where a time becomes a sample, [`Duration`] before that. A reading
//! is one vDSO call for wall time and one system call for CPU time (some 0.2 us), so a stopwatch
//! is not for single operations below a microsecond: time many and divide. CPU time is that of the
//! calling thread, the kernel's work for it included; what kernel threads do on its behalf
//! (kcompactd, kswapd) is not in it. Source: clock_gettime(2).
//!
//! # Safety
//! One call writes one `timespec` on the stack.
#![allow(unsafe_code)]

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A pair of clock readings to measure from.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch {
    wall: Duration,
    cpu: Duration,
}

/// Time between two readings, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Elapsed {
    /// Wall time (`CLOCK_MONOTONIC`).
    pub wall_us: f64,
    /// CPU time of the calling thread (`CLOCK_THREAD_CPUTIME_ID`).
    pub cpu_us: f64,
}

impl Stopwatch {
    /// Reads both clocks, wall last.
    #[must_use]
    #[inline(always)] // with `elapsed`: a call between the two readings would be timed too
    pub fn start() -> Self {
        let cpu = thread_cpu();
        Self { wall: wall(), cpu }
    }

    /// Time since the start, wall read first. To be called on the thread that started it, else the
    /// CPU time means nothing.
    #[must_use]
    #[inline(always)]
    pub fn elapsed(&self) -> Elapsed {
        let wall = wall().saturating_sub(self.wall);
        let cpu = thread_cpu().saturating_sub(self.cpu);
        Elapsed { wall_us: micros(wall), cpu_us: micros(cpu) }
    }
}

/// Monotonic time since an unspecified start.
#[must_use]
#[inline(always)]
pub fn wall() -> Duration {
    read(libc::CLOCK_MONOTONIC)
}

/// CPU time the calling thread has used.
#[must_use]
pub fn thread_cpu() -> Duration {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// CPU time all threads of this process have used, ended ones too.
#[must_use]
pub fn process_cpu() -> Duration {
    read(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// A duration as a sample in microseconds.
#[must_use]
pub fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

/// The date and time of day in UTC, `2026-01-31T23:59:59Z`.
#[must_use]
pub fn utc_now() -> String {
    utc(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs())
}

/// One function for all readings: after a sleep the first fetches its code, and the next, which
/// ends what is timed, finds it.
#[inline(never)]
fn read(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a live timespec; these clocks exist on every Linux, so the call cannot fail
    // and leave it unwritten (and it is initialised in any case).
    unsafe { libc::clock_gettime(clock, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Gregorian date of `secs` since 1970, counted in eras of 400 years that begin on 1 March, so
/// that the leap day is the last of its year.
fn utc(secs: u64) -> String {
    const DAYS_PER_ERA: u64 = 146_097;
    const DAYS_TO_1970: u64 = 719_468; // from 1 March of year 0
    let days = secs / 86_400 + DAYS_TO_1970;
    let (era, day) = (days / DAYS_PER_ERA, days % DAYS_PER_ERA);
    let year_of_era = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (h, m, s) = (secs / 3_600 % 24, secs / 60 % 60, secs % 60);
    format!("{year:04}-{month:02}-{day_of_month:02}T{h:02}:{m:02}:{s:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_known_by_other_means() {
        // date -u -d @N
        assert_eq!(utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(utc(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(utc(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(utc(1_709_251_199), "2024-02-29T23:59:59Z");
        assert_eq!(utc(4_107_542_400), "2100-03-01T00:00:00Z");
        assert_eq!(utc(1_798_761_599), "2026-12-31T23:59:59Z");
    }

    #[test]
    fn cpu_time_counts_work_and_not_sleep() {
        let watch = Stopwatch::start();
        std::thread::sleep(Duration::from_millis(20));
        let slept = watch.elapsed();
        assert!(slept.wall_us >= 20_000.0, "{slept:?}");
        assert!(slept.cpu_us < slept.wall_us, "{slept:?}");

        // Ends only if this thread's clock moves with its work.
        let start = thread_cpu();
        while thread_cpu() < start + Duration::from_millis(2) {
            std::hint::black_box(0);
        }
    }
}
