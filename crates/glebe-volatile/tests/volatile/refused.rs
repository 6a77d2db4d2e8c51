//! Tests that unsuitable memory is refused, each kind with its own error.
//!
//! Safety: the memory is the tests' own, or refused before any use.

use std::os::fd::AsRawFd;
use std::ptr;

use glebe_contig::{Contig, Source};
use glebe_os::internal::sys::memory::vma;
use glebe_os::units::Bytes;
use glebe_volatile::{Engine, Error, Priority, Refusal, Region};

use super::adopted::{Mapped, PRIVATE, READ_WRITE};
use super::children::{child_says, fork};
use super::memory::{fill, lost, page, pages, whole};

#[test]
fn what_cannot_be_volatile_is_refused_by_name() {
    let refused = |mapped: &Mapped| mapped.adopted_by(Region::options()).unwrap_err();
    let shared = Mapped::new(page(), READ_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS).unwrap();
    let at = shared.at.addr();
    assert!(
        matches!(refused(&shared), Error::Unsuitable(Refusal::Shared { at: a, .. }) if a == at)
    );
    let read_only = Mapped::new(page(), libc::PROT_READ, PRIVATE).unwrap();
    let at = read_only.at.addr();
    assert!(
        matches!(refused(&read_only), Error::Unsuitable(Refusal::ReadOnly { at: a, .. }) if a == at)
    );
    let part = Mapped::of_pages(4);
    part.replace(2, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    let at = part.at.addr() + 2 * page();
    assert!(matches!(refused(&part), Error::Unsuitable(Refusal::Shared { at: a, .. }) if a == at));
    let locked = Mapped::of_pages(2);
    // SAFETY: the page is the test's own.
    if unsafe { libc::mlock(locked.at.byte_add(page()).cast(), page()) } == 0 {
        let at = locked.at.addr() + page();
        assert!(
            matches!(refused(&locked), Error::Unsuitable(Refusal::Locked { at: a, .. }) if a == at)
        );
    } else {
        println!("skipped: mlock: {}", std::io::Error::last_os_error());
    }
    let flags = PRIVATE | libc::MAP_HUGETLB | libc::MAP_HUGE_2MB | libc::MAP_NORESERVE;
    match Mapped::new(2 << 20, READ_WRITE, flags) {
        Some(huge) => assert!(matches!(refused(&huge), Error::Unsuitable(Refusal::Hugetlb { .. }))),
        None => println!("skipped: no hugetlb mapping of 2 MiB"),
    }
    let all = vma::among(&(0..usize::MAX)).unwrap();
    if let Some(vdso) = all.iter().find(|vma| vma.path == "[vdso]") {
        let at = ptr::with_exposed_provenance_mut(vdso.start);
        let len = Bytes::new((vdso.end - vdso.start) as u64);
        // SAFETY: the call is refused before any touch.
        let refused = unsafe { Region::options().build_over(at, len).unwrap_err() };
        assert!(matches!(refused, Error::Unsuitable(Refusal::Special { .. })), "{refused:?}");
    }
}

fn refused_at(engine: Engine, at: usize, len: u64) -> Option<Error> {
    let at = ptr::with_exposed_provenance_mut(at);
    // SAFETY: the call is refused before any touch.
    unsafe { Region::options().engine(engine).build_over(at, Bytes::new(len)) }.err()
}

#[test]
fn glebes_own_memory_is_refused() {
    glebe_testing::alone!();
    let contig = Contig::options().source(Source::Plain).build(Bytes::mib(4)).unwrap();
    let regions: Vec<Region> = super::memory::regions(4).collect();
    let mut own: Vec<usize> = regions.iter().map(Region::addr).collect();
    own.push(contig.mapping().addr());
    own.push(contig.mapping().addr() + (1 << 20));
    // Adds the pages wiped on fork, because glebe detects a child by such a page.
    let all = vma::among(&(0..usize::MAX)).unwrap();
    let wiped: Vec<_> = all.iter().filter(|vma| vma.has("wf")).map(|vma| vma.start).collect();
    if wiped.is_empty() {
        println!("skipped: the kernel wipes nothing on fork");
    }
    for at in own.into_iter().chain(wiped) {
        for engine in [Engine::Scan, Engine::Tag] {
            let refused = refused_at(engine, at, page() as u64);
            let is_named = matches!(refused, Some(Error::Unsuitable(Refusal::Own { at: own }))
                if own == at);
            assert!(is_named, "{at:#x}, {engine:?}: {refused:?}");
        }
    }
    // A range that begins in the program's memory and ends in glebe's is refused too.
    let region = &regions[0];
    let before = region.addr() - page();
    let flags = PRIVATE | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: NOREPLACE replaces no mapping.
    let at = unsafe {
        let at = ptr::with_exposed_provenance_mut(before);
        libc::mmap(at, page(), READ_WRITE, flags, -1, 0)
    };
    if at.addr() == before {
        let mapped = Mapped { at: at.cast(), len: page() };
        let refused = refused_at(Engine::Tag, before, 2 * page() as u64);
        let addr_of_region = region.addr();
        let is_named = matches!(refused, Some(Error::Unsuitable(Refusal::Own { at }))
            if at == addr_of_region);
        assert!(is_named, "{refused:?}");
        assert!(mapped.adopted_by(Region::options().engine(Engine::Tag)).is_ok());
    } else {
        println!("skipped: something lies in front of the region");
    }
    let (was, len) = (region.addr(), region.len());
    drop(regions);
    // Memory that is now the program's is accepted.
    // SAFETY: NOREPLACE replaces no mapping.
    let at = unsafe {
        let at = ptr::with_exposed_provenance_mut(was);
        libc::mmap(at, len.as_usize(), READ_WRITE, flags, -1, 0)
    };
    if at.addr() == was {
        let mapped = Mapped { at: at.cast(), len: len.as_usize() };
        assert!(mapped.adopted_by(Region::options().engine(Engine::Tag)).is_ok());
    }
}

#[test]
fn a_private_mapping_of_a_file_is_refused() {
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    for protection in [READ_WRITE, libc::PROT_READ] {
        // SAFETY: the kernel chooses the address.
        let at = unsafe {
            let fd = file.as_raw_fd();
            libc::mmap(ptr::null_mut(), page(), protection, libc::MAP_PRIVATE, fd, 0)
        };
        assert_ne!(at, libc::MAP_FAILED);
        let mapped = Mapped { at: at.cast(), len: page() };
        let refused = mapped.adopted_by(Region::options()).unwrap_err();
        let at = mapped.at.addr();
        assert!(
            matches!(refused, Error::Unsuitable(Refusal::FilePrivate { at: a, .. }) if a == at),
            "{refused:?}"
        );
    }
}

#[test]
fn memory_that_is_watched_already_is_refused() {
    let mapped = Mapped::of_pages(4);
    let Ok(first) = mapped.adopted_by(Region::options().engine(Engine::Scan)) else {
        println!("skipped: no scan engine");
        return;
    };
    fill(&first, 0..4);
    first.mark(pages(2..3), Priority::NORMAL).unwrap();
    let refused = mapped.adopted_by(Region::options()).unwrap_err();
    let at = mapped.at.addr() + 2 * page();
    let is_named = matches!(refused, Error::Unsuitable(Refusal::Watched { at: watched, .. })
        if watched == at);
    assert!(is_named, "{refused:?}");
    assert!(lost(first.unmark(whole(&first))).is_empty());
}

#[test]
fn memory_that_loses_its_pages_anyhow_is_refused() {
    const MAP_DROPPABLE: i32 = 0x08;
    let Some(mapped) = Mapped::new(page(), READ_WRITE, MAP_DROPPABLE | libc::MAP_ANONYMOUS) else {
        println!("skipped: no MAP_DROPPABLE: {}", std::io::Error::last_os_error());
        return;
    };
    let refused = mapped.adopted_by(Region::options()).unwrap_err();
    let at = mapped.at.addr();
    assert!(
        matches!(refused, Error::Unsuitable(Refusal::Special { at: special, .. }) if special == at),
        "{refused:?}"
    );
}

#[test]
fn a_process_that_locks_all_its_memory_has_no_region() {
    glebe_testing::alone!();
    let mapped = Mapped::of_pages(2);
    for engine in [None, Some(Engine::Scan), Some(Engine::Tag)] {
        let options = || engine.map_or(Region::options(), |it| Region::options().engine(it));
        if let Err(error) = options().build(pages(0..2).end) {
            println!("skipped: engine {engine:?}: {error}");
            continue;
        }
        assert!(child_says(fork, || {
            // SAFETY: the child locks its own memory.
            if unsafe { libc::mlockall(libc::MCL_FUTURE) } != 0 {
                println!("skipped: mlockall: {}", std::io::Error::last_os_error());
                return true;
            }
            let refused = matches!(
                options().build(pages(0..2).end),
                Err(Error::Unsuitable(Refusal::Locked { .. }))
            );
            // Memory mapped before the lock is not locked.
            refused && mapped.adopted_by(options()).is_ok()
        }));
    }
}
