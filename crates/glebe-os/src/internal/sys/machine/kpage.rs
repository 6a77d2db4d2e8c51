//! [`Frames`] reads `/proc/kpageflags`, and [`uses`] also `/proc/kpagecount`. The files show how
//! page frames are used, and whether the kernel can move them.
//!
//! The files hold one word per frame and need `CAP_SYS_ADMIN`. Cost: 65 ns per frame. The kernel
//! marks every free frame, not only the first of a block (Linux 4.6). A user's page counts as
//! movable even if a device pinned it, because no file shows pins. Source: admin-guide/mm/pagemap,
//! fs/proc/page.c.

use std::fs::{File, OpenOptions};
use std::path::Path;

use crate::error::OsError;
use crate::internal::sys::files::file;
use crate::units::{Pages, Pfn};

const FLAGS: &str = "/proc/kpageflags";
const COUNTS: &str = "/proc/kpagecount";
const WORD: usize = size_of::<u64>();
const BATCH: u64 = 1 << 12;

const LRU: u64 = 1 << 5;
const SLAB: u64 = 1 << 7;
const BUDDY: u64 = 1 << 10;
const ANON: u64 = 1 << 12;
const COMPOUND_HEAD: u64 = 1 << 15;
const HUGE: u64 = 1 << 17;
const HWPOISON: u64 = 1 << 19;
const NOPAGE: u64 = 1 << 20;
const THP: u64 = 1 << 22;
const OFFLINE: u64 = 1 << 23;
const ZERO_PAGE: u64 = 1 << 24;
const PGTABLE: u64 = 1 << 26;
const RESERVED: u64 = 1 << 32;
const FIXED: u64 = SLAB | HWPOISON | NOPAGE | OFFLINE | ZERO_PAGE | PGTABLE | RESERVED;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Free,
    Movable,
    /// In a hugetlb pool, used or not: movable, but a user may rely on its physical address.
    Pool,
    /// No flags: a page of the kernel, or free in a per-processor list.
    Unmarked,
    /// A page of the kernel, a broken page, or no memory.
    Fixed,
}

