//! Views of scattered pages beside the system calls that they are made of.
//!
//! A sample is some views made and dropped one after the other, divided: microseconds of CPU time
//! for each, what unmaps them later included. Peer and view map the same pages of the same kind of
//! file in the same order, in turn.
//!
//! # Safety
//! The peer maps over a range that it reserved itself and nothing refers to.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::Arc;

use glebe::error::OsError;
use glebe::extent::Extent;
use glebe::sys::page_size;
use glebe::units::{Bytes, Pages};
use glebe::vmap::{MemFile, Space};
use rustix::fs::{memfd_create, MemfdFlags};

use crate::clock::Stopwatch;
use crate::report::Report;
use crate::summary::Summary;

/// Pages of a large view, none beside the next.
const PAGES: u64 = 1024;
/// Views a sample.
const VIEWS: u32 = 8;
const SAMPLES: usize = 60;
const SAMPLES_QUICK: usize = 10;

/// Adds the rows and the ratio `view_cost`.
///
/// # Errors
/// What the kernel refuses.
pub(super) fn run(report: &mut Report, quick: bool) -> Result<(), OsError> {
    let samples = if quick { SAMPLES_QUICK } else { SAMPLES };
    let (view, bare) = compare(samples)?;
    let case = "view_of_1024_scattered_pages";
    report.row(case, "glebe", "us", &view);
    report.row(case, "bare system calls", "us", &bare);
    if let (Some(view), Some(bare)) = (Summary::of(&view), Summary::of(&bare)) {
        report.ratio("view_cost", view.median / bare.median);
    }
    Ok(())
}

/// Samples of views of every other page of a file, from the last one down.
fn compare(samples: usize) -> Result<(Vec<f64>, Vec<f64>), OsError> {
    let page = page_size();
    let len = Pages::new(2 * PAGES).bytes(page);
    let extents: Vec<Extent> = (0..PAGES).rev().filter_map(|n| Extent::new(2 * n, 1)).collect();
    let file = Arc::new(MemFile::new(len)?);
    let refused = |why: glebe::vmap::Error| {
        OsError::new("view", format!("{PAGES} pages"), io::Error::other(why.to_string()))
    };
    let room = Pages::new(PAGES * 16).bytes(page).max(Bytes::mib(64));
    let space = Space::new(room).map_err(refused)?;
    let mut bare = Bare::new(len, Pages::new(PAGES).bytes(page))?;
    let (mut of_views, mut of_bare) = (Vec::new(), Vec::new());
    for round in 0..=samples {
        let watch = Stopwatch::start();
        for _ in 0..VIEWS {
            space.view(&file, &extents).map_err(refused)?;
        }
        space.flush().map_err(refused)?;
        let view_us = watch.elapsed().cpu_us / f64::from(VIEWS);
        let mut bare_us = 0.0;
        for _ in 0..VIEWS {
            bare_us += bare.sample(&extents)? / f64::from(VIEWS);
        }
        // The first round brings the pages into the files.
        if round > 0 {
            of_views.push(view_us);
            of_bare.push(bare_us);
        }
    }
    Ok((of_views, of_bare))
}

/// The peer: mmap(2) over reserved addresses for each page, and one munmap(2).
struct Bare {
    file: File,
    at: *mut libc::c_void,
    len: usize,
}

impl Bare {
    fn new(file_len: Bytes, len: Bytes) -> Result<Self, OsError> {
        let refused = |e: rustix::io::Errno| OsError::new("memfd_create", "a peer", e.into());
        let file: File = memfd_create("glebe-bench", MemfdFlags::CLOEXEC).map_err(refused)?.into();
        file.set_len(file_len.get())
            .map_err(|e| OsError::new("ftruncate", file_len.to_string(), e))?;
        let len = len.as_usize();
        let mut bare = Self { file, at: ptr::null_mut(), len };
        bare.reserve()?;
        Ok(bare)
    }

    fn reserve(&mut self) -> Result<(), OsError> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a null hint makes the kernel choose an address not in use.
        let at = unsafe { libc::mmap(ptr::null_mut(), self.len, libc::PROT_NONE, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(OsError::new("mmap", "a peer", io::Error::last_os_error()));
        }
        self.at = at;
        Ok(())
    }

    /// Microseconds to map and unmap; to reserve the addresses anew is not in it.
    fn sample(&mut self, extents: &[Extent]) -> Result<f64, OsError> {
        let page = page_size().bytes();
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let (fd, flags) = (self.file.as_raw_fd(), libc::MAP_SHARED | libc::MAP_FIXED);
        let watch = Stopwatch::start();
        let mut at = self.at;
        let mut failed = false;
        for extent in extents {
            let len = (extent.len() * page.get()) as usize;
            let from = (extent.start() * page.get()) as libc::off_t;
            // SAFETY: within what `reserve` reserved: as many pages as there are extents.
            unsafe {
                failed |= libc::mmap(at, len, access, flags, fd, from) == libc::MAP_FAILED;
                at = at.byte_add(len);
            }
        }
        // SAFETY: the peer's own range.
        failed |= unsafe { libc::munmap(self.at, self.len) } != 0;
        let us = watch.elapsed().cpu_us;
        if failed {
            return Err(OsError::new("mmap", "a peer", io::Error::last_os_error()));
        }
        self.reserve()?;
        Ok(us)
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        // SAFETY: the peer's own range, to which nothing refers.
        unsafe { libc::munmap(self.at, self.len) };
    }
}
