//! Fault tests in the machine's hugetlb pool, one at a time.
//!
//! # Safety
//! The only unsafe call locks an open descriptor.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use glebe::contig::{Contig, Source};
use glebe::internal::sys::fault::{Fault, Lasting};
use glebe::internal::ClosedBlock;
use glebe::reserve::{Request, Reserve};
use glebe::units::{Bytes, PageSize, Pages};
use glebe_testing::alone;
use glebe_testing::time::is_long;

use crate::foreign::ForeignPages;
use crate::pool::Machine;
use crate::reserve::{live, GRANULE, LEN, ONE};
use crate::walk::{walk_all, walk_once, walk_some, with_fault};
use crate::{resized, scrambled};

/// Number of faults in a short test, because a body that searches memory takes up to 0.2 s.
const SEARCHED: usize = 60;

/// The machine's pool, locked against other fault tests, because tests compare the pool before and
/// after a test body.
pub struct Turn {
    pub machine: Machine,
    _lock: File,
}

impl Turn {
    /// Waits for other fault tests. Returns `None` and prints why if the pool cannot be changed.
    pub fn take() -> Option<Self> {
        let lock = lock();
        Machine::privileged().map(|machine| Self { machine, _lock: lock })
    }
}

/// Locks the pool against other fault tests until the file is closed or the process dies.
pub fn lock() -> File {
    let program = File::open("/proc/self/exe").expect("this program");
    // SAFETY: `program` is an open descriptor.
    while unsafe { libc::flock(program.as_raw_fd(), libc::LOCK_EX) } != 0 {
        let error = io::Error::last_os_error();
        assert_eq!(error.kind(), io::ErrorKind::Interrupted, "{error}");
    }
    program
}

#[test]
fn grows_and_shrinks() {
    alone!();
    let Some(turn) = Turn::take() else { return };
    let options = || Contig::options().source(Source::HUGETLB_2M).search(Bytes::ZERO);
    let (name, life) = ("grows and shrinks, hugetlb", || resized::live(options()));
    // A short test fails each call alone. The test `grows_and_shrinks` in `main.rs` also fails all
    // later calls.
    match is_long() {
        true => walk_all(Some(&turn.machine), name, life),
        false => drop(walk_once(Some(&turn.machine), name, life)),
    }
}

#[test]
fn a_pool_that_is_grown_for_pages_in_order() {
    alone!();
    let Some(turn) = Turn::take() else { return };
    let Some(_foreign) = ForeignPages::add(2) else { return };
    let life = || live(Contig::options().source(Source::HUGETLB_2M), LEN, Pages::ZERO);
    walk_all(Some(&turn.machine), "hugetlb, required", life);
}

#[test]
fn a_run_that_is_searched_for() {
    alone!();
    let Some(turn) = Turn::take() else { return };
    // The search makes calls for each page.
    let most = Bytes::mib(if is_long() { 64 } else { 16 });
    let options = || Contig::options().source(Source::HUGETLB_2M).search(most).threads(1);
    let life = || {
        drop(options().prefer_run(Bytes::mib(4)).build(Bytes::mib(4))?);
        Ok(())
    };
    walk_some(Some(&turn.machine), "hugetlb, a run searched for", SEARCHED, life);
}

#[test]
fn a_pool_that_is_grown_for_one_page() {
    alone!();
    let Some(turn) = Turn::take() else { return };
    let life = || {
        let contig = Contig::options().source(Source::HUGETLB_2M).build(GRANULE)?;
        drop(Reserve::options().build_on(contig)?);
        Ok(())
    };
    walk_all(Some(&turn.machine), "hugetlb, one page", life);
}

#[test]
fn a_pool_of_pages_that_are_moved() {
    alone!();
    let Some(turn) = Turn::take() else { return };
    let pages = scrambled::PAGES as u64;
    let Some(_foreign) = ForeignPages::add(pages) else { return };
    let life = || {
        scrambled::scramble();
        let options = Contig::options().source(Source::HUGETLB_2M).threads(1);
        let contig = options.build(Bytes::mib(pages))?;
        drop(Reserve::options().build_on(contig)?);
        Ok(())
    };
    walk_all(Some(&turn.machine), "hugetlb, moved", life);
}

#[test]
fn a_file_of_pages_that_are_moved() {
    alone!();
    let Some(turn) = Turn::take() else { return };
    let Some(_foreign) = ForeignPages::add(scrambled::PAGES as u64) else { return };
    walk_all(Some(&turn.machine), "hugetlb file, moved", || scrambled::live(false));
    let (name, searched) = ("hugetlb file, searched", || scrambled::live(true));
    match is_long() {
        true => walk_all(Some(&turn.machine), name, searched),
        false => walk_some(Some(&turn.machine), name, SEARCHED, searched),
    }
}

#[test]
fn a_block_that_becomes_no_file_comes_back_whole() {
    alone!();
    let Some(turn) = Turn::take() else { return };
    for brick in [GRANULE, Bytes::new(2 * GRANULE.get())] {
        let memory = Contig::options().bricks_of(PageSize::new(brick.get()).unwrap());
        let len = Bytes::new(4 * brick.get());
        let reserve = Reserve::options().memory(memory).build(len).unwrap();
        let whole = len.pages_down(glebe::page_size());
        let (mut nth, mut errors) = (0, 0);
        loop {
            nth += 1;
            let block = ClosedBlock::of(&reserve, Request::new(whole).any()).unwrap();
            let block = RefCell::new(Some(block));
            let life = || {
                let made = block.take().expect("a block").of_one_file();
                let made = made.map_err(|(why, parts)| {
                    assert_eq!(ClosedBlock::reopen(parts).count(), Pages::ZERO, "call {nth}");
                    why
                })?;
                block.replace(Some(made));
                Ok(())
            };
            let (met, outcome) =
                with_fault(&life, Fault { nth, choice: 0, lasting: Lasting::Once });
            errors += u32::from(outcome.is_err());
            drop(block);
            assert_eq!((reserve.len(), reserve.stats().held), (whole, Pages::ZERO), "{met:?}");
            if met.refused.is_empty() {
                break;
            }
        }
        println!("bricks of {brick}: {nth} calls, {errors} errors");
        assert!(errors > 8, "a fill of each page, and a lack of descriptors");
    }
    drop(turn);
}

#[test]
fn whatever_source_is_best() {
    alone!();
    let turn = Turn::take();
    let machine = turn.as_ref().map(|turn| &turn.machine);
    // Other sources make up for most faults, so no error is required.
    walk_some(machine, "any source", SEARCHED, || live(Contig::options(), LEN, ONE));
}
