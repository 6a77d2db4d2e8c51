//! [`Signals`]: SIGALRM to every thread of the process, so many times a second, as a profiler or a
//! language's run time sends signals.
//!
//! A thread of its own looks for threads every few milliseconds and gives each a timer of the
//! kernel, so that signals come wherever a thread stands, also within a system call. Half of the
//! time the kernel restarts interrupted calls (`SA_RESTART`), half of the time they end with
//! EINTR. The handler only counts. A forked child has no timers; `in_child` starts one.
//! Source: timer_create(2), setitimer(2), signal(7), signal-safety(7).
//!
//! # Safety
//! The handler adds to one atomic word, whatever it interrupts; the calls take locals of this file,
//! and each timer is deleted once, by the thread that made it.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use glebe::error::OsError;

/// Between two looks for new threads.
const LOOK_EVERY: Duration = Duration::from_millis(3);
/// Looks between two changes of `SA_RESTART`.
const LOOKS_PER_CHANGE: u32 = 100;
const TASKS: &str = "/proc/self/task";

/// Signals that came, in this process.
static CAME: AtomicU64 = AtomicU64::new(0);
/// What [`in_child`] starts; 0 while there are no signals.
static RATE: AtomicU32 = AtomicU32::new(0);

/// Sends signals until it is dropped. One at a time.
#[derive(Debug)]
pub struct Signals {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

extern "C" fn count(_: libc::c_int) {
    CAME.fetch_add(1, Ordering::Relaxed);
}

impl Signals {
    /// Sends each thread `hz` signals a second from now on, threads of later too.
    ///
    /// # Errors
    /// If the kernel refuses the handler or a first timer.
    pub fn start(hz: u32) -> Result<Self, OsError> {
        handle(libc::SA_RESTART)?;
        // Fails here, in the caller, if the machine has no such timers.
        let own = Timer::of(own_thread(), hz)?;
        RATE.store(hz, Ordering::Relaxed);
        let stop = Arc::new(AtomicBool::new(false));
        let thread = thread::spawn({
            let stop = stop.clone();
            move || send(hz, &stop)
        });
        drop(own);
        Ok(Self { stop, thread: Some(thread) })
    }

    /// As [`Signals::start`], if a rate is given.
    ///
    /// # Errors
    /// As there.
    pub fn start_if(hz: Option<u32>) -> Result<Option<Self>, OsError> {
        hz.map(Self::start).transpose()
    }

    /// Signals that came so far.
    #[must_use]
    pub fn came(&self) -> u64 {
        CAME.load(Ordering::Relaxed)
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        RATE.store(0, Ordering::Relaxed);
        self.stop.store(true, Ordering::Relaxed);
        // A panic there has been printed.
        self.thread.take().map(JoinHandle::join);
    }
}

/// Writes the line of an outcome, where signals were asked for.
pub(crate) fn write(f: &mut fmt::Formatter<'_>, came: Option<u64>) -> fmt::Result {
    match came {
        None => Ok(()),
        Some(0) => writeln!(f, "signals        0  WRONG"),
        Some(came) => writeln!(f, "signals        {came}"),
    }
}

/// In a forked child: signals at the rate of the parent's, if it has any. Async-signal-safe.
pub(crate) fn in_child() {
    let hz = RATE.load(Ordering::Relaxed);
    if hz != 0 {
        let every = libc::timeval { tv_sec: 0, tv_usec: (1_000_000 / i64::from(hz)).max(1) };
        let timer = libc::itimerval { it_interval: every, it_value: every };
        // SAFETY: `timer` is a live local. What is refused leaves a child without signals.
        unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, ptr::null_mut()) };
    }
}

/// Has signals counted.
fn handle(flags: libc::c_int) -> Result<(), OsError> {
    // SAFETY: an all-zero `sigaction` is a valid one, it is a local, and `count` has the
    // signature of a handler and makes no call.
    let rc = unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = count as *const () as usize;
        action.sa_flags = flags;
        libc::sigaction(libc::SIGALRM, &raw const action, ptr::null_mut())
    };
    match rc {
        0 => Ok(()),
        _ => Err(OsError::new("sigaction", "SIGALRM", io::Error::last_os_error())),
    }
}

/// Gives every thread but this one a timer, and takes away those of threads that have ended.
fn send(hz: u32, stop: &AtomicBool) {
    let own = own_thread();
    let mut timers: HashMap<libc::pid_t, Timer> = HashMap::new();
    for look in 1_u32.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let there: Vec<libc::pid_t> = std::fs::read_dir(TASKS).map_or(Vec::new(), |tasks| {
            tasks.flatten().filter_map(|task| task.file_name().to_str()?.parse().ok()).collect()
        });
        timers.retain(|thread, _| there.contains(thread));
        for thread in there.into_iter().filter(|thread| *thread != own) {
            if !timers.contains_key(&thread) {
                // A thread that has ended meanwhile is refused.
                timers.extend(Timer::of(thread, hz).ok().map(|timer| (thread, timer)));
            }
        }
        if look % LOOKS_PER_CHANGE == 0 {
            let restarts = look / LOOKS_PER_CHANGE % 2 == 0;
            // The same call succeeded with the same handler before.
            let _ = handle(if restarts { libc::SA_RESTART } else { 0 });
        }
        thread::sleep(LOOK_EVERY);
    }
}

fn own_thread() -> libc::pid_t {
    // SAFETY: takes nothing.
    unsafe { libc::gettid() }
}

/// A timer of the kernel that signals one thread.
struct Timer(libc::timer_t);

// SAFETY: the name of a timer is the process's, not a thread's.
unsafe impl Send for Timer {}

impl Timer {
    fn of(thread: libc::pid_t, hz: u32) -> Result<Self, OsError> {
        let refused = |call| OsError::new(call, thread.to_string(), io::Error::last_os_error());
        let nanos = (1_000_000_000 / i64::from(hz.max(1))).clamp(1, 999_999_999);
        let every = libc::timespec { tv_sec: 0, tv_nsec: nanos };
        let time = libc::itimerspec { it_interval: every, it_value: every };
        let mut timer = ptr::null_mut();
        // SAFETY: an all-zero `sigevent` is a valid one; all structures are locals.
        let made = unsafe {
            let mut event: libc::sigevent = mem::zeroed();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = libc::SIGALRM;
            event.sigev_notify_thread_id = thread;
            libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer)
        };
        if made != 0 {
            return Err(refused("timer_create"));
        }
        let timer = Self(timer);
        // SAFETY: the timer was just made, and `time` is a local.
        match unsafe { libc::timer_settime(timer.0, 0, &raw const time, ptr::null_mut()) } {
            0 => Ok(timer),
            _ => Err(refused("timer_settime")),
        }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // SAFETY: made by `Timer::of`, and nobody else has its name.
        unsafe { libc::timer_delete(self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_is_interrupted_in_its_calls() {
        let signals = Signals::start(1000).unwrap();
        let interrupted = || {
            let start = std::time::Instant::now();
            let mut times = 0;
            while times < 20 && start.elapsed() < Duration::from_secs(10) {
                // SAFETY: waits for no descriptor at all, which signals end whatever the flags.
                times += i32::from(unsafe { libc::poll(ptr::null_mut(), 0, 100) } == -1);
            }
            times
        };
        let other = thread::spawn(interrupted);
        assert_eq!((interrupted(), other.join().unwrap()), (20, 20));
        assert!(signals.came() >= 40);
        let child = crate::reserve::fork::in_child(|| u8::from(interrupted() != 20)).unwrap();
        assert_eq!(child, crate::reserve::fork::End::Exit(0));
    }
}
