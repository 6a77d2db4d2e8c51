//! [`Pagemap`] reads `/proc/self/pagemap`: one word per base page.
//!
//! ```text
//! bit 63 present | 62 swapped | 61 file or shared | 57 uffd-wp | 56 exclusive | 55 soft-dirty
//! bits 54..0     page frame number; zero without CAP_SYS_ADMIN
//! ```
//!
//! Without that capability `PAGEMAP_SCAN` (Linux 6.7) still shows huge pages. Source:
//! admin-guide/mm/pagemap.
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::Path;

use crate::error::OsError;
use crate::internal::sys::call::answer;
use crate::internal::sys::files::file;
use crate::internal::sys::page_size;
use crate::units::{Bytes, PageSize, Pfn};

const PATH: &str = "/proc/self/pagemap";
const FRAME: u64 = (1 << 55) - 1;
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const BATCH: usize = 1 << 13;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// No page: never touched, swapped out or being moved.
    Absent,
    /// A page whose frame the caller may not see.
    Hidden,
    Frame(Pfn),
}

impl Entry {
    fn decode(word: u64) -> Self {
        match (word & PRESENT != 0, word & FRAME) {
            (false, _) => Entry::Absent,
            (true, 0) => Entry::Hidden,
            (true, frame) => Entry::Frame(Pfn::new(frame)),
        }
    }

