//! A file of huge pages that had to be put in order: whatever fails, what the library says of its
//! frames is what page frames read here say, and every page is there.
//!
//! # Safety
//! A mapping of this file's own, whose pages nobody refers to.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::ptr;

use glebe::contig::{Contig, Source};
use glebe::sys::page_size;
use glebe::units::Bytes;

use super::Outcome;

const HUGE: usize = 2 << 20;
/// Huge pages of the file.
pub const PAGES: usize = 8;
const PRESENT: u64 = 1 << 63;
const FRAME: u64 = (1 << 55) - 1;

/// The frame behind an address; `None` if no page is there.
fn frame(addr: usize) -> Option<u64> {
    let page = page_len() as usize;
    let mut word = [0; 8];
    let map = File::open("/proc/self/pagemap").unwrap();
    map.read_exact_at(&mut word, (addr / page * 8) as u64).unwrap();
    let word = u64::from_ne_bytes(word);
    (word & PRESENT != 0).then_some(word & FRAME)
}

/// Takes `count` huge pages of the hugetlb pool, as far as it has them free, and gives them back in
/// the order of `arrange`, which has their frames: those given back last are handed out first.
fn give_back(count: usize, arrange: impl Fn(&[u64]) -> Vec<usize>) {
    let len = count * HUGE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB | libc::MAP_HUGE_2MB;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at a place of the kernel's choice.
    let base = unsafe { libc::mmap(ptr::null_mut(), len, access, flags, -1, 0) };
    if base == libc::MAP_FAILED {
        return;
    }
    let at = |page: usize| base.wrapping_byte_add(page * HUGE);
    // SAFETY: the mapping of above; a populated one has every page.
    if unsafe { libc::madvise(base, len, libc::MADV_POPULATE_WRITE) } == 0 {
        let huge = |page| frame(at(page).addr()).unwrap() / (HUGE as u64 / page_len());
        for page in arrange(&(0..count).map(huge).collect::<Vec<_>>()) {
            // SAFETY: as above.
            unsafe { libc::madvise(at(page), HUGE, libc::MADV_DONTNEED) };
        }
    }
    // SAFETY: as above, unmapped once.
    unsafe { libc::munmap(base, len) };
}

fn page_len() -> u64 {
    page_size().bytes().get()
}

fn ascending(frames: &[u64]) -> Vec<usize> {
    let mut all: Vec<usize> = (0..frames.len()).collect();
    all.sort_unstable_by_key(|n| frames[*n]);
    all
}

/// Has it hand out next no two pages that lie side by side.
pub fn scramble() {
    give_back(PAGES, |frames| {
        let all = ascending(frames);
        let odd = all.iter().skip(1).step_by(2);
        all.iter().step_by(2).chain(odd).copied().collect()
    });
}

/// Memory is made of pages that do not lie side by side; each of them is there, and in the frame
/// that the library names, if it names one. The library searches for a long run, or takes what the
/// pool has.
pub fn live(searches: bool) -> Outcome {
    scramble();
    let len = Bytes::new((PAGES * HUGE) as u64);
    let options = Contig::options().source(Source::HUGETLB_2M).threads(1).mappable();
    let options = match searches {
        true => options.prefer_run(len),
        false => options.search(Bytes::ZERO),
    };
    let contig = options.build(len)?;
    for page in 0..PAGES {
        let addr = contig.mapping().addr() + page * HUGE;
        let named = contig.query(addr).expect("an address of the memory");
        // Hidden where the library could not read it.
        let is_there = named.pfn.is_none_or(|pfn| frame(addr) == Some(pfn.get()));
        assert!(is_there, "{named:?}");
        contig.mapping().write(Bytes::new((page * HUGE) as u64), b"there");
    }
    Ok(())
}
