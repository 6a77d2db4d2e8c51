//! Tests that reach internals.
#![allow(unsafe_code)] // Safety: the forked child does nothing.

use super::*;
use crate::swap::word::{look, WordState};
use crate::swap::Store;
use glebe_os::internal::sys::memory::direct::{madvise, MADV_DOFORK, MADV_DONTFORK};
use glebe_os::internal::sys::page_size;
use glebe_os::units::Pages;
use glebe_testing::child::in_child;

const PAGES: u64 = 512;

fn len_of(pages: u64) -> Bytes {
    Pages::new(pages).bytes(page_size())
}

fn page_of(n: u64) -> Vec<u8> {
    let word = |at: u64| (at << 32 | n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..len_of(1).get() / 8).flat_map(|at| word(at).to_le_bytes()).collect()
}

/// Shares the pages of the window with a child that ends at once. The kernel then no longer moves
/// them, as if it had merged them with equal pages.
fn share_window(inner: &RegionCore) {
    let (at, len) = (inner.shadow.addr(), inner.shadow.len().as_usize());
    // SAFETY: the advice changes no bytes. The child does nothing.
    unsafe {
        madvise(at, len, MADV_DOFORK).unwrap();
        assert!(in_child(|| true));
        madvise(at, len, MADV_DONTFORK).unwrap();
    }
}

#[test]
fn a_page_of_the_window_that_the_kernel_shares_comes_back() {
    glebe_testing::alone!();
    let options = Store::options().pool_limit(len_of(2 * PAGES));
    let region = match options.build_region(len_of(PAGES), len_of(PAGES / 4)) {
        Ok(region) if region.moves_pages() => region,
        other => return println!("skipped: no UFFDIO_MOVE: {other:?}"),
    };
    (0..PAGES).for_each(|n| region.write_at(len_of(n), &page_of(n)).unwrap());
    let inner = region.inner();
    let state = |n: &u64| look(inner.slot_of(*n).word()).state();
    let shared: Vec<u64> = (0..PAGES).filter(|n| state(n) == WordState::Window).collect();
    assert!(!shared.is_empty(), "{}", region.stats());
    share_window(inner);
    let before = region.stats();
    let mut bytes = page_of(0);
    for n in &shared {
        region.read_at(len_of(*n), &mut bytes).unwrap();
        assert!(bytes == page_of(*n), "page {n}");
    }
    let after = region.stats();
    let came = after.retouched_pages - before.retouched_pages;
    assert_eq!((came, after.stuck_pages), (shared.len() as u64, 0), "{after}");
    // The shared copies are gone, so later moves find the window empty.
    for n in 0..PAGES {
        region.read_at(len_of(n), &mut bytes).unwrap();
        assert!(bytes == page_of(n), "page {n}");
    }
    region.stats().check().unwrap();
}
