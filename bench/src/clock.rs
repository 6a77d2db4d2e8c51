//! Clocks: wall time and CPU time.
//!
//! Units: microseconds as `f64` where a time becomes a sample, [`Duration`] before that. A reading
//! is one vDSO call for wall time and one system call for CPU time (some 0.2 us): single operations
//! below a microsecond are timed together and divided. What kernel threads do on a thread's behalf
//! (kcompactd, kswapd) is not in its CPU time. Source: clock_gettime(2).

use std::time::Duration;

use rustix::time::{clock_gettime, ClockId};

/// Time that something took, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Elapsed {
    pub(crate) wall_us: f64,
    /// Of the calling thread.
    pub(crate) cpu_us: f64,
}

/// What `work` comes to, and the time it took. Wall time is read last before it and first after.
#[inline(always)] // a call between the two readings would be timed too
pub(crate) fn timed<T>(work: impl FnOnce() -> T) -> (T, Elapsed) {
    let (cpu_start, start) = (thread_cpu(), wall());
    let done = work();
    let (end, cpu_end) = (wall(), thread_cpu());
    (done, Elapsed { wall_us: micros(end - start), cpu_us: micros(cpu_end - cpu_start) })
}

/// Monotonic time since an unspecified start.
#[inline(always)]
pub(crate) fn wall() -> Duration {
    read(ClockId::Monotonic)
}

pub(crate) fn thread_cpu() -> Duration {
    read(ClockId::ThreadCPUTime)
}

/// CPU time all threads of this process have used, ended ones too.
pub(crate) fn process_cpu() -> Duration {
    read(ClockId::ProcessCPUTime)
}

/// A duration as a sample in microseconds.
pub(crate) fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

/// One function for all readings: after a sleep the first fetches its code, and the next, which
/// ends what is timed, finds it.
#[inline(never)]
fn read(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
