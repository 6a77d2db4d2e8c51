//! Tests system calls on a lost page: EFAULT, and no signal.
//!
//! Safety: the kernel checks the pages that the calls get.

use std::os::fd::AsRawFd;

use glebe_volatile::{Engine, Priority};

use super::memory::{fill, lost, page, pages, purge, regions, whole};

fn result(count: isize) -> Result<usize, i32> {
    usize::try_from(count)
        .map_err(|_| std::io::Error::last_os_error().raw_os_error().unwrap_or_default())
}

#[test]
fn a_lost_page_is_efault_to_read_and_to_write() {
    for region in regions(4).filter(|region| region.engine() == Engine::Scan) {
        fill(&region, 0..4);
        region.mark(whole(&region), Priority::NORMAL).unwrap();
        purge(&region, 2..3);
        // A call on a memfd copies all bytes, so only a fault shortens the count.
        // SAFETY: the name is a C string, and the descriptor is new.
        let file = unsafe { libc::memfd_create(c"efault".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(file >= 0);
        // SAFETY: the descriptor has no other owner.
        let file: std::fs::File = unsafe { std::os::fd::FromRawFd::from_raw_fd(file) };
        file.set_len(4 * page() as u64).unwrap();
        let at = |number: usize| region.as_ptr().wrapping_add(number * page()).cast();
        let fd = file.as_raw_fd();
        // SAFETY: the kernel checks each page; only lost or unmarked pages are written.
        unsafe {
            assert_eq!(result(libc::pwrite(fd, at(2), page(), 0)), Err(libc::EFAULT));
            assert_eq!(result(libc::pread(fd, at(2), page(), 0)), Err(libc::EFAULT));
            // `pwrite` writes only the page before the lost one.
            assert_eq!(result(libc::pwrite(fd, at(1), 2 * page(), 0)), Ok(page()));
            assert_eq!(lost(region.unmark(pages(2..3))), [2]);
            assert_eq!(result(libc::pwrite(fd, at(1), 2 * page(), 0)), Ok(2 * page()));
            assert_eq!(result(libc::pread(fd, at(2), page(), 0)), Ok(page()));
        }
        assert!(lost(region.unmark(whole(&region))).is_empty());
    }
}
