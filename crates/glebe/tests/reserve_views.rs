//! Memory that is contiguous in virtual addresses only: scattered pages of a reserve as one slice.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use glebe::contig::{Contig, Source};
use glebe::reserve::{Block, Contiguity, Error, Request, Reserve, Writers};
use glebe::sys::page_size;
use glebe::units::{Bytes, Pages};
use glebe::vmap;

const ONE: Pages = Pages::new(1);

/// A reserve of base pages that can be mapped again.
fn reserve(len: Bytes) -> Reserve {
    let options = Contig::options().source(Source::Plain);
    Reserve::builder().views().map_with(options, len).unwrap()
}

/// Holds all of it in blocks of `pages`.
fn fill(reserve: &Reserve, pages: Pages) -> Vec<Block> {
    let mut blocks = Vec::new();
    while let Ok(block) = reserve.alloc_with(Request::new(pages).any()) {
        blocks.push(block);
    }
    blocks
}

/// Leaves every other block free.
fn checkered(reserve: &Reserve, pages: Pages) -> Vec<Block> {
    let mut blocks = fill(reserve, pages);
    blocks.sort_by_key(|block| block.extent().start());
    blocks.into_iter().enumerate().filter(|(n, _)| n % 2 == 1).map(|(_, block)| block).collect()
}

fn page_bytes() -> usize {
    page_size().bytes().as_usize()
}

#[test]
fn one_extent_is_a_block_and_several_are_a_view_of_the_lowest() {
    let reserve = reserve(Bytes::mib(2));
    let whole = reserve.alloc_virtual(reserve.len()).unwrap();
    assert_eq!(whole.extents().count(), 1);
    drop(whole);
    let held = checkered(&reserve, ONE);
    let free = reserve.stats().free;
    let mut block = reserve.alloc_virtual(Pages::new(100)).unwrap();
    assert_eq!((block.pages(), block.extents().count()), (Pages::new(100), 100));
    assert_eq!(block.contiguity(), Contiguity::VirtualOnly);
    let starts: Vec<u64> = block.extents().map(|extent| extent.start()).collect();
    assert_eq!(starts, (0..100).map(|n| 2 * n).collect::<Vec<u64>>());
    let bytes = block.bytes_mut().unwrap();
    assert_eq!(bytes.len(), 100 * page_bytes());
    for (n, page) in bytes.chunks_mut(page_bytes()).enumerate() {
        page.fill(n as u8);
    }
    assert_eq!(reserve.stats().free, free - Pages::new(100));
    assert!(held.iter().all(|block| block.bytes().unwrap().iter().all(|byte| *byte == 0)));
    // Where they lie, each has what was written in the view.
    for (n, part) in block.into_blocks().iter().enumerate() {
        assert!(part.bytes().unwrap().iter().all(|byte| *byte == n as u8), "{n}");
    }
    assert_eq!(reserve.stats().free, free);
    reserve.stats().check().unwrap();
}

