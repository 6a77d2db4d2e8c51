//! What physical memory looks like to a reader that shares no code with the library's: the longest
//! run of free frames, and the page cache. Root alone may read it.
//!
//! Free is what the buddy allocator has, or a page of a hugetlb pool that nobody has mapped. A run
//! counts from a multiple of a huge page on. Unit: bytes. Cost: half a second for 24 GiB.
//! Source: admin-guide/mm/pagemap, proc_meminfo(5).

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

use glebe::sys::page_size;
use glebe::units::{Bytes, Pages};

const FLAGS: &str = "/proc/kpageflags";
const COUNTS: &str = "/proc/kpagecount";
const BUDDY: u64 = 1 << 10;
const HEAD: u64 = 1 << 15;
const TAIL: u64 = 1 << 16;
const HUGE: u64 = 1 << 17;
const HUGE_PAGE: Bytes = Bytes::mib(2);
/// Zone DMA of a PC: the kernel gives no huge page from there.
const BELOW: Bytes = Bytes::mib(16);
const WORD: usize = size_of::<u64>();

/// The longest free run that begins on a huge page.
///
/// # Errors
/// If the files cannot be read.
pub(super) fn longest_free_run() -> io::Result<Bytes> {
    let (mut flags, counts) = (File::open(FLAGS)?, File::open(COUNTS)?);
    let first = BELOW.pages_up(page_size()).get();
    io::copy(&mut (&mut flags).take(first * WORD as u64), &mut io::sink())?;
    longest_of(flags, first, |frame| is_mapped(&counts, frame))
}

/// Of the words of all frames from `frame` on.
fn longest_of(
    mut words: impl Read,
    mut frame: u64,
    is_mapped: impl Fn(u64) -> bool,
) -> io::Result<Bytes> {
    let align = HUGE_PAGE.pages_up(page_size()).get();
    let (mut run, mut longest) = (0_u64, 0_u64);
    let (mut buffer, mut is_free) = (vec![0; 1 << 20], false);
    loop {
        let read = words.read(&mut buffer)?;
        if read == 0 {
            return Ok(Pages::new(longest).bytes(page_size()));
        }
        for word in buffer[..read].chunks_exact(WORD) {
            let word = word.try_into().map_or(0, u64::from_ne_bytes);
            // What follows the first page of a larger one is as that is.
            if word & TAIL == 0 {
                let pool = word & (HUGE | HEAD) == HUGE | HEAD;
                is_free = word & BUDDY != 0 || (pool && !is_mapped(frame));
            }
            run = match is_free && (run > 0 || frame % align == 0) {
                true => run + 1,
                false => 0,
            };
            longest = longest.max(run);
            frame += 1;
        }
    }
}

fn is_mapped(counts: &File, frame: u64) -> bool {
    let mut count = [0; WORD];
    let read = counts.read_exact_at(&mut count, frame * WORD as u64);
    read.is_err() || u64::from_ne_bytes(count) > 0
}

/// Bytes of files in memory, those of tmpfs apart; 0 where that cannot be read.
pub(crate) fn page_cache() -> Bytes {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let of = |name: &str| {
        let mut lines = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let kib = lines.next().and_then(|rest| rest.split_whitespace().next()?.parse().ok());
        Bytes::new(kib.unwrap_or(0_u64) << 10)
    };
    (of("Cached") + of("Buffers")).saturating_sub(of("Shmem"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_free_or_idle_and_begins_on_a_huge_page() {
        let align = HUGE_PAGE.pages_up(page_size()).as_usize();
        let pool = |mapped: bool| {
            let head = HUGE | HEAD | if mapped { 1 } else { 0 };
            [vec![head], vec![HUGE | TAIL; align - 1]].concat()
        };
        let longest = |parts: &[Vec<u64>]| {
            let words = parts.concat();
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            // The lowest bit, a locked page's, stands for one that is mapped here.
            let run = longest_of(&bytes[..], 0, |frame| words[frame as usize] & 1 != 0);
            run.unwrap().pages_up(page_size()).as_usize()
        };
        let (free, used) = (|pages| vec![BUDDY; pages], |pages| vec![1 << 5; pages]);
        assert_eq!(longest(&[]), 0);
        assert_eq!(longest(&[free(align + 3), used(1)]), align + 3);
        assert_eq!(longest(&[used(1), free(align - 1), pool(false), used(4)]), align);
        assert_eq!(longest(&[pool(false), free(7), used(1)]), align + 7);
        assert_eq!(longest(&[pool(true), free(align), pool(false)]), 2 * align);
        assert_eq!(longest(&[used(1), free(align - 1), used(align)]), 0);
    }

    #[test]
    fn there_is_page_cache() {
        assert!(page_cache() > Bytes::mib(1));
    }
}
