//! Tests regions over the caller's memory: which memory is refused, and that only marked pages are
//! armed (registered with userfaultfd).

use std::ptr;

use glebe_os::internal::sys::memory::vma;
use glebe_os::units::Bytes;
use glebe_volatile::{Engine, Error, Priority, Refusal, Region};

use super::children::{child_says, fork, sigbus_at};
use super::fork::limit_files;
use super::memory::{fill, is_filled, lost, page, pages, purge, whole, with_engines};

pub const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;
pub const PRIVATE: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

pub struct Mapped {
    pub at: *mut u8,
    pub len: usize,
}

impl Mapped {
    pub fn new(len: usize, protection: i32, flags: i32) -> Option<Self> {
        // SAFETY: the kernel chooses the address.
        let at = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, -1, 0) };
        (at != libc::MAP_FAILED).then_some(Self { at: at.cast(), len })
    }

    pub fn of_pages(count: usize) -> Self {
        Self::new(count * page(), READ_WRITE, PRIVATE).unwrap()
    }

    /// Maps memory between two inaccessible pages, which stay mapped, so that no mapping merges
    /// with it.
    pub fn apart(count: usize) -> Self {
        let len = count * page();
        let whole = Self::new(len + 2 * page(), libc::PROT_NONE, PRIVATE).unwrap();
        let at = whole.at.wrapping_add(page());
        std::mem::forget(whole);
        // SAFETY: this value owns the pages.
        assert_eq!(unsafe { libc::mprotect(at.cast(), len, READ_WRITE) }, 0);
        Self { at, len }
    }

    pub fn replace(&self, index: usize, flags: i32) {
        // SAFETY: this value owns the page.
        unsafe {
            let at = self.at.byte_add(index * page()).cast();
            assert_eq!(libc::mmap(at, page(), READ_WRITE, flags | libc::MAP_FIXED, -1, 0), at);
        }
    }

    pub fn adopted(&self) -> Vec<Region> {
        with_engines(|options| self.adopted_by(options))
    }

    pub fn adopted_by(&self, options: glebe_volatile::Options) -> Result<Region, Error> {
        // SAFETY: the memory outlives the region, and may vanish while marked.
        unsafe { options.build_over(self.at, Bytes::new(self.len as u64)) }
    }

    pub fn armed(&self) -> usize {
        let range = self.at.addr()..self.at.addr() + self.len;
        let watched = |vma: &vma::Vma| vma.has("um");
        let inside = |vma: vma::Vma| vma.end.min(range.end) - vma.start.max(range.start);
        let all = vma::among(&range).unwrap();
        all.into_iter().filter(watched).map(inside).sum::<usize>() / page()
    }

    pub fn has(&self, flag: &str) -> bool {
        let range = self.at.addr()..self.at.addr() + self.len;
        vma::among(&range).unwrap().iter().any(|vma| vma.has(flag))
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping.
        unsafe { libc::munmap(self.at.cast(), self.len) };
    }
}

fn with_each_engine(count: usize) -> impl Iterator<Item = (Mapped, Region)> {
    [Engine::Scan, Engine::Tag].into_iter().filter_map(move |engine| {
        let mapped = Mapped::of_pages(count);
        match mapped.adopted_by(Region::options().engine(engine)) {
            Ok(region) => Some((mapped, region)),
            Err(error) => {
                println!("skipped: engine {engine:?}: {error}");
                None
            }
        }
    })
}

#[test]
fn the_whole_pages_inside_are_taken() {
    let mapped = Mapped::of_pages(6);
    for options in [Region::options(), Region::options().engine(Engine::Tag)] {
        // SAFETY: the memory outlives the region.
        let region = unsafe {
            options.build_over(mapped.at.byte_add(3), Bytes::new(4 * page() as u64)).unwrap()
        };
        assert_eq!(region.addr(), mapped.at.addr() + page());
        assert_eq!(region.len(), pages(0..3).end);
    }
    // SAFETY: the call is refused before any touch.
    let none = unsafe {
        let at = mapped.at.byte_add(1);
        Region::options().build_over(at, Bytes::new(2 * page() as u64 - 2))
    };
    assert!(matches!(none, Err(Error::Empty)), "{none:?}");
    // SAFETY: the call is refused before any touch.
    let beyond = unsafe { Region::options().build_over(mapped.at, Bytes::new(u64::MAX)) };
    assert!(matches!(beyond, Err(Error::Beyond { .. })), "{beyond:?}");
    // SAFETY: the call is refused before any touch.
    let empty = unsafe { Region::options().build_over(mapped.at, Bytes::ZERO) };
    assert!(matches!(empty, Err(Error::Empty)), "{empty:?}");
}

