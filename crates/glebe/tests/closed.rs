//! Tests blocks that other processes map: bricks of one or more pages of the 2 MiB pool.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

use glebe::contig::{Contig, Error, PoolLock};
use glebe::internal::mapping::{Mapping, Visibility};
use glebe::internal::sys::processes::process::effective_user;
use glebe::internal::ClosedBlock;
use glebe::reserve::{Put, Request, Reserve, ReserveError, ReserveOptions};
use glebe::units::{Bytes, PageSize, Pages, Pfn};
use glebe_testing::process::run_again;
use glebe_testing::turn::{Turn, POOL};

/// Names the size of bricks in MiB.
const MIB: &str = "GLEBE_TEST_BRICK_MIB";
const PAGE: PageSize = PageSize::new(2 << 20).unwrap();

fn brick() -> Bytes {
    Bytes::mib(std::env::var(MIB).map_or(2, |mib| mib.parse().unwrap()))
}

fn options() -> ReserveOptions {
    let brick = PageSize::new(brick().get()).unwrap();
    Reserve::options().memory(Contig::options().bricks_of(brick))
}

/// Returns a reserve of `bricks`, or prints why there is none.
fn made(options: ReserveOptions, bricks: u64) -> Option<(Reserve, Option<Turn>)> {
    let turn = Turn::alone(POOL);
    match options.build(Bytes::new(bricks * brick().get())) {
        Ok(reserve) => Some((reserve, turn)),
        Err(ReserveError::Contig(
            error @ (Error::PoolShort { .. } | Error::TooLarge { .. } | Error::NoSuchSize { .. }),
        )) => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// A client's view of given bricks.
struct View(Vec<(File, Mapping)>);

impl View {
    fn of(block: &mut ClosedBlock) -> Self {
        let all = block.give().map(|file| {
            let file: File = file.try_clone_to_owned().unwrap().into();
            let mapping = Mapping::part_of(&file, Bytes::ZERO, brick(), PAGE).unwrap();
            (file, mapping)
        });
        Self(all.collect())
    }

    fn first_bytes(&self) -> Vec<u8> {
        let first = |(_, mapping): &(File, Mapping)| {
            let mut byte = [0];
            mapping.read(glebe::page_size().bytes(), &mut byte);
            byte[0]
        };
        self.0.iter().map(first).collect()
    }

    fn fill(&self, byte: u8) {
        for (_, mapping) in &self.0 {
            mapping.write(Bytes::ZERO, &vec![byte; brick().as_usize()]);
        }
    }

    fn lens(&self) -> Vec<u64> {
        self.0.iter().map(|(file, _)| file.metadata().unwrap().len()).collect()
    }
}

fn pages(bricks: u64) -> Pages {
    Bytes::new(bricks * brick().get()).pages_down(glebe::page_size())
}

#[test]
fn bricks_of_several_pages_are_as_good() {
    for mib in ["4", "8"] {
        run_again(&["closed::"], &["as_good", "contig::"], (MIB, mib));
    }
}

#[test]
fn what_one_holder_wrote_the_next_never_sees() {
    let Some((reserve, _turn)) = made(options(), 8) else { return };
    let before = reserve.certificate().unwrap().runs;
    for round in 1..=3 {
        let mut block = ClosedBlock::of(&reserve, Request::new(pages(5)).any()).unwrap();
        assert_eq!((block.pages(), reserve.stats().held), (pages(5), pages(5)));
        let view = View::of(&mut block);
        assert_eq!(view.first_bytes(), [0; 5], "round {round}");
        assert_eq!(reserve.verify().unwrap(), [], "lent pages have not moved");
        view.fill(round);
        drop(block);
        assert_eq!(view.lens(), [0; 5], "the holder's files are cut");
        assert_eq!(reserve.stats().held, Pages::ZERO);
        if reserve.len() == pages(8) {
            assert_eq!(reserve.certificate().unwrap().runs, before);
            assert_eq!(reserve.verify().unwrap(), []);
        }
    }
}

#[test]
fn tenants_pages_are_recalled_and_none_of_their_bytes_leaves() {
    let Some((reserve, _turn)) = made(options(), 4) else { return };
    let cache = reserve.page_cache().namespace("tenant").unwrap();
    let page = vec![7; glebe::page_size().bytes().as_usize()];
    let stored = (0..pages(4).get()).filter(|n| cache.put(1, *n, &page).unwrap() == Put::Stored);
    assert!(stored.count() as u64 > pages(3).get());
    let mut block = ClosedBlock::of(&reserve, pages(2)).unwrap();
    assert_eq!(View::of(&mut block).first_bytes(), [0, 0]);
    let mut seen = vec![0; page.len()];
    let left = (0..pages(4).get()).filter(|n| cache.get(1, *n, &mut seen).unwrap());
    let left = left.count() as u64;
    assert!(left > 0 && left <= pages(2).get(), "{left}");
    drop(block);
    assert!((0..64).all(|n| cache.put(2, n, &page).unwrap() == Put::Stored));
    assert!(cache.get(2, 63, &mut seen).unwrap() && seen == page);
}

#[test]
fn a_block_in_one_file_has_its_runs_and_comes_back() {
    let Some((reserve, _turn)) = made(options(), 8) else { return };
    let before = reserve.certificate().unwrap().runs;
    let block = ClosedBlock::of(&reserve, Request::new(pages(6)).any()).unwrap();
    let frames: Vec<_> = block.frames().collect();
    let mut block = block.of_one_file().unwrap();
    let is_same = frames == block.frames().collect::<Vec<_>>();
    let file: File = block.give().next().unwrap().try_clone_to_owned().unwrap().into();
    let len = pages(6).bytes(glebe::page_size());
    let mapping = Mapping::part_of(&file, Bytes::ZERO, len, PAGE);
    let mapping = mapping.unwrap();
    mapping.write(Bytes::ZERO, &vec![9; len.as_usize()]);
    let divided = block.divided();
    assert_eq!((divided.len(), divided[0].pages()), (1, pages(6)), "a file is not divided");
    drop(divided);
    assert_eq!(file.metadata().unwrap().len(), 0);
    println!("frames stayed: {is_same}; {:?} of 8 bricks are there", reserve.len());
    if is_same && reserve.len() == pages(8) {
        assert_eq!(reserve.certificate().unwrap().runs, before);
    }
}

#[test]
fn a_holder_cannot_reach_the_memory_after_its_end() {
    let Some((reserve, _turn)) = made(options(), 4) else { return };
    let mut block = ClosedBlock::of(&reserve, pages(1)).unwrap();
    let file: OwnedFd = block.give().next().unwrap().as_fd().try_clone_to_owned().unwrap();
    let file = File::from(file);
    assert!(file.set_len(2 * brick().get()).is_err(), "it grew");
    drop(block);
    assert_eq!(file.metadata().unwrap().len(), 0);
    assert!(file.write_at(&[1], 0).is_err());
    let mut again = ClosedBlock::of(&reserve, pages(1)).unwrap();
    assert_eq!(View::of(&mut again).first_bytes(), [0]);
    assert_eq!(file.metadata().unwrap().len(), 0);
}

#[test]
fn a_cut_ends_access_at_once_and_keeps_the_pages_in_the_pool() {
    let Some((reserve, _turn)) = made(options(), 8) else { return };
    let before = reserve.certificate().unwrap().runs;
    let of = |bricks| ClosedBlock::of(&reserve, Request::new(pages(bricks)).any()).unwrap();
    let (mut first, mut second, other) = (of(3).divided(), of(2).divided(), of(3));
    let views: Vec<View> = first.iter_mut().chain(&mut second).map(View::of).collect();
    views.iter().for_each(|view| view.fill(5));
    ClosedBlock::cut(&mut first);
    ClosedBlock::cut(&mut second);
    assert!(views.iter().all(|view| view.lens() == [0]));
    assert_eq!(reserve.stats().held, pages(8));
    // Frees and fills pages while those of the others are free in the pool.
    drop(other.of_one_file().unwrap());
    assert_eq!(ClosedBlock::reopen(first).count(), Pages::ZERO);
    assert_eq!(ClosedBlock::reopen(second).count(), Pages::ZERO);
    assert_eq!(reserve.stats().held, Pages::ZERO);
    assert_eq!((reserve.len(), reserve.certificate().unwrap().runs), (pages(8), before));
    assert_eq!(reserve.verify().unwrap(), []);
    let mut again = ClosedBlock::of(&reserve, Request::new(pages(8)).any()).unwrap();
    assert_eq!(View::of(&mut again).first_bytes(), [0; 8]);
}

#[test]
fn frames_that_other_bricks_got_come_back() {
    let Some((reserve, _turn)) = made(options(), 4) else { return };
    let before = reserve.certificate().unwrap().runs;
    let of_one = || {
        let mut block = ClosedBlock::of(&reserve, pages(1)).unwrap();
        View::of(&mut block).fill(3);
        block
    };
    let (mut first, mut second) = (of_one(), of_one());
    ClosedBlock::cut(std::slice::from_mut(&mut first));
    // The last page of the first brick is freed after the second brick's.
    let taken = Mapping::hugetlb(PAGE.bytes(), PAGE, Visibility::PRIVATE).unwrap();
    taken.write(Bytes::ZERO, &[1]);
    ClosedBlock::cut(std::slice::from_mut(&mut second));
    drop(taken);
    assert_eq!(ClosedBlock::reopen(vec![first, second]).count(), Pages::ZERO);
    assert_eq!((reserve.len(), reserve.certificate().unwrap().runs), (pages(4), before));
    assert_eq!(reserve.verify().unwrap(), []);
    let mut again = ClosedBlock::of(&reserve, Request::new(pages(4)).any()).unwrap();
    assert_eq!(View::of(&mut again).first_bytes(), [0; 4]);
}

#[test]
fn contiguous_blocks_are_of_whole_bricks_and_adjacent_frames() {
    let brick = PageSize::new(brick().get()).unwrap();
    let mixed = Contig::options().bricks_of(brick).in_order(false);
    for options in [options(), Reserve::options().memory(mixed)] {
        let Some((reserve, _turn)) = made(options, 8) else { return };
        contiguous_blocks(&reserve);
    }
}

fn contiguous_blocks(reserve: &Reserve) {
    let each = PAGE.bytes().pages_down(glebe::page_size());
    for bricks in [3, 1, 2] {
        match ClosedBlock::of(reserve, pages(bricks)) {
            Ok(block) => {
                let frames: Vec<u64> = block.frames().map(|pfn| pfn.map_or(0, Pfn::get)).collect();
                let is_next = |two: &[u64]| two[0] > 0 && two[0] + each.get() == two[1];
                assert!(frames.windows(2).all(is_next), "{frames:?}");
                assert_eq!(frames[0] % pages(1).get(), 0, "{frames:?}");
                assert_eq!((block.is_run(), block.start() % pages(1).get()), (true, 0));
            }
            Err(ReserveError::NoRun { .. } | ReserveError::NoAlignedRun { .. }) => {
                println!("skipped: no run of {bricks} bricks");
            }
            Err(error) => panic!("{error}"),
        }
    }
    let all = ClosedBlock::of(reserve, Request::new(pages(8)).any()).unwrap();
    assert_eq!(all.frames().count() as u64, pages(8).get() / each.get());
}

#[test]
fn a_cut_does_not_wait_for_who_changes_the_pool() {
    if effective_user() != 0 {
        return println!("skipped: this user cannot change the pool, so it needs no lock");
    }
    let Some((reserve, _turn)) = made(options(), 2) else { return };
    let mut block = ClosedBlock::of(&reserve, Request::new(pages(2)).any()).unwrap();
    let view = View::of(&mut block);
    let lock = PoolLock::acquire().unwrap();
    ClosedBlock::cut(std::slice::from_mut(&mut block));
    assert_eq!(view.lens(), [brick().get(); 2]);
    drop(lock);
    drop(block);
    assert_eq!((view.lens(), reserve.len()), (vec![0, 0], pages(2)));
}

#[test]
fn blocks_that_nobody_got_come_back_as_they_went() {
    let Some((reserve, _turn)) = made(options().room(Bytes::new(8 * brick().get())), 4) else {
        return;
    };
    reserve.grow(Bytes::new(2 * brick().get())).unwrap();
    assert_eq!(reserve.len(), pages(6));
    let all = ClosedBlock::of(&reserve, Request::new(pages(6)).any()).unwrap();
    assert!(matches!(reserve.alloc(Pages::new(1)), Err(ReserveError::NoRun { .. })));
    let mut all = all.divided();
    assert_eq!(all.len(), 6);
    assert_eq!(ClosedBlock::reopen(all.split_off(2)).count(), Pages::ZERO);
    assert_eq!(reserve.stats().held, pages(2));
    drop(all);
    assert_eq!((reserve.stats().held, reserve.len()), (Pages::ZERO, pages(6)));
    reserve.shrink(Bytes::new(2 * brick().get())).unwrap();
    assert_eq!(reserve.len(), pages(4));
    assert!(reserve.alloc(Request::new(pages(4)).any()).is_ok());
}

#[test]
fn memory_without_bricks_is_not_closed() {
    let plain = Contig::options().source(glebe::contig::Source::Plain);
    let reserve = Reserve::options().memory(plain).build(Bytes::mib(4)).unwrap();
    assert!(matches!(ClosedBlock::of(&reserve, pages(1)), Err(ReserveError::NoBricks)));
    let plain = Contig::options().bricks().source(glebe::contig::Source::Plain);
    let refused = Reserve::options().memory(plain).build(Bytes::mib(4)).unwrap_err();
    assert!(matches!(refused, ReserveError::Contig(Error::NoSuchSize { .. })), "{refused}");
}
