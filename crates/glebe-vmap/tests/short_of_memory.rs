//! Tests a process with little memory left: creating a large free tree returns an error.
//!
//! # Safety
//! This process runs one test, which changes its limit.
#![allow(unsafe_code)]

use std::io::ErrorKind;

use glebe_os::extent::Extent;
use glebe_os::internal::sys::page_size;
use glebe_vmap::free_tree::{Classes, FreeTree};

/// Extents of a tree that needs more than `ROOM`.
const EXTENTS: usize = 1 << 24;
/// Bytes: enough for the program, but not for the tree.
const ROOM: u64 = 64 << 20;

fn mapped_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = text.split(' ').next().unwrap().parse().unwrap();
    pages * page_size().bytes().get()
}

fn within<T>(more: u64, body: impl FnOnce() -> T) -> T {
    let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `getrlimit` writes a local.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut before) }, 0);
    let limit = libc::rlimit { rlim_cur: mapped_bytes() + more, ..before };
    // SAFETY: `setrlimit` reads a local.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) }, 0);
    let result = body();
    // SAFETY: `setrlimit` reads a local.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const before) }, 0);
    result
}

#[test]
fn a_tree_for_which_there_is_no_memory_is_an_error() {
    glebe_testing::alone!();
    let span = Extent::new(0, 1 << 31).unwrap();
    let tree = || FreeTree::with_classes(span, EXTENTS, Classes::All);
    let before = mapped_bytes();
    let refused = within(ROOM, tree).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::OutOfMemory, "{refused}");
    assert!(refused.subject().contains("16777216 free extents"), "{refused}");
    assert!(mapped_bytes() <= before + ROOM, "storage is kept");
    tree().unwrap().free(span).unwrap();
}
