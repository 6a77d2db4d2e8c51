//! `/proc/kpageflags` and `/proc/kpagecount`: what page frames are used for, and whether they can
//! be moved.
//!
//! One word for each frame; open to `CAP_SYS_ADMIN` alone. Counts are base pages. Reading costs
//! some 65 ns a frame, half a second for 24 GiB, during which frames change: what is told is of the
//! moment. Every free frame is marked, not the first of its block alone (Linux 4.6). A page of a
//! user is taken for movable although a device may have it pinned: no file tells. A frame without
//! any flag is the kernel's, or free in a list of one processor; it is counted apart. Source:
//! admin-guide/mm/pagemap, fs/proc/page.c.

use std::fs::{File, OpenOptions};
use std::path::Path;

use super::file;
use crate::error::OsError;
use crate::units::{Pages, Pfn};

const FLAGS: &str = "/proc/kpageflags";
const COUNTS: &str = "/proc/kpagecount";
const WORD: usize = size_of::<u64>();
/// Frames read at a time.
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
/// With one of these a frame is nobody's to move.
const FIXED: u64 = SLAB | HWPOISON | NOPAGE | OFFLINE | ZERO_PAGE | PGTABLE | RESERVED;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// In no use.
    Free,
    /// A user's.
    Movable,
    /// Of a hugetlb pool, in use or not: movable, but somebody counts on its place.
    Pool,
    /// Without a flag: free in a list of one processor, or the kernel's.
    Unmarked,
    /// The kernel's, broken, or no memory at all.
    Fixed,
}

impl Kind {
    fn of(word: u64) -> Self {
        match word {
            _ if word & FIXED != 0 => Self::Fixed,
            _ if word & HUGE != 0 => Self::Pool,
            _ if word & BUDDY != 0 => Self::Free,
            // One that is just put on a list, or taken off, has no LRU.
            _ if word & (LRU | THP | ANON) != 0 => Self::Movable,
            0 => Self::Unmarked,
            // A kernel's compound page, or one that it shares with users.
            _ => Self::Fixed,
        }
    }
}

/// How many frames of each kind there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Occupancy {
    pub free: u64,
    pub movable: u64,
    pub pool: u64,
    pub unmarked: u64,
    pub fixed: u64,
}

impl Occupancy {
    /// Whether everything in it can be moved, as far as can be told.
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

/// The flags of all frames, open to be read.
#[derive(Debug)]
pub(crate) struct Frames(File);

impl Frames {
    /// # Errors
    /// If they are hidden from the caller.
    pub fn open() -> Result<Self, OsError> {
        open(FLAGS).map(Self)
    }

    /// What the first frame of each block of `block` frames is, of all frames of the machine.
    pub fn firsts(&self, block: Pages) -> Result<Vec<Kind>, OsError> {
        let words = file::read_words_apart(&self.0, block.get() * WORD as u64)
            .map_err(|source| OsError::new("pread", FLAGS, source))?;
        Ok(words.into_iter().map(Kind::of).collect())
    }

    /// What a frame is; [`Kind::Fixed`] behind the last.
    pub fn kind(&self, frame: Pfn) -> Result<Kind, OsError> {
        Ok(Kind::of(self.words(frame, 1)?.first().map_or(NOPAGE, |word| *word)))
    }

    /// What the `len` frames from `first` on are. Stops behind the first batch with one that is
    /// fixed where `all` is false: the counts are those of a part then.
    pub fn occupancy(&self, first: Pfn, len: Pages, all: bool) -> Result<Occupancy, OsError> {
        let mut seen = Occupancy::default();
        let mut at = 0;
        while at < len.get() && (all || seen.fixed == 0) {
            let part = BATCH.min(len.get() - at);
            let words = self.words(first.plus(Pages::new(at)), part)?;
            words.iter().for_each(|word| seen.count(*word));
            seen.fixed += part - words.len() as u64; // behind the last frame
            at += part;
        }
        Ok(seen)
    }

    /// The kinds of every `every`-th frame of `len` from `first` on.
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

/// What frames side by side are used for, aligned to the length of the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// A page of a hugetlb pool, or part of a larger one, that somebody has mapped.
    PoolInUse,
    /// One that nobody has mapped.
    PoolIdle,
    /// A transparent huge page.
    Thp,
    /// Free, all of it.
    Free,
    /// Anything else, or more than one of these.
    Other,
    /// No memory there.
    Absent,
}

impl Use {
    /// Whether it is of a hugetlb pool, mapped or not.
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
            // A frame without any flag is not free: it may be the kernel's, or not its to give.
            _ if all(BUDDY) => Self::Free,
            _ => Self::Other,
        }
    }
}

/// The use of each block of `block` frames, from frame 0 on. `block` is at least 1.
///
/// # Errors
/// If the files cannot be read.
pub fn uses(block: Pages) -> Result<Vec<Use>, OsError> {
    let (frames, counts) = (Frames::open()?, open(COUNTS)?);
    let each = block.as_usize().max(1);
    let batch = each as u64 * (BATCH / each as u64).max(1);
    let (mut uses, mut is_mapped) = (Vec::new(), false);
    loop {
        let first = uses.len() * each;
        let words = frames.words(Pfn::new(first as u64), batch)?;
        for (nth, part) in words.chunks_exact(each).enumerate() {
            let is_head = |word: &u64| word & (HUGE | COMPOUND_HEAD) == HUGE | COMPOUND_HEAD;
            if let Some(head) = part.iter().position(is_head) {
                let mut count = [0; WORD];
                let at = (first + nth * each + head) * WORD;
                let read = file::read_at(&counts, &mut count, at as u64);
                is_mapped = read.is_ok() && u64::from_ne_bytes(count) > 0;
            }
            uses.push(Use::of(part, is_mapped));
        }
        if (words.len() as u64) < batch {
            return Ok(uses);
        }
    }
}

/// The runs of blocks that are all of a use that `counts`: their first frames, and their lengths.
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
        let block = size.bytes().pages_down(crate::sys::page_size());
        let has = || crate::sys::buddyinfo::free_blocks(size).unwrap();
        let before = has();
        let Ok(uses) = uses(block) else {
            println!("skipped: frames are hidden");
            return;
        };
        let free = uses.iter().filter(|of| **of == Use::Free).count() as u64;
        let most = before.max(has());
        // Others take and give meanwhile.
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
    }
}