#[test]
fn all_or_nothing_and_the_error_says_what_was_free() {
    let reserve = reserve(Bytes::mib(2));
    let held = checkered(&reserve, Pages::new(2));
    let free = reserve.stats().free;
    match reserve.alloc_virtual(free + ONE) {
        Err(Error::NotEnough { asked, free: told, grain }) => {
            assert_eq!((asked, told, grain), (free + ONE, free, ONE));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(reserve.stats().free, free);
    let all = reserve.alloc_virtual(free).unwrap();
    assert_eq!(all.pages(), free);
    assert!(matches!(reserve.alloc_virtual(ONE), Err(Error::NotEnough { .. })));
    drop((all, held));
    assert_eq!(reserve.alloc_virtual(reserve.len()).unwrap().extents().count(), 1);
    for pages in [reserve.len() + ONE, Pages::new(u64::MAX)] {
        assert!(matches!(reserve.alloc_virtual(pages), Err(Error::NotEnough { .. })));
    }
    assert!(matches!(reserve.alloc_virtual(Pages::ZERO), Err(Error::ZeroPages)));
}

#[test]
fn of_very_many_extents_the_longest_are_taken() {
    let reserve = reserve(Bytes::mib(16));
    let mut held = checkered(&reserve, ONE);
    // Two long extents behind more short ones than are worth a mapping each.
    let end = reserve.len().get() - 600;
    held.retain(|block| block.extent().start() < end || block.extent().start() == end + 301);
    let block = reserve.alloc_virtual(Pages::new(1200)).unwrap();
    let longest = block.extents().map(|extent| extent.len()).max().unwrap();
    assert!((298..=302).contains(&longest), "{longest}");
    assert!(block.extents().count() < 700, "{}", block.extents().count());
    assert_eq!(block.pages(), Pages::new(1200));
    drop(held);
}

#[test]
fn what_can_be_mapped_once_only_says_so() {
    let options = Contig::options().source(Source::Plain);
    let reserve = Reserve::builder().map_with(options, Bytes::mib(2)).unwrap();
    let held = checkered(&reserve, Pages::new(4));
    drop(reserve.alloc_virtual(Pages::new(4)).unwrap());
    match reserve.alloc_virtual(Pages::new(5)) {
        Err(Error::NotMappable { asked, largest }) => {
            assert_eq!((asked, largest), (Pages::new(5), Pages::new(4)));
        }
        other => panic!("{other:?}"),
    }
    let refused = reserve.view(held).unwrap_err();
    assert!(matches!(refused.error, Error::NotMappable { .. }), "{refused}");
    assert!(!refused.blocks.is_empty());
}

#[test]
fn blocks_of_the_callers_are_viewed_in_order_and_come_back() {
    let reserve = reserve(Bytes::mib(2));
    // Contiguous frames are not for the asking.
    let any = |n| reserve.alloc_with(Request::new(Pages::new(n)).any()).unwrap();
    let mut blocks: Vec<Block> = [3, 1, 2].map(any).into();
    for (n, block) in blocks.iter_mut().enumerate() {
        block.bytes_mut().unwrap().fill(10 + n as u8);
    }
    blocks.rotate_left(1);
    let places: Vec<_> = blocks.iter().map(Block::extent).collect();
    let view = reserve.view(blocks).unwrap();
    let firsts: Vec<u8> =
        view.bytes().unwrap().chunks(page_bytes()).map(|page| page[page_bytes() - 1]).collect();
    assert_eq!(firsts, [11, 12, 12, 10, 10, 10]);
    assert!(view.extents().eq(places.iter().copied()));
    let blocks = view.into_blocks();
    assert!(blocks.iter().map(Block::extent).eq(places));
    let other = self::reserve(Bytes::mib(2));
    let refused = other.view(blocks).unwrap_err();
    assert!(matches!(refused.error, Error::OtherReserve { .. }), "{refused}");
    assert_eq!(refused.blocks.len(), 3);
    assert!(matches!(other.view(Vec::new()).unwrap_err().error, Error::ZeroPages));
}

#[test]
fn huge_pages_are_the_grain_of_what_is_scattered() {
    let options = Contig::options().source(Source::HUGETLB_2M);
    let reserve = match Reserve::builder().views().map_with(options, Bytes::mib(8)) {
        Ok(reserve) => reserve,
        Err(error) => return println!("skipped: {error}"),
    };
    let grain = Bytes::mib(2).pages_down(page_size());
    let mut blocks = fill(&reserve, grain);
    blocks.sort_by_key(|block| block.extent().start());
    assert_eq!(blocks.len(), 4);
    // One page of the last granule stays free too, which is no grain.
    let (third, first) = (blocks.remove(2), blocks.remove(0));
    let refused = reserve.alloc_virtual(grain + grain + ONE).unwrap_err();
    assert!(matches!(refused, Error::NotEnough { free, .. } if free == Pages::ZERO), "{refused}");
    drop((first, third));
    // Within one extent nothing is rounded.
    assert_eq!(reserve.alloc_virtual(ONE).unwrap().pages(), ONE);
    let mut block = reserve.alloc_virtual(grain + ONE).unwrap();
    assert_eq!((block.pages(), block.extents().count()), (grain + grain, 2));
    block.bytes_mut().unwrap().fill(3);
    drop(block);
    let one = reserve.alloc(ONE, ONE).unwrap();
    match reserve.alloc_virtual(grain + ONE).unwrap_err() {
        Error::NotEnough { free, grain: of, .. } => assert_eq!((free, of), (grain, grain)),
        other => panic!("{other}"),
    }
    let refused = reserve.view(vec![one]).unwrap_err();
    assert!(matches!(refused.error, Error::View(vmap::Error::Unaligned { .. })), "{refused}");
    drop((refused, blocks));
    drop(reserve);
}

#[test]
fn a_view_outlives_its_reserves_handle() {
    let reserve = reserve(Bytes::mib(2));
    let held = checkered(&reserve, ONE);
    let mut block = reserve.alloc_virtual(Pages::new(9)).unwrap();
    drop((reserve, held));
    block.bytes_mut().unwrap().fill(9);
    assert!(block.bytes().unwrap().iter().all(|byte| *byte == 9));
}

#[test]
fn no_tenant_writes_into_a_view() {
    for writers in [Writers::Restartable, Writers::Counted] {
        let options = Contig::options().source(Source::Plain);
        let builder = Reserve::builder().views().writers(writers);
        tenants_beside_views(&builder.map_with(options, Bytes::mib(4)).unwrap());
    }
}

/// Tenants put pages of ones everywhere while views are filled with other bytes.
fn tenants_beside_views(reserve: &Reserve) {
    let (stop, stored) = (AtomicBool::new(false), AtomicU64::new(0));
    let pool = reserve.page_cache().pool("tenant").unwrap();
    thread::scope(|scope| {
        let tenant = scope.spawn(|| {
            let page = vec![1; page_bytes()];
            while !stop.load(Ordering::Relaxed) {
                let index = stored.fetch_add(1, Ordering::Relaxed);
                pool.put(1, index % 4096, &page).unwrap();
            }
        });
        let mut held: Vec<Block> = Vec::new();
        for round in 0..60_u64 {
            held.extend((0..40).filter_map(|_| reserve.alloc(ONE, ONE).ok()));
            let mut n = 0;
            held.retain(|_| {
                n += 1;
                (n + round) % 3 != 0
            });
            let Ok(mut block) = reserve.alloc_virtual(Pages::new(300 + round * 5)) else {
                continue;
            };
            let mark = 2 + (round % 200) as u8;
            block.bytes_mut().unwrap().fill(mark);
            thread::yield_now();
            assert!(block.bytes().unwrap().iter().all(|byte| *byte == mark));
        }
        // On a busy machine it may not have begun yet.
        while stored.load(Ordering::Relaxed) == 0 && !tenant.is_finished() {
            thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
        tenant.join().unwrap();
    });
    assert_eq!(reserve.stats().held, Pages::ZERO);
    reserve.stats().check().unwrap();
}
