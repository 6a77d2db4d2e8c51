//! [`take`] gives a thread its own table of open files.
//!
//! A program may close every descriptor that it does not know, and may expect the lowest free
//! number for its next file. The thread's own table avoids both conflicts. Needs Linux 5.9. Source:
//! close_range(2).
#![allow(unsafe_code)]

use std::io;

use crate::internal::sys::call::answer;

/// Gives the calling thread an empty table, without even standard error.
pub fn take() -> io::Result<()> {
    let (first, last, flags) = (0, libc::c_uint::MAX, libc::CLOSE_RANGE_UNSHARE);
    // SAFETY: the call takes no pointer.
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
        // SAFETY: the call only checks a descriptor.
        assert!(number > 1 && unsafe { libc::fcntl(number, libc::F_GETFD) } >= 0);
        assert!(shared.metadata().is_ok());
    }
}
