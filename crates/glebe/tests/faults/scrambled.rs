//! [`live`] makes a file of huge pages while the hugetlb pool's free pages are out of order and a
//! kernel call fails. Each frame number from the library must equal the number in
//! `/proc/self/pagemap`.
//!
//! # Safety
//! The mapping belongs to this file, and no reference to its pages exists.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::ptr;

use glebe::contig::{Contig, Source};
use glebe::page_size;
use glebe::units::Bytes;

use super::Outcome;

const HUGE: usize = 2 << 20;
pub const PAGES: usize = 8;
const PRESENT: u64 = 1 << 63;
const FRAME: u64 = (1 << 55) - 1;

fn frame(addr: usize) -> Option<u64> {
    let page = page_len() as usize;
    let mut word = [0; 8];
    let map = File::open("/proc/self/pagemap").unwrap();
    map.read_exact_at(&mut word, (addr / page * 8) as u64).unwrap();
    let word = u64::from_ne_bytes(word);
    (word & PRESENT != 0).then_some(word & FRAME)
}

/// Takes `count` free pages of the hugetlb pool and frees them in the order that `arrange` returns
/// for their frames. The kernel gives out the last freed page first.
fn give_back(count: usize, arrange: impl Fn(&[u64]) -> Vec<usize>) {
    let len = count * HUGE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB | libc::MAP_HUGE_2MB;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: maps new memory at an address that the kernel chooses.
    let base = unsafe { libc::mmap(ptr::null_mut(), len, access, flags, -1, 0) };
    if base == libc::MAP_FAILED {
        return;
    }
    let at = |page: usize| base.wrapping_byte_add(page * HUGE);
    // SAFETY: the mapping from above; after success every page is present.
    if unsafe { libc::madvise(base, len, libc::MADV_POPULATE_WRITE) } == 0 {
        let huge = |page| frame(at(page).addr()).unwrap() / (HUGE as u64 / page_len());
        for page in arrange(&(0..count).map(huge).collect::<Vec<_>>()) {
            // SAFETY: a page of the mapping from above, to which no reference exists.
            unsafe { libc::madvise(at(page), HUGE, libc::MADV_DONTNEED) };
        }
    }
    // SAFETY: the mapping from above, unmapped once.
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

/// Makes the pool give out pages that are not adjacent.
pub fn scramble() {
    give_back(PAGES, |frames| {
        let all = ascending(frames);
        let odd = all.iter().skip(1).step_by(2);
        all.iter().step_by(2).chain(odd).copied().collect()
    });
}

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
        // `pfn` is `None` if the library could not read the frame.
        let is_there = named.pfn.is_none_or(|pfn| frame(addr) == Some(pfn.get()));
        assert!(is_there, "{named:?}");
        contig.mapping().write(Bytes::new((page * HUGE) as u64), b"there");
    }
    Ok(())
}
