//! [`Signals`] sends SIGPROF to all other threads of the process at a fixed interval, as a profiler
//! does. In turns, the kernel restarts interrupted system calls (`SA_RESTART`) or fails them with
//! EINTR. A forked child has its own timer.

use std::fs;
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Time between changes of `SA_RESTART`, and between searches for threads.
const CHANGE_EVERY: Duration = Duration::from_millis(300);
const LOOK_EVERY: Duration = Duration::from_millis(5);

static CAME: AtomicU64 = AtomicU64::new(0);
/// Microseconds between signals; 0 if off.
static EVERY_US: AtomicI64 = AtomicI64::new(0);

/// Sends signals until dropped. Only one value may exist.
pub struct Signals {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

extern "C" fn count(_: libc::c_int) {
    CAME.fetch_add(1, Ordering::Relaxed);
}

impl Signals {
    /// Sends a signal to all other threads, also later ones, about once per `every`.
    pub fn start(every: Duration) -> Self {
        handle(libc::SA_RESTART);
        EVERY_US.store(every.as_micros() as i64, Ordering::Relaxed);
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        Self { stop, thread: Some(thread::spawn(move || send(every, &told))) }
    }

    pub fn came(&self) -> u64 {
        CAME.load(Ordering::Relaxed)
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        EVERY_US.store(0, Ordering::Relaxed);
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}

/// Starts a timer of CPU time in a forked child, if the parent sends signals.
pub fn in_child() {
    let every_us = EVERY_US.load(Ordering::Relaxed);
    if every_us > 0 {
        let every = libc::timeval { tv_sec: 0, tv_usec: every_us };
        let timer = libc::itimerval { it_interval: every, it_value: every };
        // SAFETY: `timer` is a live local. If the call is refused, the child gets no signals.
        unsafe { libc::setitimer(libc::ITIMER_PROF, &raw const timer, ptr::null_mut()) };
    }
}

fn handle(flags: libc::c_int) {
    // SAFETY: an all-zero `sigaction` is valid; `count` is a handler that makes no call.
    let rc = unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = count as *const () as usize;
        action.sa_flags = flags;
        libc::sigaction(libc::SIGPROF, &raw const action, ptr::null_mut())
    };
    assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
}

fn send(every: Duration, stop: &AtomicBool) {
    // SAFETY: takes no arguments.
    let (process, own) = unsafe { (libc::getpid(), libc::gettid()) };
    let (begin, mut looked) = (Instant::now(), None::<Instant>);
    let mut there: Vec<libc::pid_t> = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        if looked.is_none_or(|at| at.elapsed() > LOOK_EVERY) {
            let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
            let number = |task: fs::DirEntry| task.file_name().to_str()?.parse().ok();
            there = tasks.filter_map(number).filter(|thread| *thread != own).collect();
            looked = Some(Instant::now());
            let nth = begin.elapsed().as_millis() / CHANGE_EVERY.as_millis();
            handle(if nth % 2 == 0 { libc::SA_RESTART } else { 0 });
        }
        for thread in &there {
            // SAFETY: takes no pointers; `handle` has set a handler for the signal.
            unsafe { libc::syscall(libc::SYS_tgkill, process, *thread, libc::SIGPROF) };
        }
        thread::sleep(every);
    }
}
