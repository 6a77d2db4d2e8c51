//! Tests of bytes, addresses and limits of views.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::*;
use glebe_os::extent::Extent;
use glebe_os::internal::sys::page_size;
use glebe_os::units::{Bytes, PageSize, Pages};

fn extent(start: u64, len: u64) -> Extent {
    Extent::new(start, len).unwrap()
}

fn bytes(pages: u64) -> Bytes {
    Pages::new(pages).bytes(page_size())
}

fn numbered(pages: u64) -> Arc<MemFile> {
    let file = Arc::new(MemFile::new(bytes(pages)).unwrap());
    let all = Space::new(bytes(pages)).unwrap().view(&file, &[extent(0, pages)]).unwrap();
    for page in 0..pages {
        let number = (page as u32).to_le_bytes();
        all.write(bytes(page), &number).unwrap();
        all.write(Bytes::new(bytes(page + 1).get() - 4), &number).unwrap();
    }
    file
}

fn numbers(view: &View) -> Vec<u32> {
    let page = page_size().bytes().get();
    let at = |offset| {
        let mut number = [0; 4];
        view.read(Bytes::new(offset), &mut number).unwrap();
        u32::from_le_bytes(number)
    };
    let pages = view.len().pages_down(page_size()).get();
    (0..pages)
        .map(|n| {
            assert_eq!(at(n * page), at((n + 1) * page - 4));
            at(n * page)
        })
        .collect()
}

#[test]
fn pages_read_in_the_order_given_and_neighbours_are_one_mapping() {
    let file = numbered(16);
    let space = Space::new(bytes(64)).unwrap();
    let view = space.view(&file, &[extent(9, 1), extent(2, 2), extent(4, 1), extent(0, 1)]);
    let view = view.unwrap();
    assert_eq!(numbers(&view), [9, 2, 3, 4, 0]);
    assert_eq!(view.len(), bytes(5));
    let other = space.view(&file, &[extent(3, 1)]).unwrap();
    other.write(Bytes::ZERO, &77_u32.to_le_bytes()).unwrap();
    let mut seen = [0; 4];
    view.read(bytes(2), &mut seen).unwrap();
    assert_eq!(u32::from_le_bytes(seen), 77);
    // `view` has four mappings: pages 9, 2 to 4, 0, and the gap. `other` has two.
    assert_eq!((space.usage().views, space.usage().mappings), (2, 6));
}

#[test]
fn the_same_page_twice_is_a_ring() {
    let file = numbered(2);
    let space = Space::new(bytes(8)).unwrap();
    let ring = space.view(&file, &[extent(0, 2), extent(0, 2)]).unwrap();
    ring.write(Bytes::new(bytes(2).get() - 3), b"over the end").unwrap();
    let mut start = [0; 9];
    ring.read(Bytes::ZERO, &mut start).unwrap();
    assert_eq!(&start, b"r the end");
}

#[test]
fn dropped_views_are_unmapped_later_and_together() {
    let file = numbered(8);
    let space = Space::options().lazy_max(bytes(4)).build(bytes(8)).unwrap();
    let three: Vec<View> =
        [5, 3, 1].map(|page| space.view(&file, &[extent(page, 1)]).unwrap()).into();
    let at: Vec<usize> = three.iter().map(|view| view.as_ptr().addr()).collect();
    drop(three);
    let usage = space.usage();
    assert_eq!((usage.views, usage.mappings, usage.lazy), (0, 6, bytes(3)));
    assert_eq!(usage.free, bytes(5));
    let fourth = space.view(&file, &[extent(0, 1)]).unwrap();
    assert!(!at.contains(&fourth.as_ptr().addr()));
    space.flush().unwrap();
    let usage = space.usage();
    assert_eq!((usage.mappings, usage.lazy, usage.free), (2, Bytes::ZERO, bytes(7)));
    // More than four pages of dropped views cause a flush.
    drop(space.view(&file, &[extent(0, 5)]).unwrap_err());
    drop(fourth);
    drop(space.view(&file, &[extent(0, 4)]).unwrap());
    let usage = space.usage();
    assert_eq!((usage.mappings, usage.free), (0, bytes(8)));
}

#[test]
fn addresses_of_dropped_views_are_had_when_no_others_are_left() {
    let file = numbered(8);
    let space = Space::options().lazy_max(bytes(100)).build(bytes(8)).unwrap();
    for _ in 0..10 {
        let view = space.view(&file, &[extent(4, 4), extent(1, 1)]).unwrap();
        assert_eq!(numbers(&view), [4, 5, 6, 7, 1]);
    }
    let kept = space.view(&file, &[extent(0, 6)]).unwrap();
    match space.view(&file, &[extent(0, 3)]).unwrap_err() {
        Error::NoAddresses { asked, largest, all } => {
            assert_eq!((asked, largest, all), (bytes(3), bytes(2), bytes(8)));
        }
        other => panic!("{other}"),
    }
    assert_eq!(numbers(&kept), [0, 1, 2, 3, 4, 5]);
    assert_eq!(numbers(&space.view(&file, &[extent(0, 2)]).unwrap()), [0, 1]);
}

