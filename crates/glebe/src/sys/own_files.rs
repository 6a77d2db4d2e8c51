//! A table of open files for one thread alone.
//!
//! A program may close every descriptor it does not know, and expects the next one it opens to be
//! the lowest that is free. A thread with a table of its own is safe from the first and leaves
//! the second alone. Its descriptors mean nothing to other threads. Linux 5.9. Source:
//! close_range(2).
//!
//! # Safety
//! The call takes no pointer. It closes descriptors of the calling thread's new table: what other
//! threads have open stays open for them.
#![allow(unsafe_code)]

use std::io;

use super::call::answer;

/// Gives the calling thread a table of open files of its own, an empty one. Allocates nothing.
///
/// To be called first of all by a thread that has opened nothing: descriptors that it holds are
/// closed, standard error among them.
///
/// # Errors
/// What close_range(2) refuses: ENOSYS of an older kernel, EPERM of a filter. Nothing was changed.
pub fn take() -> io::Result<()> {
    let (first, last, flags) = (0, libc::c_uint::MAX, libc::CLOSE_RANGE_UNSHARE);
    // SAFETY: no pointer.
    answer("close_range", || unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) })
        .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::thread;

    #[test]
    fn a_thread_with_its_own_table_neither_sees_nor_moves_the_descriptors_of_others() {
        let shared = File::open("/proc/self/stat").unwrap();
        let number = shared.as_raw_fd();
        let lowest = thread::spawn(|| {
            take().map(|()| {
                let own = File::open("/proc/self/stat").unwrap();
                let other = File::open("/proc/self/cgroup").unwrap();
                (own.as_raw_fd(), other.as_raw_fd())
            })
        });
        match lowest.join().unwrap() {
            Ok(lowest) => assert_eq!(lowest, (0, 1)),
            Err(why) if why.raw_os_error() == Some(libc::ENOSYS) => {
                return println!("skipped: close_range: {why}");
            }
            Err(why) => panic!("{why}"),
        }
        // SAFETY: it asks whether a descriptor is open.
        assert!(number > 1 && unsafe { libc::fcntl(number, libc::F_GETFD) } >= 0);
        assert!(shared.metadata().is_ok());
    }
}