#[test]
fn a_lost_page_is_reported_and_the_rest_kept() {
    let mapped = Mapped::of_pages(16);
    for region in mapped.adopted() {
        fill(&region, 0..16);
        region.mark(pages(2..12), Priority::NORMAL).unwrap();
        purge(&region, 4..6);
        let mut byte = [0];
        let read = region.try_read(pages(5..6).start, &mut byte);
        assert!(matches!(read, Err(Error::Purged { .. })), "{read:?}");
        assert_eq!(lost(region.unmark(pages(5..16))), [5], "{:?}", region.engine());
        assert_eq!(lost(region.unmark(whole(&region))), [4], "{:?}", region.engine());
        assert!(is_filled(&region, 0..4) && is_filled(&region, 6..16));
        drop(region);
        // SAFETY: the memory is mapped, and the region was dropped.
        assert_eq!(unsafe { mapped.at.byte_add(4 * page()).read_volatile() }, 0);
    }
}

#[test]
fn a_run_of_lost_pages_may_reach_over_several_mappings() {
    let mapped = Mapped::of_pages(8);
    // Different advice splits the mapping.
    // SAFETY: the advice keeps the contents.
    unsafe {
        libc::madvise(mapped.at.byte_add(4 * page()).cast(), 4 * page(), libc::MADV_DONTDUMP);
    }
    for region in mapped.adopted() {
        fill(&region, 0..8);
        region.mark(whole(&region), Priority::NORMAL).unwrap();
        purge(&region, 1..6);
        let purged = lost(region.unmark(whole(&region)));
        assert_eq!(purged, [1, 2, 3, 4, 5], "{:?}", region.engine());
        assert!(is_filled(&region, 0..1) && is_filled(&region, 6..8));
    }
}

#[test]
fn memory_is_armed_while_it_is_marked_and_no_longer() {
    let mapped = Mapped::of_pages(16);
    for region in mapped.adopted().into_iter().filter(|it| it.engine() == Engine::Scan) {
        assert_eq!(mapped.armed(), 0);
        region.mark(pages(2..12), Priority::NORMAL).unwrap();
        assert_eq!(mapped.armed(), 10);
        region.mark(pages(10..14), Priority::NORMAL).unwrap();
        assert_eq!(mapped.armed(), 12);
        let _ = region.unmark(pages(4..6)).unwrap();
        assert_eq!(mapped.armed(), 10);
        let _ = region.unmark(pages(0..4)).unwrap();
        assert_eq!(mapped.armed(), 8);
        // An unwritten page is not lost and raises no SIGBUS.
        // SAFETY: the memory is the test's own.
        assert_eq!(unsafe { mapped.at.byte_add(7 * page()).read_volatile() }, 0);
        drop(region);
        assert_eq!(mapped.armed(), 0);
    }
}

#[test]
fn a_touch_of_a_lost_page_is_sigbus_while_it_is_marked() {
    glebe_testing::alone!();
    let mapped = Mapped::of_pages(4);
    for region in mapped.adopted().into_iter().filter(|it| it.engine() == Engine::Scan) {
        fill(&region, 0..4);
        region.mark(whole(&region), Priority::NORMAL).unwrap();
        purge(&region, 1..2);
        let at = region.addr() + page() + 5;
        assert!(child_says(fork, || sigbus_at(at) == Some(at)));
        assert_eq!(lost(region.unmark(whole(&region))), [1]);
        assert!(child_says(fork, || sigbus_at(at).is_none()));
    }
}

#[test]
fn memory_that_is_given_back_marked_does_not_vanish_later() {
    const PAGES: u64 = 512;
    let page_out = |mapped: &Mapped| {
        // SAFETY: the memory is the test's own; unmarked pages can only go to swap.
        unsafe { libc::madvise(mapped.at.cast(), mapped.len, libc::MADV_PAGEOUT) };
    };
    for (mapped, region) in with_each_engine(PAGES as usize) {
        let engine = region.engine();
        fill(&region, 0..PAGES);
        region.mark(whole(&region), Priority::NORMAL).unwrap();
        page_out(&mapped);
        let taken = lost(region.unmark(whole(&region))).len() as u64;
        if taken < PAGES / 2 {
            println!("skipped: engine {engine:?}: the kernel took {taken} of {PAGES} pages");
            continue;
        }
        fill(&region, 0..PAGES);
        region.mark(whole(&region), Priority::NORMAL).unwrap();
        drop(region);
        page_out(&mapped);
        assert_eq!(mapped.armed(), 0, "{engine:?}");
        let again = mapped.adopted_by(Region::options().engine(engine)).unwrap();
        // Real memory pressure may have taken some pages before the drop.
        let kept = (0..PAGES).filter(|page| is_filled(&again, *page..page + 1)).count();
        assert!(kept as u64 > PAGES / 2, "{kept} of {PAGES} pages, {engine:?}");
    }
}

