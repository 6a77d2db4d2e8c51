//! [`shorten`] gives the calling thread short time slices.
//!
//! The scheduler runs a thread with short slices soon after it wakes, even on a busy processor. The
//! thread gets no larger share of the processor, so this needs no privilege. Threads and processes
//! that the thread starts inherit it. Kernels before 6.12 ignore it. Source: sched_setattr(2),
//! the kernel's Documentation/scheduler/sched-eevdf.rst.
#![allow(unsafe_code)]

use std::mem::{size_of, zeroed};

/// The shortest slice of the kernel, in nanoseconds.
const SHORTEST: u64 = 100_000;

/// Gives the calling thread the shortest slices. Returns false if it has another policy than
/// SCHED_OTHER, or the kernel refuses.
pub fn shorten() -> bool {
    let size = size_of::<libc::sched_attr>();
    // SAFETY: the kernel writes within the structure, and reads it.
    unsafe {
        let mut now: libc::sched_attr = zeroed();
        let got = libc::syscall(libc::SYS_sched_getattr, 0, &raw mut now, size, 0);
        if got != 0 || now.sched_policy != libc::SCHED_OTHER as u32 {
            return false;
        }
        now.sched_runtime = SHORTEST;
        libc::syscall(libc::SYS_sched_setattr, 0, &raw const now, 0) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> libc::sched_attr {
        // SAFETY: the kernel writes within the structure.
        unsafe {
            let mut now: libc::sched_attr = zeroed();
            let size = size_of::<libc::sched_attr>();
            assert_eq!(libc::syscall(libc::SYS_sched_getattr, 0, &raw mut now, size, 0), 0);
            now
        }
    }

    #[test]
    fn a_thread_and_what_it_starts_get_short_slices_and_keep_their_nice_value() {
        let own = std::thread::spawn(|| {
            // SAFETY: the call takes only numbers.
            assert_eq!(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 5) }, 0);
            let before = now().sched_runtime;
            assert!(shorten());
            let inherited = std::thread::spawn(now).join().expect("a thread");
            (before, now(), inherited)
        });
        let (before, own, inherited) = own.join().expect("a thread");
        assert_eq!((own.sched_nice, inherited.sched_nice), (5, 5));
        assert_eq!(own.sched_runtime, inherited.sched_runtime);
        if before == 0 {
            println!("skipped: before Linux 6.12, a thread has no slice of its own");
            return;
        }
        assert_eq!(own.sched_runtime, SHORTEST);
        assert_ne!(before, SHORTEST);
    }
}
