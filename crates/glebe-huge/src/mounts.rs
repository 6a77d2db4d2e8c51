//! Whether a program may meet hugetlbfs.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use glebe_os::internal::sys::memory::direct_files::{O_ACCMODE, O_RDONLY};

use crate::files;
use crate::state::{is_own, locked};

const UNKNOWN: u8 = 0;
const NONE: u8 = 1;
const SOME: u8 = 2;

static MOUNTED: AtomicU8 = AtomicU8::new(UNKNOWN);

/// Looks at a descriptor that the program just opened. Most programs open no file on hugetlbfs, so
/// the first call finds out whether any is mounted.
pub(crate) fn opened(fd: i32, flags: i32) {
    if flags & O_ACCMODE != O_RDONLY && !is_own() && is_mounted() {
        files::opened(fd);
    }
}

fn is_mounted() -> bool {
    if MOUNTED.load(Relaxed) == UNKNOWN {
        // No signal handler may interrupt the library's allocator.
        let _locked = locked();
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        MOUNTED.store(if names_hugetlbfs(&mounts) { SOME } else { NONE }, Relaxed);
    }
    MOUNTED.load(Relaxed) == SOME
}

fn names_hugetlbfs(mounts: &str) -> bool {
    mounts.lines().any(|line| line.split(' ').nth(2) == Some("hugetlbfs"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_third_word_is_the_type() {
        assert!(names_hugetlbfs("a /b ext4 rw 0 0\nnone /dev/hugepages hugetlbfs rw 0 0\n"));
        assert!(!names_hugetlbfs("hugetlbfs /b ext4 rw 0 0\nnone /hugetlbfs tmpfs rw 0 0\n"));
        assert!(!names_hugetlbfs(""));
    }
}
