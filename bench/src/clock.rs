//! Clocks: wall time, this thread's CPU time, and the date.
//!
//! Units: microseconds as `f64` where a time becomes a sample, [`Duration`] before that. A reading
//! is one vDSO call for wall time and one system call for CPU time (some 0.2 us), so a stopwatch
//! is not for single operations below a microsecond: time many and divide. CPU time is that of the
//! calling thread, the kernel's work for it included; what kernel threads do on its behalf
//! (kcompactd, kswapd) is not in it. Source: clock_gettime(2).

use std::time::{Duration, SystemTime};

use rustix::time::{clock_gettime, ClockId};

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
    read(ClockId::Monotonic)
}

/// CPU time the calling thread has used.
#[must_use]
pub fn thread_cpu() -> Duration {
    read(ClockId::ThreadCPUTime)
}

/// CPU time all threads of this process have used, ended ones too.
#[must_use]
pub fn process_cpu() -> Duration {
    read(ClockId::ProcessCPUTime)
}

/// A duration as a sample in microseconds.
#[must_use]
pub fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

/// The date and time of day in UTC, `2026-01-31T23:59:59Z`.
#[must_use]
pub fn utc_now() -> String {
    humantime::format_rfc3339_seconds(SystemTime::now()).to_string()
}

/// One function for all readings: after a sleep the first fetches its code, and the next, which
/// ends what is timed, finds it.
#[inline(never)]
fn read(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

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
