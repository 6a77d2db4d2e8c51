//! [`live`] makes a volatile region, writes and marks pages, purges some, reads, and unmarks.
//!
//! Even if a kernel call fails, pages that were not lost hold their bytes, the first successful
//! unmark reports all lost pages, and no call reports a lost page as kept. These tests read pages
//! only by calls that check them, because a touch of a lost page would run the callback in a SIGBUS
//! handler.
//!
//! # Safety
//! The memory belongs to this file and outlives the regions over it.
#![allow(unsafe_code)]

use std::error::Error;
use std::ops::Range;
use std::ptr;

use glebe::internal::sys::fault::{arm, disarm, Fault, Lasting};
use glebe::internal::sys::memory::madvise;
use glebe::internal::sys::memory::vma;
use glebe::internal::sys::page_size;
use glebe::units::{Bytes, Pages};
use glebe::volatile::internal::without_pagemap_scan;
use glebe::volatile::{Engine, Error as VolatileError, Options, Priority, Region};
use glebe_testing::alone;

use super::bytes::page_of;
use super::footing::threads_at_first;
use super::reserve::LEN;
use super::walk::walk_all;
use super::Outcome;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    Own,
    Huge,
    Callers,
    Refilled,
}

struct Shape {
    pages: u64,
    /// A long and a short range, which are unmarked in different ways.
    marked: [Range<u64>; 2],
    lost: [Range<u64>; 3],
    /// Pages read by `try_read` while they may be marked: all, or those at edges of ranges.
    looked_at: Vec<u64>,
}

/// Attempts at an unmark. Only an injected fault that lasts can make all attempts fail.
const ATTEMPTS: u32 = 3;

impl Memory {
    fn shape(self) -> Shape {
        if self == Self::Huge {
            let huge = HUGE.pages_down(page_size()).get();
            return Shape {
                pages: 4 * huge,
                marked: [0..2 * huge, 3 * huge..4 * huge],
                lost: [0..huge, huge + 3..huge + 5, 3 * huge..3 * huge + 1],
                looked_at: (0..4)
                    .flat_map(|n| [0, 4, 5, huge - 1].map(|at| n * huge + at))
                    .collect(),
            };
        }
        Shape {
            pages: 64,
            marked: [0..40, 50..60],
            lost: [3..5, 39..40, 52..53],
            looked_at: (0..64).collect(),
        }
    }
}

const HUGE: Bytes = Bytes::mib(2);

struct Callers(*mut libc::c_void, usize);

