//! Reads frames of mapped pages, the longest run of free frames, and the page cache's size from the
//! kernel's files.
//!
//! `/proc/self/pagemap` has 8 bytes per base page: frame number in bits 0 to 54 (zero without
//! CAP_SYS_ADMIN), present in bit 63. Free frames belong to the buddy allocator, or to hugetlb
//! pages that no process maps. A free run begins at a multiple of a huge page. A search reads 8
//! bytes per page: 50 MB in half a second for 24 GiB. Source: admin-guide/mm/pagemap,
//! proc_meminfo(5).

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;

use glebe::internal::sys::machine::meminfo;
use glebe::internal::sys::page_size;
use glebe::units::{Bytes, Pages};

const FRAME: u64 = (1 << 55) - 1;
const PRESENT: u64 = 1 << 63;
const BUDDY: u64 = 1 << 10;
const HEAD: u64 = 1 << 15;
const TAIL: u64 = 1 << 16;
const HUGE: u64 = 1 << 17;
const HUGE_PAGE: Bytes = Bytes::mib(2);
/// End of zone DMA of a PC, from which the kernel gives no huge page.
const BELOW: Bytes = Bytes::mib(16);
const WORD: usize = size_of::<u64>();

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    bytes.chunks_exact(WORD).map(|word| word.try_into().map_or(0, u64::from_ne_bytes))
}

/// Returns the frames of `pages` from `address`, with `None` for an absent page. Returns `None` if
/// the frames cannot be read.
pub(crate) fn of(address: usize, pages: Pages) -> Option<Vec<Option<u64>>> {
    let first = address as u64 >> page_size().shift();
    let mut entries = vec![0; pages.as_usize() * WORD];
    let pagemap = File::open("/proc/self/pagemap").ok()?;
    pagemap.read_exact_at(&mut entries, first * WORD as u64).ok()?;
    let frame = |entry: u64| (entry & PRESENT != 0).then_some(entry & FRAME);
    let frames: Vec<_> = words(&entries).map(frame).collect();
    (!frames.contains(&Some(0))).then_some(frames)
}

pub(crate) fn longest(frames: &[Option<u64>]) -> Pages {
    let follows = |a: &Option<u64>, b: &Option<u64>| a.is_some() && a.map(|a| a + 1) == *b;
    let runs = frames.chunk_by(follows).filter(|run| run[0].is_some());
    Pages::new(runs.map(<[_]>::len).max().unwrap_or(0) as u64)
}

pub(crate) fn longest_run(address: usize, pages: Pages) -> Option<Pages> {
    Some(longest(&of(address, pages)?))
}

/// Returns the machine's longest free run above [`BELOW`] that begins at a multiple of
/// [`HUGE_PAGE`]. Needs root.
pub(crate) fn longest_free_run() -> io::Result<Bytes> {
    let (flags, counts) = (fs::read("/proc/kpageflags")?, File::open("/proc/kpagecount")?);
    let first = BELOW.pages_up(page_size()).get();
    Ok(longest_free_of((0..).zip(words(&flags)).skip(first as usize), |frame| {
        let mut count = [0; WORD];
        let read = counts.read_exact_at(&mut count, frame * WORD as u64);
        read.is_err() || u64::from_ne_bytes(count) > 0
    }))
}

/// Returns the longest free run in `all`, which yields frame numbers and flags in ascending order.
fn longest_free_of(
    all: impl Iterator<Item = (u64, u64)>,
    is_mapped: impl Fn(u64) -> bool,
) -> Bytes {
    let align = HUGE_PAGE.pages_up(page_size()).get();
    let (mut run, mut longest, mut is_free) = (0_u64, 0_u64, false);
    for (frame, word) in all {
        // A tail page has the state of its head page.
        if word & TAIL == 0 {
            let pool = word & (HUGE | HEAD) == HUGE | HEAD;
            is_free = word & BUDDY != 0 || (pool && !is_mapped(frame));
        }
        run = if is_free && (run > 0 || frame % align == 0) { run + 1 } else { 0 };
        longest = longest.max(run);
    }
    Pages::new(longest).bytes(page_size())
}

/// Returns the bytes of the page cache without tmpfs. An unreadable part counts as 0.
pub(crate) fn page_cache() -> Bytes {
    let of = |name| meminfo::read(name).unwrap_or_default();
    (of("Cached") + of("Buffers")).saturating_sub(of("Shmem"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_frames_ascend_without_gaps() {
        let run = |frames: &[Option<u64>]| longest(frames).get();
        assert_eq!(run(&[7, 8, 9, 4, 5].map(Some)), 3);
        assert_eq!(run(&[9, 8, 7].map(Some)), 1);
        assert_eq!(run(&[1, 1, 2, 3].map(Some)), 3);
        assert_eq!(run(&[Some(7), Some(8), None, Some(9), Some(10), Some(11)]), 3);
        assert_eq!((run(&[None]), run(&[])), (0, 0));
    }

    #[test]
    fn a_free_run_is_free_or_idle_and_begins_on_a_huge_page() {
        let align = HUGE_PAGE.pages_up(page_size()).as_usize();
        let pool = |mapped: bool| {
            let head = HUGE | HEAD | if mapped { 1 } else { 0 };
            [vec![head], vec![HUGE | TAIL; align - 1]].concat()
        };
        let longest = |parts: &[Vec<u64>]| {
            let words = parts.concat();
            // The lowest bit marks a mapped frame here.
            let is_mapped = |frame| words[frame as usize] & 1 != 0;
            let run = longest_free_of((0..).zip(words.iter().copied()), is_mapped);
            run.pages_up(page_size()).as_usize()
        };
        let (free, used) = (|pages| vec![BUDDY; pages], |pages| vec![1 << 5; pages]);
        assert_eq!(longest(&[]), 0);
        assert_eq!(longest(&[free(align + 3), used(1)]), align + 3);
        assert_eq!(longest(&[used(1), free(align - 1), pool(false), used(4)]), align);
        assert_eq!(longest(&[pool(false), free(7), used(1)]), align + 7);
        assert_eq!(longest(&[pool(true), free(align), pool(false)]), 2 * align);
        assert_eq!(longest(&[used(1), free(align - 1), used(align)]), 0);
        assert!(page_cache() > Bytes::mib(1));
    }
}
