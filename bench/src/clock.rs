//! Clocks: wall time and CPU time.
//!
//! Units: microseconds as `f64` for samples, [`Duration`] before that. A reading costs a vDSO call
//! for wall time and a system call (0.2 us) for CPU time, so operations below a microsecond are
//! timed in batches. A thread's CPU time excludes kernel threads (kcompactd, kswapd) that work for
//! it. Source: clock_gettime(2).

use std::time::Duration;

use rustix::time::{clock_gettime, ClockId};

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Elapsed {
    pub(crate) wall_us: f64,
    /// CPU time of the calling thread.
    pub(crate) cpu_us: f64,
}

/// Times `work`. Reads the wall clock last before `work` and first after it.
#[inline(always)] // a call between the two readings would be timed too
pub(crate) fn timed<T>(work: impl FnOnce() -> T) -> (T, Elapsed) {
    let (cpu_start, start) = (thread_cpu(), wall());
    let done = work();
    let (end, cpu_end) = (wall(), thread_cpu());
    (done, Elapsed { wall_us: micros(end - start), cpu_us: micros(cpu_end - cpu_start) })
}

#[inline(always)]
pub(crate) fn wall() -> Duration {
    read(ClockId::Monotonic)
}

pub(crate) fn thread_cpu() -> Duration {
    read(ClockId::ThreadCPUTime)
}

/// Returns the CPU time of all threads, ended ones included.
pub(crate) fn process_cpu() -> Duration {
    read(ClockId::ProcessCPUTime)
}

pub(crate) fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

/// Reads a clock. Never inlined, so that the reading before the work brings this code into the
/// processor's cache, and the reading after it does not wait.
#[inline(never)]
fn read(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