#[test]
fn a_new_mapping_over_marked_memory_is_not_volatile() {
    for (mapped, region) in with_each_engine(8) {
        let engine = region.engine();
        fill(&region, 0..8);
        region.mark(pages(0..7), Priority::NORMAL).unwrap();
        purge(&region, 1..2);
        mapped.replace(2, PRIVATE);
        mapped.replace(3, PRIVATE);
        // SAFETY: the test owns the new page.
        unsafe { mapped.at.byte_add(3 * page()).write_volatile(9) };
        let purged = lost(region.unmark(whole(&region)));
        if engine == Engine::Scan {
            assert_eq!(purged, [1]);
            // SAFETY: the test owns the new pages.
            unsafe {
                assert_eq!(mapped.at.byte_add(3 * page()).read_volatile(), 9);
                assert_eq!(mapped.at.byte_add(2 * page()).read_volatile(), 0);
            }
        } else {
            // To *tag*, zeros look lost, and other contents look overwritten.
            assert_eq!(purged, [1, 2, 3]);
        }
        assert!(is_filled(&region, 0..1) && is_filled(&region, 4..8));
        assert_eq!(mapped.armed(), 0);
        region.mark(whole(&region), Priority::NORMAL).unwrap();
        assert!(lost(region.unmark(whole(&region))).is_empty());
    }
}

#[test]
fn what_cannot_be_written_any_more_is_left_alone() {
    // An unmark of 64 pages reads the page tables first; an unmark of 8 pages populates first.
    for count in [8, 64] {
        let mapped = Mapped::of_pages(count);
        let Ok(region) = mapped.adopted_by(Region::options().engine(Engine::Scan)) else {
            println!("skipped: no scan engine");
            return;
        };
        fill(&region, 0..count as u64);
        region.mark(whole(&region), Priority::NORMAL).unwrap();
        purge(&region, 1..2);
        mapped.replace(3, PRIVATE);
        // SAFETY: the test owns the pages.
        unsafe {
            let read_only = mapped.at.byte_add(3 * page());
            read_only.write_volatile(7);
            assert_eq!(libc::mprotect(read_only.cast(), page(), libc::PROT_READ), 0);
            assert_eq!(libc::munmap(mapped.at.byte_add(5 * page()).cast(), page()), 0);
        }
        assert_eq!(lost(region.unmark(whole(&region))), [1]);
        assert_eq!(mapped.armed(), 0);
        assert!(is_filled(&region, 0..1) && is_filled(&region, 6..count as u64));
    }
}