#[test]
fn a_limit_on_mappings_counts_dropped_views_and_is_named() {
    let file = numbered(32);
    let space = Space::options().max_mappings(10).build(bytes(64)).unwrap();
    let scattered: Vec<Extent> = (0..9).map(|n| extent(2 * n, 1)).collect();
    drop(space.view(&file, &scattered).unwrap());
    assert_eq!(space.usage().mappings, 10);
    let half = space.view(&file, &scattered[..4]).unwrap();
    let error = space.view(&file, &scattered[..5]).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::ViewLimit { asked: 6, used: 5, limit: 10, .. }), "{text}");
    assert!(text.contains("6 mappings") && text.contains("5 of at most 10"), "{text}");
    let rest = space.view(&file, &scattered[4..8]).unwrap();
    assert_eq!((numbers(&half), numbers(&rest)), (vec![0, 2, 4, 6], vec![8, 10, 12, 14]));
}

#[test]
fn what_is_not_in_the_file_or_the_view_is_refused() {
    let file = numbered(4);
    let space = Space::new(bytes(64)).unwrap();
    assert!(matches!(space.view(&file, &[]), Err(Error::Empty)));
    assert!(matches!(Space::new(Bytes::ZERO), Err(Error::Empty)));
    for given in [extent(3, 2), extent(4, 1), extent(u64::MAX - 1, 1), extent(0, u64::MAX)] {
        let refused = space.view(&file, &[extent(0, 1), given]).unwrap_err();
        assert!(matches!(refused, Error::BeyondEnd { given: g, .. } if g == given), "{refused}");
    }
    let view = space.view(&file, &[extent(0, 2)]).unwrap();
    let mut buf = [0; 8];
    for offset in [bytes(2), Bytes::new(bytes(2).get() - 7), Bytes::new(u64::MAX)] {
        assert!(matches!(view.read(offset, &mut buf), Err(Error::BeyondView { .. })));
        assert!(matches!(view.write(offset, &buf), Err(Error::BeyondView { .. })));
    }
    view.read(bytes(2), &mut []).unwrap();
    let other = Space::options().page(PageSize::new(2 << 20).unwrap()).build(Bytes::mib(4));
    assert!(matches!(other.unwrap().view(&file, &[extent(0, 1)]), Err(Error::OtherPage { .. })));
    assert!(Space::new(Bytes::new(u64::MAX)).is_err());
    assert_eq!((space.usage().views, space.usage().mappings), (1, 2));
}

#[test]
fn a_page_that_others_took_is_an_error_or_zeros() {
    let name = format!("glebe-view-{}", std::process::id());

    let shm = std::path::Path::new("/dev/shm").join(name);
    let Ok(cut) = std::fs::File::create_new(&shm) else {
        println!("skipped: no file can be made in /dev/shm");
        return;
    };
    std::fs::remove_file(&shm).unwrap();
    cut.set_len(bytes(4).get()).unwrap();
    let Ok(file) = MemFile::adopt(OwnedFd::from(cut.try_clone().unwrap())) else {
        println!("skipped: /dev/shm is no tmpfs");
        return;
    };
    let file = Arc::new(file);
    let space = Space::new(bytes(64)).unwrap();
    let view = space.view(&file, &[extent(2, 1), extent(0, 1), extent(3, 1)]).unwrap();
    let text = vec![5; 3 * page_size().bytes().as_usize()];
    view.write(Bytes::ZERO, &text).unwrap();
    cut.set_len(bytes(3).get()).unwrap();
    let mut buf = vec![0; text.len()];
    let lost = view.read(Bytes::ZERO, &mut buf).unwrap_err();
    assert!(matches!(lost, Error::Lost { offset } if offset == bytes(2)), "{lost}");
    assert_eq!(buf[..bytes(2).as_usize()], text[..bytes(2).as_usize()]);
    let lost = view.write(Bytes::new(bytes(2).get() - 1), &[1, 2]).unwrap_err();
    assert!(matches!(lost, Error::Lost { offset } if offset == bytes(2)), "{lost}");
    assert!(matches!(space.view(&file, &[extent(3, 1)]), Err(Error::BeyondEnd { .. })));
}

#[test]
fn huge_pages_are_viewed_whole() {
    let huge = PageSize::new(2 << 20).unwrap();
    let grain = huge.bytes().pages_down(page_size()).get();
    let file = match MemFile::hugetlb(Bytes::mib(6), huge) {
        Ok(file) => Arc::new(file),
        Err(error) => return println!("skipped: {error}"),
    };
    let space = Space::options().page(huge).build(Bytes::mib(16)).unwrap();
    for given in [extent(1, grain), extent(0, 1), extent(grain, grain + 1)] {
        let refused = space.view(&file, &[given]).unwrap_err();
        assert!(matches!(refused, Error::Unaligned { grain: g, .. } if g.get() == grain));
    }
    let view = match space.view(&file, &[extent(2 * grain, grain), extent(0, grain)]) {
        Ok(view) => view,
        Err(error) => return println!("skipped: {error}"),
    };
    view.write(Bytes::new(Bytes::mib(2).get() - 4), b"on a border").unwrap();
    let mut text = [0; 11];
    view.read(Bytes::new(Bytes::mib(2).get() - 4), &mut text).unwrap();
    assert_eq!((&text, view.len()), (b"on a border", Bytes::mib(4)));
}
