//! Tests blocks of a reserve whose bricks begin at frames that are not aligned to a brick.

use glebe_os::error::OsError;
use glebe_os::internal::mapping::{Mapping, Visibility};
use glebe_os::internal::sys::memory::pagemap::Pagemap;
use glebe_os::internal::sys::processes::process::effective_user;
use glebe_testing::turn::{Turn, POOL};

use super::*;
use crate::contig::{Contig, Source};
use glebe_os::units::Bytes;

const PAGE: PageSize = PageSize::new(2 << 20).unwrap();
const BRICK: PageSize = PageSize::new(4 << 20).unwrap();

/// Returns pages with their numbers, in physical order; an error if the pool has too few.
fn pages(count: u64) -> Result<Vec<(u64, Mapping)>, OsError> {
    let numbered = |_| {
        let mapping = Mapping::hugetlb(PAGE.bytes(), PAGE, Visibility::PRIVATE)?;
        mapping.write(Bytes::ZERO, &[1]);
        let entries = Pagemap::open().unwrap();
        let entries = entries.entries(mapping.addr(), PAGE.bytes(), PAGE).unwrap();
        Ok((entries[0].frame().unwrap().get() / pages_in(PAGE), mapping))
    };
    let mut all: Vec<_> = (0..count).map(numbered).collect::<Result<_, OsError>>()?;
    all.sort_by_key(|(number, _)| *number);
    Ok(all)
}

#[test]
fn a_contiguous_block_is_of_whole_bricks_though_runs_begin_within_one() {
    if effective_user() != 0 {
        return println!("skipped: only root can arrange the pool's pages");
    }
    let _turn = Turn::alone(POOL);
    let options = Contig::options().source(Source::HUGETLB_2M).prefer_run(Bytes::mib(24));
    let Ok(memory) = options.build(Bytes::mib(24)) else {
        return println!("skipped: no huge pages");
    };
    let keeping = Keeping::of(PAGE, PoolLock::PATIENCE).unwrap();
    drop(memory);
    let mut all = match pages(12) {
        Ok(all) => all,
        Err(error) => return println!("skipped: another program took pages of the pool: {error}"),
    };
    let is_odd_run = |at: &usize| {
        let run = &all[*at..at + 4];
        run[0].0 % 2 == 1 && run.windows(2).all(|two| two[0].0 + 1 == two[1].0)
    };
    let Some(at) = (0..=all.len() - 4).find(is_odd_run) else {
        let numbers: Vec<u64> = all.iter().map(|(number, _)| *number).collect();
        return println!("skipped: no run of four pages in the pool: {numbers:?}");
    };
    // The pool hands out first what was freed last.
    let mut run: Vec<(u64, Mapping)> = all.drain(at..at + 4).collect();
    let first = run[0].0;
    while let Some(last) = run.pop() {
        drop(last);
    }
    let options = Reserve::options().memory(Contig::options().bricks_of(BRICK).in_order(false));
    let reserve = options.build(Bytes::mib(8)).unwrap();
    let runs = reserve.certificate().unwrap().runs;
    let is_run = runs.len() == 1 && runs[0].pfn.map(Pfn::get) == Some(first * pages_in(PAGE));
    if !is_run {
        return println!("skipped: another program took pages of the pool: {runs:?}");
    }
    let brick = Pages::new(pages_in(BRICK));
    let refused = ClosedBlock::of(&reserve, brick).unwrap_err();
    let is_lack = matches!(refused, ReserveError::NoRun { .. } | ReserveError::NoAlignedRun { .. });
    assert!(is_lack, "{refused}");
    let block = ClosedBlock::of(&reserve, Request::new(brick).any()).unwrap();
    assert_eq!((block.start(), block.is_run()), (0, true));
    drop((block, reserve, keeping));
}
