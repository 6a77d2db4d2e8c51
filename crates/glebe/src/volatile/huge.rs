//! Huge pages of a region: made again of base pages before they are marked.
//!
//! A huge page that is lost comes back as base pages. Once all of these are written they can be
//! one again, which marks, keeps and loses them at the price of one page. The region refuses huge
//! pages otherwise (`MADV_NOHUGEPAGE`): one that the kernel made of marked pages would not be
//! marked. Best effort: base pages do as well. Cost: a system call where all are huge, four for
//! each page that is not. Source: madvise(2), `MADV_COLLAPSE` (Linux 6.1).
//!
//! # Safety
//! The range is the region's own, under its lock, and no page of it is marked; none of the
//! advices used here changes contents.
#![allow(unsafe_code)]

use crate::sys::madvise::{advise, Advice};
use crate::sys::pagemap::{Pagemap, Reading, Residence};
use crate::units::{Bytes, PageSize};

/// Makes huge pages of what is all there in `len` bytes from `addr`, whole huge pages.
pub(super) fn rejoin(pagemap: &Pagemap, reading: Reading, addr: usize, len: Bytes, huge: PageSize) {
    let joined = |addr, len| pagemap.huge_bytes(addr, len).is_ok_and(|bytes| bytes == len);
    // Without the scan nothing tells which are huge, and to try them all costs too much.
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
        // SAFETY: as the file's head says.
        unsafe {
            let _ = advise(at, step, Advice::HugePage);
            let _ = advise(at, step, Advice::Collapse);
            let _ = advise(at, step, Advice::NoHugePage);
        }
    }
}
