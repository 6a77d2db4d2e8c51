//! `/proc/kpageflags` and `/proc/kpagecount`: what every page frame of the machine is used for.
//!
//! One word for each frame; open to `CAP_SYS_ADMIN` alone. Reading all frames of 24 GiB takes half
//! a second, during which they change. Every free frame is marked, not the first of its block alone
//! (Linux 4.6). Source: admin-guide/mm/pagemap, fs/proc/page.c.

use std::fs::{File, OpenOptions};
use std::path::Path;

use crate::error::OsError;
use crate::sys::file;
use crate::units::{Pages, Pfn};

const FLAGS: &str = "/proc/kpageflags";
const COUNTS: &str = "/proc/kpagecount";

const BUDDY: u64 = 1 << 10;
const COMPOUND_HEAD: u64 = 1 << 15;
const HUGE: u64 = 1 << 17;
const HWPOISON: u64 = 1 << 19;
const NOPAGE: u64 = 1 << 20;
const THP: u64 = 1 << 22;
const WORD: usize = size_of::<u64>();
/// Frames read at a time.
const BATCH: usize = 1 << 14;

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

/// The use of each block of `block` frames, from frame 0 on. `block` is at least 1.
///
/// # Errors
/// If the files cannot be read.
pub fn uses(block: Pages) -> Result<Vec<Use>, OsError> {
    let open = |path: &'static str| {
        file::open(Path::new(path), OpenOptions::new().read(true))
            .map_err(|source| OsError::new("open", path, source))
    };
    let (flags, counts) = (open(FLAGS)?, open(COUNTS)?);
    let block = block.as_usize().max(1);
    let (mut uses, mut left) = (Vec::new(), Vec::new());
    let mut pool_head = None;
    loop {
        let words = words_at(&flags, uses.len() * block + left.len())?;
        if words.is_empty() {
            return Ok(uses);
        }
        left.extend(words);
        let whole = left.len() / block * block;
        for part in left[..whole].chunks_exact(block) {
            let first = uses.len() * block;
            let of = classify(part, first, &mut pool_head);
            let in_use = |head: Option<usize>| head.is_some_and(|head| is_mapped(&counts, head));
            uses.push(match of {
                Use::PoolIdle if in_use(pool_head) => Use::PoolInUse,
                other => other,
            });
        }
        left.drain(..whole);
    }
}

/// Runs of idle and used pages of hugetlb pools, by first frame.
#[must_use]
pub fn pool_runs(uses: &[Use], block: Pages) -> Vec<(Pfn, Pages)> {
    let of_pool = |kind: &Use| matches!(kind, Use::PoolIdle | Use::PoolInUse);
    let mut runs = Vec::new();
    let mut at = 0_u64;
    for part in uses.chunk_by(|a, b| of_pool(a) == of_pool(b)) {
        let len = part.len() as u64;
        if of_pool(&part[0]) {
            runs.push((Pfn::new(at * block.get()), Pages::new(len * block.get())));
        }
        at += len;
    }
    runs
}

/// The longest run of blocks that are all of a use that `counts`.
#[must_use]
pub fn longest_run(uses: &[Use], block: Pages, counts: impl Fn(Use) -> bool) -> Pages {
    let of_both = uses.chunk_by(|a, b| counts(*a) == counts(*b));
    let runs = of_both.filter(|run| run.first().is_some_and(|of| counts(*of)));
    Pages::new(runs.map(<[Use]>::len).max().unwrap_or(0) as u64 * block.get())
}

fn classify(words: &[u64], first: usize, pool_head: &mut Option<usize>) -> Use {
    if words.iter().all(|word| word & NOPAGE != 0) {
        return Use::Absent;
    }
    if let Some(head) =
        words.iter().position(|word| word & (HUGE | COMPOUND_HEAD) == HUGE | COMPOUND_HEAD)
    {
        *pool_head = Some(first + head);
    }
    let sound = words.iter().all(|word| word & HWPOISON == 0);
    if sound && words.iter().all(|word| word & HUGE != 0) {
        return Use::PoolIdle;
    }
    if sound && words.iter().all(|word| word & THP != 0) {
        return Use::Thp;
    }
    // A frame without any flag is not free: it may be the kernel's, or not the kernel's to give.
    match sound && words.iter().all(|word| word & BUDDY != 0) {
        true => Use::Free,
        false => Use::Other,
    }
}

/// Some words from that of frame `first` on; none behind the last.
fn words_at(file: &File, first: usize) -> Result<Vec<u64>, OsError> {
    let mut bytes = vec![0; BATCH * WORD];
    let offset = (first * WORD) as u64;
    let read = file::read_some_at(file, &mut bytes, offset)
        .map_err(|source| OsError::new("pread", FLAGS, source))?;
    let word = |chunk: &[u8]| chunk.try_into().map_or(0, u64::from_ne_bytes);
    Ok(bytes[..read].chunks_exact(WORD).map(word).collect())
}

fn is_mapped(counts: &File, frame: usize) -> bool {
    let mut bytes = [0; WORD];
    let read = file::read_at(counts, &mut bytes, (frame * WORD) as u64);
    read.is_ok() && u64::from_ne_bytes(bytes) > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_told_apart() {
        let mut head = None;
        let mut of = |words: &[u64], first| classify(words, first, &mut head);
        assert_eq!(of(&[NOPAGE; 4], 0), Use::Absent);
        assert_eq!(of(&[HUGE | COMPOUND_HEAD, HUGE, HUGE, HUGE], 4), Use::PoolIdle);
        assert_eq!(of(&[HUGE, HUGE, HUGE, 0], 8), Use::Other);
        assert_eq!(of(&[THP; 4], 12), Use::Thp);
        assert_eq!(of(&[BUDDY; 4], 16), Use::Free);
        assert_eq!(of(&[BUDDY, 0, BUDDY, BUDDY], 20), Use::Other);
        assert_eq!(of(&[1 << 5, 0, 0, 0], 24), Use::Other);
        assert_eq!(of(&[0; 4], 28), Use::Other);
        assert_eq!(of(&[HUGE | HWPOISON; 4], 32), Use::Other);
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
        assert_eq!(pool_runs(&uses, Pages::new(512)), [run(512, 1024), run(2048, 512)]);
        assert_eq!(pool_runs(&[], Pages::new(1)), []);
        let longest = |counts: fn(Use) -> bool| longest_run(&uses, Pages::new(512), counts);
        assert_eq!(longest(|of| of == PoolIdle), Pages::new(512));
        assert_eq!(longest(|of| matches!(of, PoolIdle | Free)), Pages::new(1024));
        assert_eq!(longest(|of| of == Use::Thp), Pages::ZERO);
    }
}