    #[must_use]
    pub fn frame(self) -> Option<Pfn> {
        match self {
            Entry::Frame(pfn) => Some(pfn),
            Entry::Absent | Entry::Hidden => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residence {
    Hole,
    /// The shared zero page. Only a scan can tell it from other pages.
    Zero,
    /// A page in memory, in swap or being moved.
    Page,
}

impl Residence {
    fn of(categories: u64) -> Self {
        match categories {
            _ if categories & (PAGE_IS_PRESENT | PAGE_IS_SWAPPED) == 0 => Self::Hole,
            _ if categories & PAGE_IS_PFNZERO != 0 => Self::Zero,
            _ => Self::Page,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    pub start: usize,
    pub end: usize,
    pub residence: Residence,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// `PAGEMAP_SCAN` (Linux 6.7), one record per run.
    Scan,
    Entries,
}

#[must_use]
pub fn frames_visible() -> bool {
    let touched = 1_u8;
    let at = std::hint::black_box(&raw const touched).addr();
    let page = page_size();
    Pagemap::open()
        .and_then(|map| map.entries(at, page.bytes(), page))
        .is_ok_and(|entries| entries.first().is_some_and(|entry| entry.frame().is_some()))
}

fn denied(why: &io::Error) -> String {
    match why.kind() {
        io::ErrorKind::PermissionDenied => format!(
            "{PATH}; it is root's where the process changed its user or is otherwise not dumpable \
             (PR_SET_DUMPABLE)"
        ),
        _ => PATH.to_owned(),
    }
}

#[derive(Debug)]
pub struct Pagemap {
    file: File,
}

impl Pagemap {
    pub fn open() -> Result<Self, OsError> {
        let file = file::open(Path::new(PATH), OpenOptions::new().read(true))
            .map_err(|source| OsError::new("open", denied(&source), source))?;
        Ok(Self { file })
    }

    /// Returns the entry of the first base page in each block of `grain` bytes, for `len` bytes
    /// from `addr`.
    pub fn entries(&self, addr: usize, len: Bytes, grain: PageSize) -> Result<Vec<Entry>, OsError> {
        let page = page_size();
        let count = len.pages_up(grain).as_usize();
        let step = grain.bytes().pages_down(page).get().max(1);
        let first = Bytes::new(addr as u64).pages_down(page).get();
        let mut entries = Vec::with_capacity(count);
        let per_read = if step == 1 { BATCH } else { 1 };
        while entries.len() < count {
            let at = first + entries.len() as u64 * step;
            let words = self.words(at, per_read.min(count - entries.len()))?;
            entries.extend(words.into_iter().map(Entry::decode));
        }
        Ok(entries)
    }

    fn words(&self, first: u64, count: usize) -> Result<Vec<u64>, OsError> {
        const WORD: usize = size_of::<u64>();
        let mut bytes = vec![0_u8; count * WORD];
        file::read_at(&self.file, &mut bytes, first * WORD as u64)
            .map_err(|source| OsError::new("pread", PATH, source))?;
        let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_ne_bytes);
        Ok(bytes.chunks_exact(WORD).map(word).collect())
    }

    /// Returns `Entries` if a scan fails with ENOTTY (before Linux 6.7), ENOSYS (in an emulator) or
    /// EPERM (under a filter).
    pub fn reading(&self) -> Reading {
        let at = page_size().bytes().get();
        let scanned = scan(&self.file, at..at, PAGE_IS_PRESENT, 0, &mut [Region::default()]);
        match scanned.map_err(|error| error.raw_os_error()) {
            Err(Some(libc::ENOTTY | libc::ENOSYS | libc::EPERM)) => Reading::Entries,
            _ => Reading::Scan,
        }
    }

    /// Returns ascending runs without gaps.
    pub fn runs(&self, addr: usize, len: Bytes, reading: Reading) -> Result<Vec<Run>, OsError> {
        match reading {
            Reading::Scan => self.runs_by_scan(addr, len),
            Reading::Entries => self.runs_by_entries(addr, len),
        }
    }

    fn runs_by_scan(&self, addr: usize, len: Bytes) -> Result<Vec<Run>, OsError> {
        const TOLD: u64 = PAGE_IS_PRESENT | PAGE_IS_SWAPPED | PAGE_IS_PFNZERO;
        let mut runs = Vec::new();
        self.scan_all(addr, len, 0, TOLD, |region| {
            push(&mut runs, region.start, region.end, Residence::of(region.categories));
        })?;
        Ok(runs)
    }

    /// Calls `each` for each run of pages with all `wanted` categories and equal `told` categories.
    fn scan_all(
        &self,
        addr: usize,
        len: Bytes,
        wanted: u64,
        told: u64,
        mut each: impl FnMut(&Region),
    ) -> Result<(), OsError> {
        let refused = |source| OsError::new("ioctl(PAGEMAP_SCAN)", PATH, source);
        let (mut at, end) = (addr as u64, addr as u64 + len.get());
        let mut regions = [Region::default(); 64];
        while at < end {
            let (found, walked) =
                scan(&self.file, at..end, wanted, told, &mut regions).map_err(refused)?;
            regions[..found].iter().for_each(&mut each);
            if walked <= at {
                return Err(refused(io::Error::other(format!("stopped at {at:#x} of {end:#x}"))));
            }
            at = walked;
        }
        Ok(())
    }

    fn runs_by_entries(&self, addr: usize, len: Bytes) -> Result<Vec<Run>, OsError> {
        let page = page_size();
        let (mut at, end) = (addr as u64, addr as u64 + len.get());
        let mut runs = Vec::new();
        while at < end {
            let left = Bytes::new(end - at).pages_up(page).as_usize();
            for word in self.words(Bytes::new(at).pages_down(page).get(), left.min(BATCH))? {
                let there = word & (PRESENT | SWAPPED) != 0;
                let residence = if there { Residence::Page } else { Residence::Hole };
                push(&mut runs, at, at + page.bytes().get(), residence);
                at += page.bytes().get();
            }
        }
        Ok(runs)
    }

    /// Returns how many of `len` bytes are mapped by huge pages, except the huge zero page.
    pub fn huge_bytes(&self, addr: usize, len: Bytes) -> Result<Bytes, OsError> {
        const TOLD: u64 = PAGE_IS_HUGE | PAGE_IS_PFNZERO;
        let mut huge = 0;
        self.scan_all(addr, len, PAGE_IS_HUGE, TOLD, |run| {
            if run.categories & TOLD == PAGE_IS_HUGE {
                huge += run.end - run.start;
            }
        })?;
        Ok(Bytes::new(huge))
    }
}

fn push(runs: &mut Vec<Run>, start: u64, end: u64, residence: Residence) {
    let (start, end) = (start as usize, end as usize);
    match runs.last_mut() {
        Some(last) if last.end == start && last.residence == residence => last.end = end,
        _ => runs.push(Run { start, end, residence }),
    }
}

/// Fills `regions` with runs. Returns the number of runs and the address where the scan stopped.
fn scan(
    pagemap: &File,
    range: Range<u64>,
    wanted: u64,
    told: u64,
    regions: &mut [Region],
) -> io::Result<(usize, u64)> {
    let mut scan = Scan {
        size: size_of::<Scan>() as u64,
        start: range.start,
        end: range.end,
        vec: regions.as_mut_ptr().expose_provenance() as u64,
        vec_len: regions.len() as u64,
        category_mask: wanted,
        return_mask: told,
        ..Scan::default()
    };
    // SAFETY: `scan` describes `regions`; both outlive the call.
    let found = answer("ioctl", || unsafe {
        libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN, &raw mut scan)
    })?;
    Ok((found as usize, scan.walk_end))
}

const PAGE_IS_PRESENT: u64 = 1 << 3;
const PAGE_IS_SWAPPED: u64 = 1 << 4;
const PAGE_IS_PFNZERO: u64 = 1 << 5;
const PAGE_IS_HUGE: u64 = 1 << 6;

/// `struct page_region`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

/// `struct pm_scan_arg`.
#[repr(C)]
#[derive(Default)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `_IOWR('f', 16, struct pm_scan_arg)`
const PAGEMAP_SCAN: libc::Ioctl =
    ((3 << 30) | ((size_of::<Scan>() as u32) << 16) | ((b'f' as u32) << 8) | 16) as libc::Ioctl;

const _: () = assert!(size_of::<Scan>() == 96 && size_of::<Region>() == 24);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_a_frame_only_when_present_and_shown() {
        assert_eq!(Entry::decode(7), Entry::Absent);
        assert_eq!(Entry::decode(PRESENT | 1 << 61), Entry::Hidden);
        assert_eq!(Entry::decode(PRESENT | 1 << 55 | 7), Entry::Frame(Pfn::new(7)));
    }

    #[test]
    fn a_touched_page_is_present() {
        let page = page_size();
        let bytes = vec![1_u8; page.bytes().as_usize() * 2];
        let entries =
            Pagemap::open().unwrap().entries(bytes.as_ptr().addr(), page.bytes(), page).unwrap();
        assert_eq!(entries.len(), 1);
        assert_ne!(entries[0], Entry::Absent);
    }
}
