//! [`Ground`] is a region under stress, with the expected state of its owned pages.
//!
//! All grounds share one process, so a forked child inherits every kind. Unit: pages.
//!
//! # Safety
//! The memory of `Kind::Over` stays mapped until the process ends; only the region's calls access
//! it. `PAGE` is set before the region of `Kind::Refilled` is made, and never changes.

use std::fmt;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::OnceLock;

use glebe_os::internal::sys::memory::madvise::transparent_huge_page;
use glebe_os::internal::sys::page_size;
use glebe_os::units::{Bytes, Pages};
use glebe_volatile::{Engine, Region};

use super::oracle::{Oracle, REFILL};
use super::Counts;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Own memory in base pages; sharer threads use a part.
    Own,
    Huge,
    Over,
    /// Own memory; with *scan*, a callback refills lost pages when touched.
    Refilled,
}

impl Kind {
    pub const ALL: [Self; 4] = [Self::Own, Self::Huge, Self::Over, Self::Refilled];
}

/// A region, which begins with the owned pages.
pub(super) struct Ground {
    pub(super) kind: Kind,
    pub(super) region: Region,
    pub(super) oracle: Oracle,
    /// Pages that are marked together.
    pub(super) grain: u64,
    /// Pages of a chunk. Each chunk has one owner.
    pub(super) chunk: u64,
    pub(super) chunks: u64,
    pub(super) owners: u64,
    pub(super) left_alone: AtomicBool,
    shown: AtomicBool,
    /// Most base pages seen in huge pages.
    huge_pages: AtomicU64,
}

impl Ground {
    pub(super) fn new(kind: Kind, engine: Engine, extra: u64) -> Self {
        let page = page_size();
        let grain = match kind {
            Kind::Huge => transparent_huge_page().unwrap().bytes().pages_down(page).get(),
            _ => 1,
        };
        let (chunk, chunks, owners) = match kind {
            Kind::Own => (128, 24, 3),
            Kind::Huge => (2 * grain, 2, 1),
            Kind::Over | Kind::Refilled => (128, 8, 1),
        };
        let len = Pages::new(chunk * chunks + extra).bytes(page);
        let options = Region::options().engine(engine).huge(kind == Kind::Huge);
        let region = match kind {
            Kind::Own | Kind::Huge => options.build(len),
            Kind::Over => {
                // SAFETY: new memory that lives as long as the process, without other users.
                unsafe {
                    let (access, kind) = (
                        libc::PROT_READ | libc::PROT_WRITE,
                        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                    );
                    let at = libc::mmap(ptr::null_mut(), len.as_usize(), access, kind, -1, 0);
                    assert_ne!(at, libc::MAP_FAILED);
                    options.build_over(at.cast(), len)
                }
            }
            Kind::Refilled => {
                PAGE.get_or_init(|| vec![REFILL; page.bytes().as_usize()]);
                // SAFETY: `refill` neither allocates nor locks, and its bytes stay.
                unsafe { options.on_lost(refill, ptr::null()) }.build(len)
            }
        };
        let oracle = Oracle::new(chunk * chunks, kind == Kind::Refilled);
        Self {
            kind,
            region: region.unwrap(),
            oracle,
            grain,
            chunk,
            chunks,
            owners,
            left_alone: AtomicBool::new(false),
            shown: AtomicBool::new(false),
            huge_pages: AtomicU64::new(0),
        }
    }

    pub(super) fn show(&self, counts: &Counts) {
        if counts.shown_nothing(self.kind, self.region.engine()).is_none() {
            self.shown.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn has_shown(&self) -> bool {
        self.shown.load(Ordering::Relaxed)
    }

    pub(super) fn own(&self) -> u64 {
        self.chunk * self.chunks
    }

    pub(super) fn chunks_of(&self, owner: u64) -> Vec<u64> {
        let chunks = 0..self.chunks;
        chunks
            .filter(|chunk| chunk % self.owners == owner)
            .map(|chunk| chunk * self.chunk)
            .collect()
    }

    pub(super) fn look_for_huge_pages(&self) {
        let from = self.region.addr();
        let to = from + self.region.len().as_usize();
        let number = |hex| usize::from_str_radix(hex, 16).ok();
        let (mut is_inside, mut kib) = (false, 0);
        for line in std::fs::read_to_string("/proc/self/smaps").unwrap().lines() {
            let bounds = line.split_once(' ').and_then(|(bounds, _)| bounds.split_once('-'));
            let bounds = bounds.and_then(|(start, end)| Some((number(start)?, number(end)?)));
            if let Some((start, end)) = bounds {
                is_inside = start < to && end > from;
            } else if let Some(rest) = line.strip_prefix("AnonHugePages:").filter(|_| is_inside) {
                kib += rest.trim().trim_end_matches(" kB").parse::<u64>().unwrap();
            }
        }
        let pages = Bytes::new(kib << 10).pages_down(page_size()).get();
        self.huge_pages.fetch_max(pages, Ordering::Relaxed);
    }

    pub(super) fn touch(&self, page: u64, bytes: &mut [u8]) {
        const WORD: usize = size_of::<u64>();
        assert!(self.kind == Kind::Refilled && page < self.own() && bytes.len() == whole());
        let at = self.region.addr() + Pages::new(page).bytes(page_size()).as_usize();
        for (nth, word) in bytes.chunks_exact_mut(WORD).enumerate() {
            // SAFETY: the word is aligned, inside the region and only read; `refill` fills losses.
            let value = unsafe { AtomicU64::from_ptr((at + nth * WORD) as *mut u64) };
            word.copy_from_slice(&value.load(Ordering::Relaxed).to_ne_bytes());
        }
    }
}

impl fmt::Display for Ground {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, own, huge) = (self.kind, self.own(), self.huge_pages.load(Ordering::Relaxed));
        write!(f, "{kind:?} of {own} pages, {huge} of them huge")
    }
}

fn whole() -> usize {
    page_size().bytes().as_usize()
}

static PAGE: OnceLock<Vec<u8>> = OnceLock::new();

unsafe extern "C" fn refill(_offset: u64, len: usize, _data: *const ()) -> *const u8 {
    PAGE.get().filter(|page| page.len() >= len).map_or(ptr::null(), |page| page.as_ptr())
}