impl Kind {
    fn of(word: u64) -> Self {
        match word {
            _ if word & FIXED != 0 => Self::Fixed,
            _ if word & HUGE != 0 => Self::Pool,
            _ if word & BUDDY != 0 => Self::Free,
            // A user's page lacks LRU while the kernel moves it onto or off a list, so THP and ANON
            // count too.
            _ if word & (LRU | THP | ANON) != 0 => Self::Movable,
            0 => Self::Unmarked,
            // The kernel's compound pages, or kernel pages mapped by users.
            _ => Self::Fixed,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Occupancy {
    pub free: u64,
    pub movable: u64,
    pub pool: u64,
    pub unmarked: u64,
    pub fixed: u64,
}

impl Occupancy {
    pub fn is_movable(&self) -> bool {
        self.fixed == 0 && self.unmarked == 0
    }

    fn count(&mut self, word: u64) {
        *match Kind::of(word) {
            Kind::Free => &mut self.free,
            Kind::Movable => &mut self.movable,
            Kind::Pool => &mut self.pool,
            Kind::Unmarked => &mut self.unmarked,
            Kind::Fixed => &mut self.fixed,
        } += 1;
    }
}

#[derive(Debug)]
pub struct Frames(File);

impl Frames {
    pub fn open() -> Result<Self, OsError> {
        open(FLAGS).map(Self)
    }

    pub fn firsts(&self, block: Pages) -> Result<Vec<Kind>, OsError> {
        let words = file::read_words_apart(&self.0, block.get() * WORD as u64)
            .map_err(|source| OsError::new("pread", FLAGS, source))?;
        Ok(words.into_iter().map(Kind::of).collect())
    }

    /// Returns the kind of a frame; [`Kind::Fixed`] past the last one.
    pub fn kind(&self, frame: Pfn) -> Result<Kind, OsError> {
        Ok(Kind::of(self.words(frame, 1)?.first().map_or(NOPAGE, |word| *word)))
    }

    /// Counts `len` frames from `first` on. Unless `all`, stops after the first batch with a fixed
    /// frame.
    pub fn occupancy(&self, first: Pfn, len: Pages, all: bool) -> Result<Occupancy, OsError> {
        let mut seen = Occupancy::default();
        let mut at = 0;
        while at < len.get() && (all || seen.fixed == 0) {
            let part = BATCH.min(len.get() - at);
            let words = self.words(first.plus(Pages::new(at)), part)?;
            words.iter().for_each(|word| seen.count(*word));
            seen.fixed += part - words.len() as u64;
            at += part;
        }
        Ok(seen)
    }

    pub fn sample(&self, first: Pfn, len: Pages, every: u64) -> Result<Occupancy, OsError> {
        let mut seen = Occupancy::default();
        for at in (0..len.get()).step_by(every.max(1) as usize) {
            let word = self.words(first.plus(Pages::new(at)), 1)?;
            seen.count(word.first().map_or(NOPAGE, |word| *word));
        }
        Ok(seen)
    }

    fn words(&self, first: Pfn, len: u64) -> Result<Vec<u64>, OsError> {
        let mut bytes = vec![0; len as usize * WORD];
        let read = file::read_some_at(&self.0, &mut bytes, first.get() * WORD as u64)
            .map_err(|source| OsError::new("pread", FLAGS, source))?;
        let word = |chunk: &[u8]| chunk.try_into().map_or(NOPAGE, u64::from_ne_bytes);
        Ok(bytes[..read].chunks_exact(WORD).map(word).collect())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// A mapped page of a hugetlb pool, or a part of a larger mapped page.
    PoolInUse,
    PoolIdle,
    Thp,
    Free,
    /// Anything else, or a mixture.
    Other,
    Absent,
}

impl Use {
    #[must_use]
    pub fn is_pool(self) -> bool {
        matches!(self, Self::PoolInUse | Self::PoolIdle)
    }

    fn of(words: &[u64], is_mapped: bool) -> Self {
        let all = |flag: u64| words.iter().all(|word| word & flag != 0);
        match words.iter().any(|word| word & HWPOISON != 0) {
            _ if all(NOPAGE) => Self::Absent,
            true => Self::Other,
            _ if all(HUGE) && is_mapped => Self::PoolInUse,
            _ if all(HUGE) => Self::PoolIdle,
            _ if all(THP) => Self::Thp,
            // A frame without flags may be the kernel's, so it does not count as free.
            _ if all(BUDDY) => Self::Free,
            _ => Self::Other,
        }
    }
}

/// Returns the use of each whole block of `block` frames, from frame 0 on.
pub fn uses(block: Pages) -> Result<Vec<Use>, OsError> {
    let mut uses = Vec::new();
    each(block, |found, _| uses.push(found))?;
    Ok(uses)
}

/// Returns the use of each whole block of `block` frames, and counts its frames, from frame 0 on.
pub fn survey(block: Pages) -> Result<Vec<(Use, Occupancy)>, OsError> {
    let mut seen = Vec::new();
    each(block, |found, words| {
        let mut frames = Occupancy::default();
        words.iter().for_each(|word| frames.count(*word));
        seen.push((found, frames));
    })?;
    Ok(seen)
}

/// Calls `visit` with the use of each whole block, and with its flags.
fn each(block: Pages, mut visit: impl FnMut(Use, &[u64])) -> Result<(), OsError> {
    let (frames, counts) = (Frames::open()?, open(COUNTS)?);
    let each = block.as_usize().max(1);
    let batch = each as u64 * (BATCH / each as u64).max(1);
    let (mut first, mut is_mapped) = (0, false);
    loop {
        let words = frames.words(Pfn::new(first as u64), batch)?;
        for (nth, part) in words.chunks_exact(each).enumerate() {
            let is_head = |word: &u64| word & (HUGE | COMPOUND_HEAD) == HUGE | COMPOUND_HEAD;
            if let Some(head) = part.iter().position(is_head) {
                let mut count = [0; WORD];
                let at = (first + nth * each + head) * WORD;
                let read = file::read_at(&counts, &mut count, at as u64);
                is_mapped = read.is_ok() && u64::from_ne_bytes(count) > 0;
            }
            visit(Use::of(part, is_mapped), part);
        }
        if (words.len() as u64) < batch {
            return Ok(());
        }
        first += words.len();
    }
}

/// Returns each run of blocks whose use `counts` accepts.
#[must_use]
pub fn runs(uses: &[Use], block: Pages, counts: impl Fn(Use) -> bool) -> Vec<(Pfn, Pages)> {
    let (mut runs, mut at) = (Vec::new(), 0);
    for part in uses.chunk_by(|a, b| counts(*a) == counts(*b)) {
        let len = part.len() as u64 * block.get();
        if counts(part[0]) {
            runs.push((Pfn::new(at), Pages::new(len)));
        }
        at += len;
    }
    runs
}

fn open(path: &'static str) -> Result<File, OsError> {
    let file = file::open(Path::new(path), OpenOptions::new().read(true));
    file.map_err(|source| OsError::new("open", path, source))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_told_apart() {
        let of = |words: &[u64]| Use::of(words, false);
        assert_eq!(of(&[NOPAGE; 4]), Use::Absent);
        assert_eq!(of(&[HUGE | COMPOUND_HEAD, HUGE, HUGE, HUGE]), Use::PoolIdle);
        assert_eq!(Use::of(&[HUGE; 4], true), Use::PoolInUse);
        assert_eq!(of(&[HUGE, HUGE, HUGE, 0]), Use::Other);
        assert_eq!(of(&[THP; 4]), Use::Thp);
        assert_eq!(of(&[BUDDY; 4]), Use::Free);
        assert_eq!(of(&[BUDDY, 0, BUDDY, BUDDY]), Use::Other);
        assert_eq!(of(&[1 << 5, 0, 0, 0]), Use::Other);
        assert_eq!(of(&[0; 4]), Use::Other);
        assert_eq!(of(&[HUGE | HWPOISON; 4]), Use::Other);
    }

    #[test]
    fn no_more_is_free_than_the_allocator_has() {
        let size = crate::units::PageSize::new(2 << 20).unwrap();
        let block = size.bytes().pages_down(crate::internal::sys::page_size());
        let has = || crate::internal::sys::machine::buddyinfo::free_blocks(size).unwrap();
        let before = has();
        let Ok(uses) = uses(block) else {
            println!("skipped: frames are hidden");
            return;
        };
        let free = uses.iter().filter(|of| **of == Use::Free).count() as u64;
        let most = before.max(has());
        assert!(free <= most + most / 2 + 64, "{free} of {most}");
    }

    #[test]
    fn runs_are_idle_and_used_pages_side_by_side() {
        use Use::{Absent, Free, PoolIdle, PoolInUse};
        let uses = [Absent, PoolIdle, PoolInUse, Free, PoolIdle];
        let run = |first, len| (Pfn::new(first), Pages::new(len));
        assert_eq!(runs(&uses, Pages::new(512), Use::is_pool), [run(512, 1024), run(2048, 512)]);
        assert_eq!(runs(&[], Pages::new(1), Use::is_pool), []);
        let longest = |counts: fn(Use) -> bool| {
            let all = runs(&uses, Pages::new(512), counts);
            all.into_iter().map(|(_, len)| len).max().unwrap_or_default()
        };
        assert_eq!(longest(|of| of == PoolIdle), Pages::new(512));
        assert_eq!(longest(|of| matches!(of, PoolIdle | Free)), Pages::new(1024));
        assert_eq!(longest(|of| of == Use::Thp), Pages::ZERO);
    }

    #[test]
    fn what_cannot_be_moved_is_told() {
        const COMPOUND: u64 = 1 << 16;
        for (word, kind) in [
            (BUDDY, Kind::Free),
            (LRU | 1 << 11, Kind::Movable),
            (ANON | 1 << 14, Kind::Movable),
            (THP | COMPOUND, Kind::Movable),
            (HUGE | COMPOUND, Kind::Pool),
            (HUGE | HWPOISON, Kind::Fixed),
            (LRU | HWPOISON, Kind::Fixed),
            (0, Kind::Unmarked),
            (SLAB, Kind::Fixed),
            (PGTABLE, Kind::Fixed),
            (RESERVED, Kind::Fixed),
            (NOPAGE, Kind::Fixed),
            (THP | ZERO_PAGE | COMPOUND, Kind::Fixed),
            (1 << 11, Kind::Fixed), // the kernel's, mapped by a user
            (COMPOUND, Kind::Fixed),
        ] {
            assert_eq!(Kind::of(word), kind, "{word:#x}");
        }
    }

    #[test]
    fn every_frame_is_counted_once_and_none_behind_the_last_can_be_moved() {
        let Ok(frames) = Frames::open() else {
            println!("skipped: frames are hidden");
            return;
        };
        let sum = |of: Occupancy| of.free + of.movable + of.pool + of.unmarked + of.fixed;
        let len = Pages::new(3 * BATCH + 5);
        assert_eq!(sum(frames.occupancy(Pfn::new(7), len, true).unwrap()), len.get());
        assert_eq!(sum(frames.sample(Pfn::new(7), Pages::new(64), 16).unwrap()), 4);
        let behind = Pfn::new(1 << 45);
        assert_eq!(frames.occupancy(behind, len, true).unwrap().fixed, len.get());
        assert_eq!(frames.kind(behind).unwrap(), Kind::Fixed);
        let block = Pages::new(512);
        assert_eq!(frames.firsts(block).unwrap().len(), uses(block).unwrap().len());
        let seen = survey(block).unwrap();
        assert!(seen.iter().all(|(_, frames)| sum(*frames) == block.get()));
        assert!(seen.iter().all(|(of, frames)| *of != Use::Free || frames.free == block.get()));
        assert_eq!(seen.len(), uses(block).unwrap().len());
    }
}
