//! [`Ground`]: one region of the stress, and what each of its owned pages must hold.
//!
//! All grounds of a run live in one child, under one limit, so that a fork finds every kind of
//! region at once. Unit: pages.
//!
//! # Safety
//! Adopted memory lives as long as its region, which is dropped first, and only the region's calls
//! reach it. The refill returns bytes of a page that is set before the region is made and never
//! changed.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::OnceLock;

use glebe::sys::madvise::transparent_huge_page;
use glebe::sys::page_size;
use glebe::units::Pages;
use glebe::volatile::{Engine, Region};
use serde::{Deserialize, Serialize};

use super::oracle::{Oracle, REFILL};
use super::Counts;
use crate::volatile::bare::Bare;
use crate::volatile::huge_pages::huge_bytes;
use crate::volatile::{Error, Which};

/// Which kind of region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// Its own memory, in base pages; sharers too.
    Own,
    /// Its own memory, in huge pages.
    Huge,
    /// The caller's memory.
    Over,
    /// Its own memory, with a callback that refills what is touched.
    Refilled,
}

impl Kind {
    /// All.
    pub const ALL: [Self; 4] = [Self::Own, Self::Huge, Self::Over, Self::Refilled];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Own => "own 4k",
            Self::Huge => "own 2m",
            Self::Over => "over",
            Self::Refilled => "on_lost",
        }
    }
}

/// A region, and its owned pages from the start on.
pub(super) struct Ground {
    pub(super) kind: Kind,
    // Before the memory that it is of.
    pub(super) region: Region,
    _memory: Option<Bare>,
    pub(super) oracle: Oracle,
    /// Pages that are marked together.
    pub(super) grain: u64,
    /// Pages of a chunk, which has one owner.
    pub(super) chunk: u64,
    pub(super) chunks: u64,
    pub(super) owners: u64,
    /// Readers keep away while it is set.
    pub(super) left_alone: AtomicBool,
    shown: AtomicBool,
}

impl Ground {
    /// A region of `kind` with `extra` pages behind the owned ones.
    pub(super) fn new(kind: Kind, which: Which, extra: u64) -> Result<Self, Error> {
        let page = page_size();
        let grain = match kind {
            Kind::Huge => transparent_huge_page()?.bytes().pages_down(page).get(),
            _ => 1,
        };
        let (chunk, chunks, owners) = match kind {
            Kind::Own => (128, 24, 3),
            Kind::Huge => (2 * grain, 2, 1),
            Kind::Over | Kind::Refilled => (128, 8, 1),
        };
        let len = Pages::new(chunk * chunks + extra).bytes(page);
        let options = Region::options().engine(which.engine()).huge(kind == Kind::Huge);
        let mut memory = None;
        let region = match kind {
            Kind::Own | Kind::Huge => options.map(len)?,
            Kind::Over => {
                let bare = Bare::new(len, None)?;
                // SAFETY: the memory lives longer than the region and nothing else uses it.
                let region = unsafe { options.over(bare.addr() as *mut u8, len) }?;
                memory = Some(bare);
                region
            }
            Kind::Refilled => {
                PAGE.get_or_init(|| vec![REFILL; page.bytes().as_usize()]);
                // SAFETY: `refill` allocates nothing, takes no lock, and its bytes stay.
                unsafe { options.on_lost(refill, std::ptr::null()) }.map(len)?
            }
        };
        let oracle = Oracle::new(chunk * chunks, kind == Kind::Refilled);
        let left_alone = AtomicBool::new(false);
        let shown = AtomicBool::new(false);
        Ok(Self {
            kind,
            region,
            _memory: memory,
            oracle,
            grain,
            chunk,
            chunks,
            owners,
            left_alone,
            shown,
        })
    }

    /// Takes note of what an owner has counted so far.
    pub(super) fn show(&self, counts: &Counts) {
        let which = if self.region.engine() == Engine::Scan { Which::Scan } else { Which::Tag };
        if counts.shown_nothing(self.kind, which).is_none() {
            self.shown.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the kernel is known to have taken and left something of it.
    pub(super) fn has_shown(&self) -> bool {
        self.shown.load(Ordering::Relaxed)
    }

    /// Owned pages.
    pub(super) fn own(&self) -> u64 {
        self.chunk * self.chunks
    }

    /// The first pages of the chunks of an owner.
    pub(super) fn chunks_of(&self, owner: u64) -> Vec<u64> {
        let chunks = 0..self.chunks;
        chunks
            .filter(|chunk| chunk % self.owners == owner)
            .map(|chunk| chunk * self.chunk)
            .collect()
    }

    /// Pages that are in huge pages now.
    pub(super) fn huge_pages(&self) -> u64 {
        let range = self.region.addr()..self.region.addr() + self.region.len().as_usize();
        huge_bytes(&range).pages_down(page_size()).get()
    }

    /// Copies a page out by touching it, word by word, as a program does that asks nobody. For
    /// regions that refill what is lost.
    pub(super) fn touch(&self, page: u64, bytes: &mut [u8]) {
        const WORD: usize = size_of::<u64>();
        assert!(self.kind == Kind::Refilled && page < self.own() && bytes.len() == whole());
        let at = self.region.addr() + Pages::new(page).bytes(page_size()).as_usize();
        for (nth, word) in bytes.chunks_exact_mut(WORD).enumerate() {
            // SAFETY: inside the region, aligned as a page is, only read, and as an atomic; a lost
            // page is refilled.
            let value = unsafe { AtomicU64::from_ptr((at + nth * WORD) as *mut u64) };
            word.copy_from_slice(&value.load(Ordering::Relaxed).to_ne_bytes());
        }
    }
}

fn whole() -> usize {
    page_size().bytes().as_usize()
}

/// What a refill gives.
static PAGE: OnceLock<Vec<u8>> = OnceLock::new();

unsafe extern "C" fn refill(_offset: u64, len: usize, _data: *const ()) -> *const u8 {
    // Set before the region is made; no allocation, no lock.
    PAGE.get().filter(|page| page.len() >= len).map_or(std::ptr::null(), |page| page.as_ptr())
}
