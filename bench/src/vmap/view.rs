//! Compares views of scattered pages with bare system calls: an mmap(2) over reserved addresses per
//! page, and one munmap(2). Both sides view the same pages of one file, in turn. Unit: microseconds
//! of CPU time, with unmapping.
//!
//! # Safety
//! The peer maps over a range that it reserved itself and that nothing refers to.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;
use std::sync::Arc;

use glebe::extent::Extent;
use glebe::page_size;
use glebe::units::{Bytes, Pages};
use glebe::vmap::{MemFile, Space};
use rustix::fs::{memfd_create, MemfdFlags};

use crate::clock::timed;
use crate::report::{Report, GLEBE};
use crate::Outcome;

/// Pages of a view, no two adjacent.
const PAGES: u64 = 1024;
const VIEWS: u32 = 8;
const CASE: &str = "view_of_1024_scattered_pages";
const BARE: &str = "bare system calls";

pub(super) fn run(report: &mut Report) {
    if let Err(why) = compare(report) {
        report.remark(CASE, GLEBE, "us", &why.to_string());
    }
    report.ratio("view_cost", report.median(CASE, GLEBE) / report.median(CASE, BARE));
}

/// Views every other page of a file, from the last down.
fn compare(report: &mut Report) -> Outcome {
    let extents: Vec<Extent> = (0..PAGES).rev().filter_map(|n| Extent::new(2 * n, 1)).collect();
    let file: File = memfd_create("glebe-bench", MemfdFlags::CLOEXEC)?.into();
    file.set_len(Pages::new(2 * PAGES).bytes(page_size()).get())?;
    let shared = Arc::new(MemFile::adopt(OwnedFd::from(file.try_clone()?))?);
    let room = Pages::new(PAGES * 16).bytes(page_size()).max(Bytes::mib(64));
    let space = Space::new(room)?;
    for round in 0..=report.plan(10, 60) {
        let (viewed, took) = timed(|| {
            (0..VIEWS).try_for_each(|_| space.view(&shared, &extents).map(drop))?;
            space.flush()
        });
        viewed?;
        let mut bare_us = 0.0;
        for _ in 0..VIEWS {
            bare_us += bare(&file, &extents)? / f64::from(VIEWS);
        }
        // The first round allocates the file's pages.
        if round > 0 {
            report.add(CASE, GLEBE, "us", took.cpu_us / f64::from(VIEWS));
            report.add(CASE, BARE, "us", bare_us);
        }
    }
    Ok(())
}

/// Times mapping and unmapping, not reserving.
fn bare(file: &File, extents: &[Extent]) -> io::Result<f64> {
    let page = page_size().bytes().as_usize();
    let len = extents.len() * page;
    let reserved = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a null hint makes the kernel choose addresses not in use.
    let start = unsafe { libc::mmap(ptr::null_mut(), len, libc::PROT_NONE, reserved, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let (fd, flags) = (file.as_raw_fd(), libc::MAP_SHARED | libc::MAP_FIXED);
    let (failed, took) = timed(|| {
        let mut failed = false;
        for (nth, extent) in extents.iter().enumerate() {
            let from = (extent.start() as usize * page) as libc::off_t;
            // SAFETY: within the reserved range, which has a page per extent.
            unsafe {
                let at = start.byte_add(nth * page);
                failed |= libc::mmap(at, page, access, flags, fd, from) == libc::MAP_FAILED;
            }
        }
        // SAFETY: the peer's own range, and nothing refers to it.
        failed | (unsafe { libc::munmap(start, len) } != 0)
    });
    match failed {
        true => Err(io::Error::last_os_error()),
        false => Ok(took.cpu_us),
    }
}
