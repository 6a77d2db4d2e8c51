//! A standing pool of the machine's own pages, as root; without privileges of what is free.

use super::*;
use crate::contig::Contig;
use crate::sys::pagemap::{frames_visible, Entry, Pagemap};

fn pool(len: Bytes, search: Bytes) -> Option<StandingPool> {
    if !frames_visible() {
        println!("skipped: frames are hidden");
        return None;
    }
    match StandingPool::new(Contig::options().search(search), len) {
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
    let mut all = frames(pool.0.mapping.addr(), pool.len());
    all.sort_unstable();
    let best = all.chunk_by(|a, b| *b == a + 1).map(<[u64]>::len).max().unwrap() as u64;
    if !pool.notes().iter().any(|note| note.contains("were possible")) {
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
    assert_eq!(bytes(pool.free().unwrap()), pool.len());
}

#[test]
fn a_run_that_is_long_enough_and_not_aligned_is_told_apart() {
    let Some(pool) = pool(Bytes::mib(4), Bytes::mib(64)) else { return };
    if pool.0.size.bytes() != Bytes::mib(2) || bytes(pool.largest_free_run().unwrap()) != pool.len()
    {
        println!("skipped: not one run of two huge pages");
        return;
    }
    // All but the first and the last page is free: no huge page is.
    let page = page_size().bytes();
    let first = pool.take(page).unwrap();
    let middle = pool.take(pool.len() - page - page).unwrap();
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
    let refused = pool.map(pool.len()).map(drop).unwrap_err();
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
    assert_eq!((piece.len(), bytes(pool.free().unwrap())), (talk, pool.len() - talk));
    let seen = frames(piece.addr(), piece.len());
    assert!(seen.windows(2).all(|two| two[0] + 1 == two[1]));
    let place = pool.query(piece.addr()).unwrap().unwrap();
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
    let plain = StandingPool::new(Contig::options().source(Source::Plain), Bytes::mib(2));
    assert!(matches!(plain, Err(Error::NotHugetlb { asked: Source::Plain })));
}

#[test]
fn compaction_keeps_what_is_held_and_never_shortens_the_longest_run() {
    let Some(pool) = pool(Bytes::mib(48), Bytes::ZERO) else { return };
    // Every fourth page is held, and has a byte of its own.
    let pieces: Vec<Piece> = (0..24).map(|_| pool.take(Bytes::mib(2)).unwrap()).collect();
    let held: Vec<Piece> = pieces
        .into_iter()
        .enumerate()
        .filter_map(|(n, piece)| {
            piece.write(Bytes::new(n as u64), &[n as u8 + 1]);
            (n % 12 == 5).then_some(piece)
        })
        .collect();
    let before: Vec<Vec<u64>> = held.iter().map(|p| frames(p.addr(), p.len())).collect();
    let done = pool.compact(Bytes::mib(64)).unwrap();
    println!("{done:?}");
    if done.lost > Bytes::ZERO {
        println!("skipped: somebody else drew from the pool");
        return;
    }
    assert!(done.after >= done.before, "{done:?}");
    for (piece, before) in held.iter().zip(before) {
        assert_eq!(frames(piece.addr(), piece.len()), before);
    }
    for (piece, n) in held.iter().zip([5_u8, 17]) {
        let mut byte = [0];
        piece.read(Bytes::new(n.into()), &mut byte);
        assert_eq!(byte, [n + 1]);
    }
    let longest = pool.largest_free_run().unwrap();
    let run = pool.map(bytes(longest)).unwrap();
    let seen = frames(run.mapping().addr(), run.mapping().len());
    assert!(seen.windows(2).all(|two| two[0] + 1 == two[1]));
    drop((run, held));
    assert_eq!(bytes(pool.free().unwrap()), pool.len());
}

#[test]
fn a_stretch_is_filled_by_what_is_absent_alone() {
    let Some(pool) = pool(Bytes::mib(16), Bytes::ZERO) else { return };
    let Some(hugetlb) = changeable(&pool) else { return };
    let (inner, size) = (&*pool.0, pool.page());
    let total = || hugetlb.counts().unwrap().total;
    let before = total();
    inner.file.punch(Pages::new(3).bytes(size), Pages::new(2).bytes(size)).unwrap();
    let map = Pagemap::open().unwrap();
    let filled = inner.fill(&map, Extent::new(0, 8).unwrap(), &hugetlb);
    let after = total();
    println!("{before} pages before, {after} after, {filled:?}");
    let entries = map.entries(inner.mapping.addr(), pool.len(), size).unwrap();
    assert_eq!(entries.contains(&Entry::Absent), filled.is_err());
}

/// The hugetlb pool of a standing pool, where it may be changed.
fn changeable(pool: &StandingPool) -> Option<crate::sys::hugetlb::Pool> {
    let hugetlb = crate::sys::hugetlb::Pool::of(pool.page()).filter(|pool| pool.is_writable());
    if hugetlb.is_none() {
        println!("skipped: the hugetlb pool may not be changed");
    }
    hugetlb
}

/// Lays the free pages of a pool anew, in an order that makes short runs of them.
fn scramble(
    pool: &StandingPool,
    hugetlb: &crate::sys::hugetlb::Pool,
    free: impl Fn(u64) -> bool,
) -> Result<(), OsError> {
    let (inner, huge) = (&*pool.0, pool.page().bytes());
    let count = pool.len().pages_up(pool.page()).get();
    let offset = |n: u64| Pages::new(n).bytes(pool.page());
    let lock = crate::contig::PoolLock::acquire().unwrap();
    let anew = lock.with_pages(hugetlb, 0, |_| -> Result<(), OsError> {
        for n in (0..count).filter(|n| free(*n)) {
            inner.file.punch(offset(n), huge)?;
        }
        for n in (0..count).filter(|n| n % 2 == 0).chain((0..count).filter(|n| n % 2 == 1)) {
            inner.mapping.populate(offset(n), huge)?;
        }
        Ok(())
    });
    drop(lock);
    anew?;
    let (runs, proof) = crate::contig::runs::read(&inner.mapping, pool.page()).unwrap();
    inner.state().unwrap().renew(runs, proof);
    Ok(())
}

/// The longest run that `frames` could be laid to.
fn longest_possible(mut frames: Vec<u64>) -> usize {
    frames.sort_unstable();
    frames.chunk_by(|one, next| one + 1 == *next).map(<[u64]>::len).max().unwrap_or(0)
}

#[test]
fn compaction_lengthens_the_longest_run_of_a_pool_in_pieces() {
    let Some(pool) = pool(Bytes::mib(48), Bytes::ZERO) else { return };
    let Some(hugetlb) = changeable(&pool) else { return };
    let first = pool.take(Bytes::mib(2)).unwrap();
    first.write(Bytes::ZERO, b"first");
    let at = (first.addr() - pool.0.mapping.addr()) as u64 / pool.page().bytes().get();
    if let Err(error) = scramble(&pool, &hugetlb, |n| n != at) {
        println!("skipped: somebody else drew from the pool: {error}");
        return;
    }
    let before = pool.largest_free_run().unwrap();
    let possible = || {
        let mut free = frames(pool.0.mapping.addr(), pool.len());
        let page = pool.page().bytes().pages_down(page_size()).get() as usize;
        free.drain(at as usize * page..(at as usize + 1) * page);
        longest_possible(free)
    };
    let possible_before = possible();
    let done = pool.compact(Bytes::ZERO).unwrap();
    println!("{before} free before; {done:?}");
    if done.lost > Bytes::ZERO {
        println!("skipped: somebody else drew from the pool");
        return;
    }
    // One stretch of two is no more than half of them. Others may have had some of the frames.
    if possible_before.min(possible()) < 4 * before.get() as usize {
        println!("skipped: the frames of the pool lie apart");
        return;
    }
    let after = pool.largest_free_run().unwrap();
    assert!(done.after > done.before && done.runs_after < done.runs_before, "{done:?}");
    assert!(after.get() >= 2 * before.get(), "{before} {after}");
    let mut there = [0; 5];
    first.read(Bytes::ZERO, &mut there);
    assert_eq!(&there, b"first");
    let all = frames(pool.0.mapping.addr(), pool.len());
    for run in pool.runs().unwrap() {
        assert_eq!(all[run.pages.start() as usize], run.pfn.unwrap().get());
    }
    let again = pool.compact(Bytes::ZERO).unwrap();
    assert!(again.after >= done.after);
    drop(first);
    assert_eq!(bytes(pool.free().unwrap()), pool.len());
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
    assert_eq!(bytes(pool.free().unwrap()), pool.len() - Bytes::mib(1));
}
