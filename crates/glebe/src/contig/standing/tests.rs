//! A standing pool of the machine's own pages, as root; without privileges of what is free.

use super::*;
use crate::sys::pagemap::{frames_visible, Pagemap};

fn pool(len: Bytes, search: Bytes) -> Option<StandingPool> {
    if !frames_visible() {
        println!("skipped: frames are hidden");
        return None;
    }
    match StandingPool::options().memory(Contig::options().search(search)).build(len) {
        Ok(pool) => Some(pool),
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}

fn bytes(pages: Pages) -> Bytes {
    pages.bytes(page_size())
}

/// Frames of base pages from `addr` on.
fn frames(addr: usize, len: Bytes) -> Vec<u64> {
    let entries = Pagemap::open().unwrap().entries(addr, len, page_size()).unwrap();
    entries.iter().map(|entry| entry.frame().unwrap().get()).collect()
}

#[test]
fn the_longest_run_is_the_physical_optimum_and_can_be_had() {
    let Some(pool) = pool(Bytes::mib(64), Bytes::mib(128)) else { return };
    let mut all = frames(pool.contig().mapping().addr(), pool.contig().len());
    all.sort_unstable();
    let best = all.chunk_by(|a, b| *b == a + 1).map(<[u64]>::len).max().unwrap() as u64;
    if !pool.contig().why_not_better().iter().any(|note| note.contains("were possible")) {
        assert_eq!(pool.largest_free_run().unwrap().get(), best);
    }
    let longest = pool.largest_free_run().unwrap();
    let window = pool.map(bytes(longest)).unwrap();
    let seen = frames(window.mapping().addr(), window.mapping().len());
    assert_eq!(seen.len() as u64, longest.get());
    assert!(seen.windows(2).all(|two| two[0] + 1 == two[1]));
    window.mapping().write(Bytes::new(5), b"here");
    let mut there = [0; 4];
    window.piece().read(Bytes::new(5), &mut there);
    assert_eq!(&there, b"here", "the same bytes in both mappings");
    assert!(matches!(
        pool.map(bytes(longest)).map(drop),
        Err(Error::NotContiguous { .. }) | Ok(())
    ));
    drop(window);
    assert_eq!(bytes(pool.free().unwrap()), pool.contig().len());
}

#[test]
fn a_run_that_is_long_enough_and_not_aligned_is_told_apart() {
    let Some(pool) = pool(Bytes::mib(4), Bytes::mib(64)) else { return };
    if pool.0.size.bytes() != Bytes::mib(2)
        || bytes(pool.largest_free_run().unwrap()) != pool.contig().len()
    {
        println!("skipped: not one run of two huge pages");
        return;
    }
    // All but the first and the last page is free: no huge page is.
    let page = page_size().bytes();
    let first = pool.take(page).unwrap();
    let middle = pool.take(pool.contig().len() - page - page).unwrap();
    let last = pool.take(page).unwrap();
    let longest = middle.len();
    drop(middle);
    let huge = Bytes::mib(2);
    let refused = pool.map(huge).map(drop).unwrap_err();
    let is_told = matches!(refused, Error::NotAligned { wanted, align, longest: l }
        if wanted == huge && align == huge && l == longest);
    assert!(is_told, "{refused}");
    drop(last);
    assert!(pool.map(huge).is_ok());
    let refused = pool.map(pool.contig().len()).map(drop).unwrap_err();
    assert!(matches!(refused, Error::NotContiguous { .. }), "{refused}");
    drop(first);
}

#[test]
fn the_talks_request_leaves_the_spare_to_others() {
    let Some(pool) = pool(Bytes::mib(8), Bytes::ZERO) else { return };
    let talk = Bytes::new(3072 << 10);
    let piece = match pool.take(talk) {
        Ok(piece) => piece,
        Err(error @ Error::NotContiguous { .. }) => {
            println!("skipped: {error}");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    assert_eq!((piece.len(), bytes(pool.free().unwrap())), (talk, pool.contig().len() - talk));
    let seen = frames(piece.addr(), piece.len());
    assert!(seen.windows(2).all(|two| two[0] + 1 == two[1]));
    let place = pool.contig().query(piece.addr()).unwrap();
    assert_eq!(place.pfn.unwrap().get(), seen[0]);
    assert!(place.contiguous >= talk);
    piece.write(talk - Bytes::new(1), &[1]);
    piece.zero();
    let mut last = [1];
    piece.read(talk - Bytes::new(1), &mut last);
    assert_eq!(last, [0]);
    let spare = pool.take(Bytes::mib(1)).unwrap();
    assert!(spare.addr() % Bytes::mib(1).as_usize() == 0);
}

#[test]
#[should_panic(expected = "bytes at")]
fn a_piece_ends_where_it_ends() {
    let pool = pool(Bytes::mib(2), Bytes::ZERO).expect("4096 bytes at nothing: skipped");
    let piece = pool.take(Bytes::new(1)).unwrap();
    piece.write(piece.len(), &[1]);
}

#[test]
fn bad_requests_are_refused() {
    let Some(pool) = pool(Bytes::mib(4), Bytes::ZERO) else { return };
    assert!(matches!(pool.take(Bytes::ZERO), Err(Error::ZeroLength)));
    for len in [Bytes::mib(5), Bytes::new(u64::MAX)] {
        assert!(matches!(pool.take(len), Err(Error::NotContiguous { .. })));
        assert!(matches!(pool.map(len), Err(Error::NotContiguous { .. })));
    }
    let plain = Contig::options().source(Source::Plain);
    let plain = StandingPool::options().memory(plain).build(Bytes::mib(2));
    assert!(matches!(plain, Err(Error::NotHugetlb { asked: Source::Plain })), "{plain:?}");
}

#[test]
fn a_child_has_no_pool() {
    let Some(pool) = pool(Bytes::mib(4), Bytes::ZERO) else { return };
    let mut piece = Some(pool.take(Bytes::mib(1)).unwrap());
    let held = lock(&pool.0.state);
    // SAFETY: the child calls what is tested and leaves by _exit.
    #[allow(unsafe_code)]
    let refused = unsafe {
        crate::sys::child::in_child(|| {
            drop(piece.take()); // does not wait for the lock that its parent holds
            pool.take(Bytes::new(1)).is_err() && pool.largest_free_run().is_err()
        })
    };
    assert!(refused);
    drop(held);
    assert_eq!(bytes(pool.free().unwrap()), pool.contig().len() - Bytes::mib(1));
}