#[test]
fn memory_that_became_another_kind_is_refused_by_name() {
    for (mapped, region) in with_each_engine(8) {
        fill(&region, 0..8);
        mapped.replace(5, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        fill(&region, 5..6);
        let refused = region.mark(whole(&region), Priority::NORMAL).unwrap_err();
        let at = mapped.at.addr() + 5 * page();
        assert!(
            matches!(refused, Error::Unsuitable(Refusal::Shared { at: addr, .. }) if addr == at),
            "{refused:?}"
        );
        // The range counts as marked although the mark was refused, and loses nothing.
        assert!(lost(region.unmark(whole(&region))).is_empty());
        assert_eq!(mapped.armed(), 0);
        assert!(is_filled(&region, 0..8));
        region.mark(pages(0..5), Priority::NORMAL).unwrap();
        assert!(lost(region.unmark(whole(&region))).is_empty());
        assert!(is_filled(&region, 0..8));
    }
}

#[test]
fn adopted_memory_is_inherited_by_a_child_as_it_is() {
    glebe_testing::alone!();
    let mapped = Mapped::of_pages(8);
    for region in mapped.adopted() {
        fill(&region, 0..8);
        region.mark(pages(1..7), Priority::NORMAL).unwrap();
        purge(&region, 2..3);
        let said = child_says(fork, || {
            let is_armed = mapped.armed() == if region.engine() == Engine::Scan { 6 } else { 0 };
            purge(&region, 5..6);
            is_armed
                && lost(region.unmark(whole(&region))) == [2, 5]
                && mapped.armed() == 0
                && region.mark(pages(0..8), Priority::NORMAL).is_ok()
                && lost(region.unmark(whole(&region))).is_empty()
        });
        assert!(said, "{:?}", region.engine());
        assert_eq!(lost(region.unmark(whole(&region))), [2], "{:?}", region.engine());
        assert_eq!(mapped.armed(), 0);
    }
}

#[test]
fn arming_stops_before_the_process_has_no_mapping_left() {
    glebe_testing::alone!();
    let limit = glebe_os::internal::sys::memory::map_count::max_map_count().unwrap() / 8;
    let count = 2 * (limit + 2);
    let mapped = Mapped::of_pages(count as usize);
    let Ok(region) = mapped.adopted_by(Region::options().engine(Engine::Scan)) else {
        println!("skipped: no scan engine");
        return;
    };
    let refused = (0..=limit).find_map(|i| {
        region.mark(pages(2 * i..2 * i + 1), Priority::NORMAL).err().map(|error| (i, error))
    });
    let Some((at, Error::MapBudget { armed, limit: told })) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!((at, armed, told), (limit, limit, limit));
    // The refused page is not marked; an unmark makes room.
    region.write(pages(2 * at..2 * at + 1).start, &[1]).unwrap();
    assert!(lost(region.unmark(pages(0..2))).is_empty());
    region.mark(pages(2 * at..2 * at + 1), Priority::NORMAL).unwrap();
    assert!(lost(region.unmark(whole(&region))).is_empty());
}

#[test]
fn huge_page_advice_comes_back_when_the_memory_is_given_back() {
    let mapped = Mapped::of_pages(8);
    // SAFETY: the advice keeps the contents.
    if unsafe { libc::madvise(mapped.at.cast(), mapped.len, libc::MADV_HUGEPAGE) } != 0 {
        println!("skipped: no transparent huge pages");
        return;
    }
    for engine in [Engine::Scan, Engine::Tag] {
        let Ok(region) = mapped.adopted_by(Region::options().engine(engine)) else { continue };
        assert!(mapped.has("nh") && !mapped.has("hg"), "{engine:?}");
        drop(region);
        assert!(mapped.has("hg") && !mapped.has("nh"), "{engine:?}");
    }
}

#[test]
fn a_child_without_a_descriptor_leaves_the_parents_memory_armed() {
    glebe_testing::alone!();
    let mapped = Mapped::of_pages(8);
    for region in mapped.adopted().into_iter().filter(|r| r.engine() == Engine::Scan) {
        fill(&region, 0..8);
        region.mark(whole(&region), Priority::NORMAL).unwrap();
        assert!(child_says(fork, || {
            assert!(limit_files(0));
            let unarmed = child_says(fork, || lost(region.unmark(whole(&region))).len() == 8);
            assert!(limit_files(u64::MAX));
            let armed = mapped.armed() == 8;
            purge(&region, 3..4);
            let told = lost(region.unmark(whole(&region))) == [3];
            unarmed && armed && told && is_filled(&region, 0..3) && is_filled(&region, 4..8)
        }));
        assert!(lost(region.unmark(whole(&region))).is_empty());
    }
}

#[test]
fn pages_that_were_never_written_are_there_in_a_child() {
    glebe_testing::alone!();
    let mapped = Mapped::of_pages(4);
    for region in mapped.adopted() {
        region.mark(whole(&region), Priority::NORMAL).unwrap();
        let engine = region.engine();
        assert!(child_says(fork, || lost(region.unmark(whole(&region))).is_empty()), "{engine:?}");
        assert!(lost(region.unmark(whole(&region))).is_empty(), "{engine:?}");
    }
}

#[test]
fn what_is_mapped_over_a_marked_part_is_not_dropped() {
    let mapped = Mapped::of_pages(4);
    for region in mapped.adopted().into_iter().filter(|r| r.engine() == Engine::Scan) {
        fill(&region, 0..4);
        region.mark(whole(&region), Priority::NORMAL).unwrap();
        mapped.replace(1, PRIVATE);
        // SAFETY: the test owns the page.
        unsafe { mapped.at.byte_add(page()).write_volatile(7) };
        assert_eq!(region.drop_now(whole(&region)).unwrap(), pages(0..3).end);
        assert_eq!(lost(region.unmark(whole(&region))), [0, 2, 3]);
        // SAFETY: the page is mapped.
        assert_eq!(unsafe { mapped.at.byte_add(page()).read_volatile() }, 7);
    }
}
