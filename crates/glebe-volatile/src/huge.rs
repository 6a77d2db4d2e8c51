//! [`rejoin`] joins base pages into huge pages before a mark.
//!
//! Lost huge pages return as base pages, which cost more to mark, keep and lose. Outside
//! [`rejoin`], the region refuses huge pages, because a join of marked pages would unmark them.
//!
//! # Safety
//! The range is the region's own, locked and unmarked. The advices change no contents.
#![allow(unsafe_code)]

use glebe_os::internal::sys::memory::madvise::{advise, Advice};
use glebe_os::internal::sys::memory::pagemap::{Pagemap, Reading, Residence};
use glebe_os::units::{Bytes, PageSize};

/// Skips places where a base page is missing.
pub(super) fn rejoin(pagemap: &Pagemap, reading: Reading, addr: usize, len: Bytes, huge: PageSize) {
    let joined = |addr, len| pagemap.huge_bytes(addr, len).is_ok_and(|bytes| bytes == len);
    // Without `PAGEMAP_SCAN`, huge pages cannot be recognized.
    if reading == Reading::Entries || joined(addr, len) {
        return;
    }
    let step = huge.bytes();
    for at in (addr..addr + len.as_usize()).step_by(step.as_usize()) {
        let whole = pagemap
            .runs(at, step, reading)
            .is_ok_and(|runs| matches!(runs.as_slice(), [run] if run.residence == Residence::Page));
        if !whole || joined(at, step) {
            continue;
        }
        // SAFETY: the range is the region's; contents stay.
        unsafe {
            let _ = advise(at, step, Advice::HugePage);
            let _ = advise(at, step, Advice::Collapse);
            let _ = advise(at, step, Advice::NoHugePage);
        }
    }
}