impl Callers {
    fn new(len: Bytes) -> Self {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: without a fixed address the kernel picks a range that nothing else uses.
        let at = unsafe { libc::mmap(ptr::null_mut(), len.as_usize(), prot, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        Self(at, len.as_usize())
    }
}

impl Drop for Callers {
    fn drop(&mut self) {
        // SAFETY: exactly the range that mmap returned; the region over it is gone.
        unsafe { libc::munmap(self.0, self.1) };
    }
}

unsafe extern "C" fn refill(_offset: u64, _len: usize, _data: *const ()) -> *const u8 {
    ptr::null()
}

fn bytes(pages: &Range<u64>) -> Range<Bytes> {
    let at = |page| Pages::new(page).bytes(page_size());
    at(pages.start)..at(pages.end)
}

/// Drops pages as the kernel does, by a call in which no fault is injected.
fn purge(region: &Region, pages: &Range<u64>) {
    let range = bytes(pages);
    // SAFETY: the range is inside the region, and its pages are marked.
    let made = unsafe {
        let at = region.as_ptr().add(range.start.as_usize());
        libc::madvise(at.cast(), (range.end - range.start).as_usize(), libc::MADV_DONTNEED)
    };
    assert_eq!(made, 0);
}

fn was_lost(purged: &[Range<u64>], page: u64) -> bool {
    purged.iter().any(|run| run.contains(&page))
}

fn look(region: &Region, memory: Memory, purged: &[Range<u64>], marked: &[Range<u64>]) {
    let mut buf = page_of(0).to_vec();
    let shape = memory.shape();
    for page in 0..shape.pages {
        // `read` makes no kernel call and refuses marked pages.
        if region.read(bytes(&(page..page + 1)).start, &mut buf).is_ok() {
            let zeros = buf.iter().all(|byte| *byte == 0);
            let lost = was_lost(purged, page);
            assert!(!lost || !was_lost(marked, page), "page {page} is lost and was read");
            assert!(if lost { zeros } else { buf == page_of(page) }, "page {page}");
        }
    }
    for &page in &shape.looked_at {
        let range = bytes(&(page..page + 1));
        match region.try_read(range.start, &mut buf) {
            Ok(()) if was_lost(purged, page) => {
                assert!(!was_lost(marked, page), "page {page} is lost and was read");
                assert!(buf.iter().all(|byte| *byte == 0), "page {page} is lost");
            }
            Ok(()) => assert_eq!(buf, page_of(page), "page {page}"),
            Err(VolatileError::Purged { .. }) => assert!(was_lost(purged, page), "page {page}"),
            Err(_) => {}
        }
    }
}

pub fn live(options: Options, memory: Memory) -> Outcome {
    let shape = memory.shape();
    let len = bytes(&(0..shape.pages)).end;
    // Dropped after the region.
    let callers = (memory == Memory::Callers).then(|| Callers::new(len));
    let region = match &callers {
        // SAFETY: the memory outlives the region, and only the region's calls access it.
        Some(callers) => unsafe { options.build_over(callers.0.cast(), len) }?,
        None if memory == Memory::Refilled => {
            // SAFETY: the callback allocates nothing, takes no lock and touches no memory.
            let options = unsafe { options.on_lost(refill, ptr::null()) };
            options.build(len)?
        }
        None => options.huge(memory == Memory::Huge).build(len)?,
    };
    let first = use_all(&region, memory, &shape)?;
    first.map_or(Ok(()), Err)
}

/// Returns the first error: in `Ok` if all calls were made, else in `Err`.
fn use_all(
    region: &Region,
    memory: Memory,
    shape: &Shape,
) -> Result<Option<Box<dyn Error>>, Box<dyn Error>> {
    let mut first: Option<Box<dyn Error>> = None;
    for page in 0..shape.pages {
        region.write(bytes(&(page..page + 1)).start, page_of(page))?;
    }
    let mut purged = Vec::new();
    for range in &shape.marked {
        match region.mark(bytes(range), Priority::NORMAL) {
            // Only marked pages can be lost.
            Ok(()) => {
                let lost = shape.lost.iter().filter(|lost| range.contains(&lost.start));
                purged.extend(lost.cloned());
            }
            Err(error) => drop(first.get_or_insert(error.into())),
        }
    }
    purged.iter().for_each(|lost| purge(region, lost));
    let mut marked = shape.marked.to_vec();
    look(region, memory, &purged, &marked);
    for range in &shape.marked {
        for _ in 0..ATTEMPTS {
            match region.unmark(bytes(range)) {
                Ok(told) => {
                    let told = told.runs().iter().map(|run| run.start()..run.end());
                    let there = purged.iter().filter(|lost| range.contains(&lost.start));
                    assert_eq!(told.collect::<Vec<_>>(), there.cloned().collect::<Vec<_>>());
                    marked.retain(|other| other != range);
                    break;
                }
                Err(error) => drop(first.get_or_insert(error.into())),
            }
            look(region, memory, &purged, &marked);
        }
    }
    look(region, memory, &purged, &marked);
    if marked.is_empty() {
        region.stats().check()?;
    }
    if let Err(error) = region.drop_now(bytes(&(0..shape.pages))) {
        first.get_or_insert(error.into());
    }
    Ok(first)
}

fn hugged(each: u64) -> Option<Range<usize>> {
    let len = bytes(&(0..each)).end.as_usize();
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: the memory belongs to the test, and the advice changes no contents.
    unsafe {
        let at = libc::mmap(ptr::null_mut(), 2 * len, protection, flags, -1, 0);
        assert_ne!(at, libc::MAP_FAILED);
        assert_eq!(libc::madvise(at.byte_add(len), len, libc::MADV_DONTDUMP), 0);
        let made = libc::madvise(at, 2 * len, libc::MADV_HUGEPAGE) == 0;
        made.then_some(at.addr()..at.addr() + 2 * len)
    }
}

#[test]
fn refused_memory_is_as_it_was() {
    alone!();
    let Some(range) = hugged(8).filter(|_| madvise::transparent_huge_page().is_ok()) else {
        println!("skipped: no transparent huge pages");
        return;
    };
    let len = Bytes::new((range.end - range.start) as u64);
    let mut refusals = 0;
    for engine in [Engine::Scan, Engine::Tag] {
        for nth in 1.. {
            arm(Fault { nth, choice: 0, lasting: Lasting::Once });
            let at = ptr::with_exposed_provenance_mut(range.start);
            // SAFETY: the memory belongs to the test and outlives the region.
            let made = unsafe { Region::options().engine(engine).build_over(at, len) };
            let met = disarm();
            refusals += u32::from(made.is_err());
            drop(made);
            let all = vma::among(&range).unwrap();
            let is_as_before = all.len() == 2 && all.iter().all(|vma| vma.has("hg"));
            assert!(is_as_before, "{engine} {met:?} {all:?}");
            if met.refused.is_empty() {
                break;
            }
        }
    }
    assert!(refusals > 0, "no fault was met");
    // SAFETY: the memory belongs to the test, and no region over it remains.
    unsafe { libc::munmap(ptr::with_exposed_provenance_mut(range.start), len.as_usize()) };
}

/// Refuses the `nth` kernel call of a mark, drops all pages, and asserts that pages counted as
/// dropped are gone. Returns whether the mark failed, and whether a call was refused, or `None` if
/// the machine lacks the engine.
fn drop_after_a_refused_mark(engine: Engine, is_callers: bool, nth: u64) -> Option<(bool, bool)> {
    const ALL: Range<u64> = 0..16;
    let len = bytes(&ALL).end;
    let callers = Callers::new(len);
    let options = Region::options().engine(engine);
    let region = match is_callers {
        // SAFETY: the memory outlives the region, and only the region's calls access it.
        true => unsafe { options.build_over(callers.0.cast(), len) },
        false => options.build(len),
    };
    let region = region.ok()?;
    for page in ALL {
        region.write(bytes(&(page..page + 1)).start, page_of(page)).unwrap();
    }
    arm(Fault { nth, choice: 0, lasting: Lasting::Once });
    let is_refused = region.mark(bytes(&ALL), Priority::NORMAL).is_err();
    let met = disarm();
    let dropped = region.drop_now(bytes(&ALL)).unwrap();
    let lost = region.unmark(bytes(&ALL)).unwrap();
    let lost: Vec<Range<u64>> = lost.runs().iter().map(|run| run.start()..run.end()).collect();
    let count = lost.iter().map(|run| run.end - run.start).sum();
    assert_eq!(dropped, bytes(&(0..count)).end, "{engine} {met:?}");
    let mut buf = page_of(0).to_vec();
    for page in ALL {
        region.read(bytes(&(page..page + 1)).start, &mut buf).unwrap();
        let is_gone = buf.iter().all(|byte| *byte == 0);
        let is_right = if was_lost(&lost, page) { is_gone } else { buf == page_of(page) };
        assert!(is_right, "{engine} page {page} {met:?}");
    }
    Some((is_refused, !met.refused.is_empty()))
}

#[test]
fn what_is_dropped_after_a_refused_mark_is_gone() {
    alone!();
    let mut refusals = 0;
    for (engine, is_callers) in
        [(Engine::Scan, false), (Engine::Scan, true), (Engine::Tag, false), (Engine::Tag, true)]
    {
        for nth in 1.. {
            let Some((is_refused, is_met)) = drop_after_a_refused_mark(engine, is_callers, nth)
            else {
                println!("skipped: {engine} engine");
                break;
            };
            refusals += u32::from(is_refused);
            if !is_met {
                break;
            }
        }
    }
    assert!(refusals > 0, "no mark was refused");
}

fn calls(refuse_first: bool, of: impl FnOnce()) -> u64 {
    let nth = if refuse_first { 1 } else { u64::MAX };
    arm(Fault { nth, choice: 0, lasting: Lasting::Once });
    of();
    disarm().calls
}

/// A mark first loads swapped pages if swap may exist. Large ranges are populated in parts. The tag
/// engine unmarks a small range with one call for each lost run.
#[test]
fn marks_make_the_calls_they_need() {
    alone!();
    const LARGE: u64 = 8192;
    for engine in [Engine::Scan, Engine::Tag] {
        let Ok(region) = Region::options().engine(engine).build(bytes(&(0..LARGE)).end) else {
            println!("skipped: {engine} engine");
            continue;
        };
        let range = bytes(&(0..LARGE));
        for page in 0..LARGE {
            region.write(bytes(&(page..page + 1)).start, &[1]).unwrap();
        }
        let mark = || region.mark(range.clone(), Priority::NORMAL).unwrap();
        let unmark = || drop(region.unmark(range.clone()).unwrap());
        let without = calls(false, mark);
        let to_unmark = calls(false, unmark);
        // The first call asks whether swap exists. If the call fails, the mark assumes swap.
        let with = calls(true, mark);
        unmark();
        // The tag engine needs no call to unmark if every page still has its tag.
        if engine == Engine::Scan || to_unmark > 0 {
            assert!(with > without, "{with} calls with swap, {without} without");
            let parts = range.end.get() / Bytes::mib(4).get();
            assert!(to_unmark > parts, "{to_unmark} calls for {parts} parts");
        }
        let small = bytes(&(0..8));
        region.mark(small.clone(), Priority::NORMAL).unwrap();
        let unmark = || drop(region.unmark(small.clone()).unwrap());
        let to_unmark = calls(false, unmark);
        assert_eq!(to_unmark == 0, engine == Engine::Tag, "{engine}: {to_unmark} calls");
        region.mark(small.clone(), Priority::NORMAL).unwrap();
        region.drop_now(bytes(&(2..4))).unwrap();
        region.drop_now(bytes(&(6..7))).unwrap();
        let to_unmark = calls(false, unmark);
        let is_right = if engine == Engine::Tag { to_unmark == 2 } else { to_unmark > 2 };
        assert!(is_right, "{engine}: {to_unmark} calls for two runs that are lost");
    }
}

fn walk_both(engine: Engine, memory: Memory) {
    for without_scan in [false, true] {
        let options = without_pagemap_scan(Region::options().engine(engine), without_scan);
        let first = options.clone().build(LEN).map_err(Into::into);
        if let Err(error) = first.and_then(|_region| live(options.clone(), memory)) {
            println!("skipped: {engine} engine, {memory:?}: {error}");
            continue;
        }
        let name = format!("volatile, {engine}, {memory:?}, without scan {without_scan}");
        walk_all(None, &name, || live(options.clone(), memory));
    }
}

#[test]
fn scan_own() {
    alone!();
    walk_both(Engine::Scan, Memory::Own);
}

#[test]
fn scan_huge() {
    alone!();
    walk_both(Engine::Scan, Memory::Huge);
}

#[test]
fn scan_callers() {
    alone!();
    walk_both(Engine::Scan, Memory::Callers);
}

#[test]
fn scan_refilled() {
    alone!();
    walk_both(Engine::Scan, Memory::Refilled);
}

#[test]
fn tag_own() {
    alone!();
    walk_both(Engine::Tag, Memory::Own);
}

#[test]
fn tag_huge() {
    alone!();
    walk_both(Engine::Tag, Memory::Huge);
}

#[test]
fn tag_callers() {
    alone!();
    walk_both(Engine::Tag, Memory::Callers);
}

#[test]
fn tag_refilled() {
    alone!();
    walk_both(Engine::Tag, Memory::Refilled);
}

/// Other test bodies leave old bytes in the heap, which must not affect a region.
#[test]
fn own_after_the_heap_was_used_for_all_else() {
    alone!();
    threads_at_first();
    super::live_all_else();
    for engine in [Engine::Scan, Engine::Tag] {
        walk_both(engine, Memory::Own);
    }
}
