//! [`waits`] tests a real-time thread that waits for an ordinary thread on the same processor.
//!
//! Each test runs in its own process. The kernel kills the process if its real-time thread spins or
//! yields for longer than `RUN_MICROS`. Source: sched(7), setrlimit(2) RLIMIT_RTTIME.
#![allow(unsafe_code)] // Safety: calls that change this process, or read and write one structure.

use std::io;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const MARK: &str = "GLEBE_REAL_TIME_TEST";
/// Shorter than the 0.95 s after which the kernel itself lets ordinary threads run.
const RUN_MICROS: libc::rlim_t = 200_000;
const WORK: Duration = Duration::from_millis(3);
const SECONDS_MAX: u32 = 60;

/// Runs the test in its own process. `hold` runs on an ordinary thread, and must call its argument
/// while it holds a lock. The call lets a real-time thread run `wait`, which must wait for this
/// lock.
///
/// # Panics
/// If the process fails, or the real-time thread runs for too long.
pub fn waits(test: &str, hold: impl FnOnce(&dyn Fn()) + Send, wait: impl FnOnce() + Send) {
    if std::env::var_os(MARK).is_some() {
        return run(hold, wait);
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(MARK, "1");
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().filter(|line| line.contains("skipped:")).for_each(|line| println!("{line}"));
    assert!(text.contains("1 passed"), "{}: {text}", output.status);
}

fn run(hold: impl FnOnce(&dyn Fn()) + Send, wait: impl FnOnce() + Send) {
    limit();
    let (is_held, waits) = (AtomicBool::new(false), AtomicBool::new(false));
    let (is_held, waits) = (&is_held, &waits);
    let cpu = first_cpu();
    let meanwhile = move || {
        is_held.store(true, Ordering::SeqCst);
        while !waits.load(Ordering::SeqCst) {
            std::hint::spin_loop();
        }
        let begin = Instant::now();
        while begin.elapsed() < WORK {
            std::hint::spin_loop();
        }
    };
    thread::scope(|scope| {
        scope.spawn(move || {
            stay_on(&cpu);
            hold(&meanwhile);
        });
        scope.spawn(move || {
            stay_on(&cpu);
            if let Err(why) = become_real_time() {
                println!("skipped: sched_setscheduler: {why}");
                return waits.store(true, Ordering::SeqCst);
            }
            while !is_held.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(1));
            }
            // From here on, the ordinary thread runs only while this thread sleeps.
            waits.store(true, Ordering::SeqCst);
            wait();
        });
    });
}

fn limit() {
    let limit = |what, most| {
        let most = libc::rlimit { rlim_cur: most, rlim_max: most };
        // SAFETY: setrlimit reads the structure.
        assert_eq!(unsafe { libc::setrlimit(what, &most) }, 0, "{}", io::Error::last_os_error());
    };
    limit(libc::RLIMIT_CORE, 0);
    limit(libc::RLIMIT_RTTIME, RUN_MICROS);
    // SAFETY: `alarm` takes a number, and can end only this process.
    unsafe { libc::alarm(SECONDS_MAX) };
}

fn first_cpu() -> libc::cpu_set_t {
    let len = size_of::<libc::cpu_set_t>();
    let all = allowed();
    // SAFETY: zeros are a valid set, and each access is within its length.
    unsafe {
        let mut one: libc::cpu_set_t = std::mem::zeroed();
        let first = (0..len * 8).find(|cpu| libc::CPU_ISSET(*cpu, &all));
        libc::CPU_SET(first.expect("a processor"), &mut one);
        one
    }
}

/// Keeps the calling thread on one processor until dropped there. Threads that it starts meanwhile
/// stay there.
#[must_use]
pub struct OnOneCpu(libc::cpu_set_t);

impl OnOneCpu {
    /// # Panics
    /// If the kernel refuses.
    pub fn new() -> Self {
        let all = allowed();
        stay_on(&first_cpu());
        Self(all)
    }
}

impl Default for OnOneCpu {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for OnOneCpu {
    fn drop(&mut self) {
        stay_on(&self.0);
    }
}

fn allowed() -> libc::cpu_set_t {
    // SAFETY: zeros are a valid set, and the kernel writes within its length.
    unsafe {
        let mut all: libc::cpu_set_t = std::mem::zeroed();
        assert_eq!(libc::sched_getaffinity(0, size_of_val(&all), &mut all), 0);
        all
    }
}

fn stay_on(cpu: &libc::cpu_set_t) {
    // SAFETY: the call reads the set and changes only the calling thread.
    let rc = unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), cpu) };
    assert_eq!(rc, 0, "{}", io::Error::last_os_error());
}

fn become_real_time() -> io::Result<()> {
    let param = libc::sched_param { sched_priority: 1 };
    // SAFETY: the call reads the structure and changes only the calling thread.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &param) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
