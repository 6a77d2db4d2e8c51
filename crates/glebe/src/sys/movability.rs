//! What a stretch of frames holds, and whether all of it can be moved, by `/proc/kpageflags`.
//!
//! Counts are base pages. Reading costs some 65 ns a frame; open to `CAP_SYS_ADMIN` alone. A page
//! of a user is taken for movable although a device may have it pinned: no file tells. A frame
//! without any flag is the kernel's, or free in a list of one processor; it is counted apart. What
//! is told is of the moment. Source: admin-guide/mm/pagemap, fs/proc/page.c.

use std::fs::{File, OpenOptions};
use std::path::Path;

use super::file;
use crate::error::OsError;
use crate::units::{Pages, Pfn};

const PATH: &str = "/proc/kpageflags";
const WORD: usize = size_of::<u64>();
/// Frames read at a time.
const BATCH: u64 = 1 << 12;

const LRU: u64 = 1 << 5;
const SLAB: u64 = 1 << 7;
const BUDDY: u64 = 1 << 10;
const ANON: u64 = 1 << 12;
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
        let file = file::open(Path::new(PATH), OpenOptions::new().read(true));
        file.map(Self).map_err(|source| OsError::new("open", PATH, source))
    }

    /// What the first frame of each block of `block` frames is, of all frames of the machine.
    pub fn firsts(&self, block: Pages) -> Result<Vec<Kind>, OsError> {
        let words = file::read_words_apart(&self.0, block.get() * WORD as u64)
            .map_err(|source| OsError::new("pread", PATH, source))?;
        Ok(words.into_iter().map(Kind::of).collect())
    }

    /// What a frame is; [`Kind::Fixed`] behind the last.
    pub fn kind(&self, frame: Pfn) -> Result<Kind, OsError> {
        Ok(Kind::of(self.words(frame, 1)?.next().unwrap_or(NOPAGE)))
    }

    /// What the `len` frames from `first` on are. Stops behind the first batch with one that is
    /// fixed where `all` is false: the counts are those of a part then.
    pub fn occupancy(&self, first: Pfn, len: Pages, all: bool) -> Result<Occupancy, OsError> {
        let mut seen = Occupancy::default();
        let mut at = 0;
        while at < len.get() && (all || seen.fixed == 0) {
            let part = BATCH.min(len.get() - at);
            let mut read = 0;
            for word in self.words(first.plus(Pages::new(at)), part)? {
                seen.count(word);
                read += 1;
            }
            seen.fixed += part - read; // behind the last frame
            at += part;
        }
        Ok(seen)
    }

    /// The kinds of every `every`-th frame of `len` from `first` on.
    pub fn sample(&self, first: Pfn, len: Pages, every: u64) -> Result<Occupancy, OsError> {
        let mut seen = Occupancy::default();
        for at in (0..len.get()).step_by(every.max(1) as usize) {
            let word = self.words(first.plus(Pages::new(at)), 1)?.next();
            seen.count(word.unwrap_or(NOPAGE));
        }
        Ok(seen)
    }

    fn words(&self, first: Pfn, len: u64) -> Result<impl Iterator<Item = u64>, OsError> {
        let mut bytes = vec![0; len as usize * WORD];
        let read = file::read_some_at(&self.0, &mut bytes, first.get() * WORD as u64)
            .map_err(|source| OsError::new("pread", PATH, source))?;
        bytes.truncate(read / WORD * WORD);
        let word =
            |n: usize| bytes[n * WORD..][..WORD].try_into().map_or(NOPAGE, u64::from_ne_bytes);
        Ok((0..bytes.len() / WORD).map(word).collect::<Vec<_>>().into_iter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(
            frames.firsts(block).unwrap().len(),
            crate::sys::kpage::uses(block).unwrap().len()
        );
    }
}
