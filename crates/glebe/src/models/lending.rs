//! Models lending, recall and the page index. A granule has two pages. A page has two words and a
//! one-word key.

mod order;

use std::ops::Range;
use std::sync::Arc;

use loom::thread;

use super::{explore, explore_large, explore_orders};
use crate::models::hardware::frames::{Frames, PAGE_BYTES, WORDS};
use crate::reserve::access::{run_on, Critical, Fault};
use crate::reserve::index::{Held, Index};
use crate::reserve::lent::{Claim, Lent, NoClaim, NotFilled};
use crate::reserve::table::Tables;
use crate::reserve::words::PageUse;
use glebe_os::internal::sync::Ordering;

const GRANULE_PAGES: usize = 2;
const POISON: u64 = 0xdead;

fn lent(granules: usize, critical: Critical) -> Arc<Lent> {
    let pages = granules * GRANULE_PAGES;
    let (frames, shift) = (Frames::new(pages), GRANULE_PAGES.ilog2());
    Arc::new(Lent::new(&mut Tables, frames, (pages, pages), shift, critical).expect("model memory"))
}

fn words_of(key: u64) -> [u64; WORDS] {
    [key, key + 100]
}

fn bytes_of(words: [u64; WORDS]) -> [u8; PAGE_BYTES] {
    let mut bytes = [0; PAGE_BYTES];
    for (to, word) in bytes.chunks_exact_mut(size_of::<u64>()).zip(words) {
        to.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Put {
    Stored,
    Recalled,
    Refused,
}

fn claim(lent: &Lent, page: usize) -> Result<Claim, NoClaim> {
    lent.claim(page, lent.holds(page).map(|(word, _, _)| word))
}

fn put(lent: &Lent, page: usize, key: u64) -> (Put, u64) {
    match claim(lent, page) {
        Ok(claim) => fill(lent, claim, key),
        Err(NoClaim::Recalled) => (Put::Recalled, 1),
        Err(NoClaim::Taken) => (Put::Refused, 0),
    }
}

fn fill(lent: &Lent, claim: Claim, key: u64) -> (Put, u64) {
    let added = u64::from(!claim.evicted);
    match lent.fill(claim, [key], &bytes_of(words_of(key))) {
        Ok(_) => (Put::Stored, added),
        Err(NotFilled::Recalled) => (Put::Recalled, added),
        Err(NotFilled::Interrupted) => panic!("no model interrupts so often"),
    }
}

fn hit(lent: &Lent, page: usize, key: u64) -> bool {
    let mut buf = [0; PAGE_BYTES];
    let at = lent.holds(page).map(|(word, _, _)| word.use_of(page));
    let hit = at.is_some_and(|at| lent.read(at, &[key], &mut buf));
    assert!(!hit || buf == bytes_of(words_of(key)), "a hit of other bytes: {buf:?}");
    hit
}

fn hit_in_parts(lent: &Lent, page: usize, key: u64) -> bool {
    const PART: usize = size_of::<u64>();
    let mut buf = [0; PAGE_BYTES];
    let at = lent.holds(page).map(|(word, _, _)| word.use_of(page));
    let mut read = |at, nth: usize| {
        let part = nth * PART..(nth + 1) * PART;
        lent.read_part(at, &[key], part.start, &mut buf[part])
    };
    let hit = at.is_some_and(|at| (0..WORDS).all(|nth| read(at, nth)));
    assert!(!hit || buf == bytes_of(words_of(key)), "a hit of other bytes: {buf:?}");
    hit
}

fn poison(lent: &Lent, run: &Range<usize>) {
    for page in run.clone() {
        lent.frames().at(page).iter().for_each(|word| word.store(POISON, Ordering::Relaxed));
    }
}

fn assert_all(lent: &Lent, run: &Range<usize>, word: u64) {
    for page in run.clone() {
        for at in lent.frames().at(page) {
            assert_eq!(at.load(Ordering::Relaxed), word, "a stray store in page {page}");
        }
    }
}

fn settled(lent: &Lent) -> u64 {
    let mut all = 0;
    for granule in 0..lent.granules() {
        let word = lent.granule(granule);
        assert_eq!((word.held(), word.closers(), word.writers()), (0, 0, 0), "{word:?}");
        let pages = granule * GRANULE_PAGES..(granule + 1) * GRANULE_PAGES;
        let valid = pages.filter(|page| lent.holds(*page).is_some()).count() as u64;
        assert_eq!(word.live(), valid, "{word:?}");
        all += valid;
    }
    all
}

fn assert_usable(lent: &Lent) {
    for page in 0..lent.pages() {
        assert_eq!(put(lent, page, 9).0, Put::Stored, "page {page}");
        assert!(hit(lent, page, 9));
    }
}

fn own(lent: &Lent, run: &Range<usize>, zeroed: bool, others: impl FnOnce()) -> u64 {
    let recalled = lent.recall(run, zeroed, true).expect("waits");
    if zeroed {
        assert_all(lent, run, 0);
    }
    poison(lent, run);
    others();
    assert_all(lent, run, POISON);
    lent.give_back(run);
    recalled.pages
}

#[derive(Clone)]
struct Case {
    run: Range<usize>,
    before: &'static [usize],
    page: usize,
    zeroed: bool,
}

fn put_against_block(critical: Critical, case: &Case) {
    let lent = lent(1, critical);
    let mut added = 0;
    for page in case.before {
        added += put(&lent, *page, 1).1;
    }
    let writer = {
        let (lent, page) = (Arc::clone(&lent), case.page);
        thread::spawn(move || put(&lent, page, 2))
    };
    let mut end = (Put::Refused, 0);
    let recalled = own(&lent, &case.run, case.zeroed, || end = writer.join().unwrap());
    added += end.1;
    for page in case.before.iter().filter(|page| !case.run.contains(page)) {
        let key = if *page == case.page && end.0 == Put::Stored { 2 } else { 1 };
        let interrupted = *page == case.page && end.0 == Put::Recalled;
        assert_eq!(hit(&lent, *page, key), !interrupted, "{end:?}");
    }
    let valid = settled(&lent);
    assert_eq!(added, recalled + valid, "{end:?}, {recalled} recalled");
    assert_usable(&lent);
}

fn explore_put_against_block(preemptions: impl Into<Option<usize>>, fault: Fault, case: Case) {
    explore(preemptions, move || put_against_block(Critical::restartable(1, fault), &case));
}

const WHOLE: Range<usize> = 0..2;
const EDGE: Range<usize> = 0..1;

#[test]
fn whole_granule_is_the_owners_alone() {
    let case = Case { run: WHOLE, before: &[1], page: 0, zeroed: true };
    explore_put_against_block(None, Fault::None, case);
}

#[test]
fn whole_granule_with_an_eviction_under_way() {
    let case = Case { run: WHOLE, before: &[0], page: 0, zeroed: false };
    explore_put_against_block(None, Fault::None, case);
}

#[test]
#[should_panic(expected = "a stray store")]
fn whole_granule_needs_the_barrier() {
    let case = Case { run: WHOLE, before: &[], page: 0, zeroed: false };
    explore_put_against_block(None, Fault::Barrier, case);
}

#[test]
fn edge_is_the_owners_alone() {
    let case = Case { run: EDGE, before: &[1], page: 0, zeroed: true };
    explore_put_against_block(4, Fault::None, case);
}

#[test]
fn edge_with_an_eviction_under_way() {
    let case = Case { run: EDGE, before: &[0, 1], page: 0, zeroed: false };
    explore_put_against_block(4, Fault::None, case);
}

#[test]
fn edge_spares_its_neighbour() {
    let case = Case { run: EDGE, before: &[0], page: 1, zeroed: false };
    explore_put_against_block(None, Fault::None, case);
}

#[test]
#[should_panic(expected = "a stray store")]
fn edge_needs_the_barrier() {
    let case = Case { run: EDGE, before: &[], page: 0, zeroed: false };
    explore_put_against_block(None, Fault::Barrier, case);
}

#[test]
#[should_panic(expected = "a stray store")]
fn edge_needs_the_test_of_the_page_word() {
    let case = Case { run: EDGE, before: &[], page: 0, zeroed: false };
    explore_put_against_block(None, Fault::Reload, case);
}

#[test]
#[should_panic(expected = "a stray store")]
fn edge_needs_the_closers_in_the_guard() {
    let case = Case { run: EDGE, before: &[], page: 0, zeroed: false };
    explore_put_against_block(None, Fault::Closers, case);
}

#[test]
#[should_panic(expected = "a stray store")]
fn whole_granule_needs_the_closers_in_the_guard() {
    let case = Case { run: WHOLE, before: &[], page: 0, zeroed: false };
    explore_put_against_block(None, Fault::Closers, case);
}

fn memory_goes_under_a_put(fault: Fault) {
    let lent = lent(1, Critical::restartable(1, fault));
    let writer = {
        let lent = Arc::clone(&lent);
        thread::spawn(move || put(&lent, 0, 2))
    };
    let recalled = lent.recall(&WHOLE, false, true).expect("waits").pages;
    poison(&lent, &WHOLE); // other memory may be there from now on
    lent.depart(0..1);
    let (end, added) = writer.join().unwrap();
    assert_all(&lent, &WHOLE, POISON);
    assert!(lent.holds(0).is_none(), "{end:?} where there is no memory");
    assert!(claim(&lent, 1).is_err() && lent.granule(0).is_absent());
    lent.arrive(0..1);
    assert_eq!(added, recalled + settled(&lent));
    assert_usable(&lent);
}

#[test]
fn memory_that_goes_is_stored_to_by_nobody() {
    explore(None, || memory_goes_under_a_put(Fault::None));
}

#[test]
#[should_panic(expected = "a stray store")]
fn memory_that_goes_needs_the_barrier() {
    explore(None, || memory_goes_under_a_put(Fault::Barrier));
}

#[test]
fn who_reads_while_memory_goes_and_other_memory_comes_finds_nothing_of_it() {
    explore(3, || {
        let lent = lent(1, Critical::restartable(1, Fault::None));
        assert_eq!(put(&lent, 0, 1).0, Put::Stored);
        let reader = {
            let lent = Arc::clone(&lent);
            thread::spawn(move || hit(&lent, 0, 1))
        };
        lent.recall(&WHOLE, false, true).expect("waits");
        poison(&lent, &WHOLE);
        lent.depart(0..1);
        lent.arrive(0..1);
        reader.join().unwrap(); // `hit` checks the words
        assert!(!hit(&lent, 0, 1));
    });
}

fn puts_around_a_block(fault: Fault) {
    let lent = lent(1, Critical::restartable(2, fault));
    let early = {
        let lent = Arc::clone(&lent);
        thread::spawn(move || put(&lent, 0, 1))
    };
    run_on(1);
    let recalled = lent.recall(&WHOLE, false, true).expect("waits").pages;
    lent.give_back(&WHOLE);
    let late = put(&lent, 0, 2);
    hit(&lent, 0, 2);
    let early = early.join().unwrap();
    let valid = settled(&lent);
    assert_eq!(early.1 + late.1, recalled + valid, "{early:?}, {late:?}");
    assert_usable(&lent);
}

#[test]
fn put_does_not_outlive_the_epoch_of_its_claim() {
    explore(3, || puts_around_a_block(Fault::None));
}

#[test]
#[should_panic(expected = "live: 1")]
fn guard_needs_the_epoch() {
    explore(2, || puts_around_a_block(Fault::Epoch));
}

#[test]
fn barrier_for_another_granule_only_repeats_the_fill() {
    explore(None, || {
        let lent = lent(2, Critical::restartable(1, Fault::None));
        let writer = {
            let lent = Arc::clone(&lent);
            thread::spawn(move || put(&lent, 0, 1))
        };
        let run = 2..4;
        own(&lent, &run, false, || assert_eq!(writer.join().unwrap(), (Put::Stored, 1)));
        assert!(hit(&lent, 0, 1));
        assert_eq!(settled(&lent), 1);
    });
}

#[test]
fn small_run_meets_a_writer_in_its_second_granule() {
    explore(4, || {
        let lent = lent(2, Critical::restartable(1, Fault::None));
        let mut added = put(&lent, 0, 1).1 + put(&lent, 1, 1).1;
        let writer = {
            let lent = Arc::clone(&lent);
            thread::spawn(move || put(&lent, 2, 2).1)
        };
        let recalled = own(&lent, &(1..3), true, || added += writer.join().unwrap());
        assert!(hit(&lent, 0, 1));
        assert_eq!(added, recalled + settled(&lent));
        assert_usable(&lent);
    });
}

#[test]
fn run_over_three_granules_takes_edges_and_middle() {
    explore(3, || {
        let lent = lent(3, Critical::restartable(1, Fault::None));
        let mut added = put(&lent, 0, 1).1 + put(&lent, 1, 1).1;
        let writer = {
            let lent = Arc::clone(&lent);
            thread::spawn(move || put(&lent, 4, 2).1 + put(&lent, 2, 2).1)
        };
        let recalled = own(&lent, &(1..5), false, || added += writer.join().unwrap());
        assert!(hit(&lent, 0, 1));
        assert_eq!(added, recalled + settled(&lent));
        assert_usable(&lent);
    });
}

fn puts_under_way(blocks: usize) {
    let lent = lent(1, Critical::restartable(1, Fault::None));
    let claims = [0, 1].map(|page| claim(&lent, page).expect("free"));
    let tenant = {
        let lent = Arc::clone(&lent);
        thread::spawn(move || claims.map(|claim| fill(&lent, claim, 1)))
    };
    let other = (blocks > 1).then(|| {
        let lent = Arc::clone(&lent);
        thread::spawn(move || own(&lent, &(1..2), false, || ()))
    });
    let mut ends = [(Put::Refused, 0); 2];
    let mut recalled = own(&lent, &EDGE, false, || ends = tenant.join().unwrap());
    if let Some(other) = other {
        recalled += other.join().unwrap();
    } else {
        assert_eq!(hit(&lent, 1, 1), ends[1].0 == Put::Stored);
    }
    assert_eq!(recalled + settled(&lent), 2, "{ends:?}");
    assert_usable(&lent);
}

#[test]
fn edge_revokes_a_put_beside_it() {
    explore(4, || puts_under_way(1));
}

#[test]
fn two_blocks_share_a_granule() {
    explore_large(2, || puts_under_way(2));
}

fn read_against(critical: Critical, run: Range<usize>, zeroed: bool) {
    read_by(hit, critical, run, zeroed);
}

fn read_by(
    hit: fn(&Lent, usize, u64) -> bool,
    critical: Critical,
    run: Range<usize>,
    zeroed: bool,
) {
    let lent = lent(1, critical);
    put(&lent, 0, 1);
    let reader = {
        let lent = Arc::clone(&lent);
        thread::spawn(move || hit(&lent, 0, 1) && hit(&lent, 0, 2))
    };
    if !zeroed {
        put(&lent, 0, 2);
    }
    let recalled = own(&lent, &run, zeroed, || ());
    assert_eq!(recalled, 1);
    reader.join().unwrap();
    assert_eq!(settled(&lent), 0);
}

#[test]
fn hit_is_one_version_while_a_granule_is_taken() {
    for zeroed in [false, true] {
        explore(3, move || read_against(Critical::restartable(1, Fault::None), WHOLE, zeroed));
    }
}

#[test]
fn hit_is_one_version_while_an_edge_is_taken() {
    for zeroed in [false, true] {
        explore(3, move || read_against(Critical::restartable(1, Fault::None), EDGE, zeroed));
    }
}

#[test]
fn hit_is_one_version_where_writers_are_counted() {
    for zeroed in [false, true] {
        explore(3, move || read_against(Critical::counted(Fault::None), EDGE, zeroed));
    }
}

#[test]
fn hit_in_parts_is_one_version() {
    for run in [WHOLE, EDGE] {
        explore(2, move || {
            let critical = Critical::restartable(1, Fault::None);
            read_by(hit_in_parts, critical, run.clone(), false);
        });
    }
}

#[test]
fn page_is_dropped_once() {
    explore(None, || {
        let lent = lent(1, Critical::restartable(1, Fault::None));
        put(&lent, 0, 1);
        let (word, seen, _) = lent.holds(0).expect("put");
        let tenant = {
            let lent = Arc::clone(&lent);
            thread::spawn(move || u64::from(lent.discard(0, word, seen)))
        };
        let mut dropped = 0;
        let recalled = own(&lent, &WHOLE, false, || dropped = tenant.join().unwrap());
        assert_eq!(recalled + dropped, 1);
        assert_eq!(settled(&lent), 0);
    });
}

#[test]
fn counted_writer_is_waited_for() {
    for run in [WHOLE, EDGE] {
        for page in [0, 1] {
            let case = Case { run: run.clone(), before: &[0], page, zeroed: true };
            explore(None, move || put_against_block(Critical::counted(Fault::None), &case));
        }
    }
}

#[test]
#[should_panic(expected = "a stray store")]
fn counted_mode_needs_the_count() {
    let case = Case { run: WHOLE, before: &[], page: 0, zeroed: false };
    explore(None, move || put_against_block(Critical::counted(Fault::Writers), &case));
}

#[test]
fn counted_writer_makes_a_caller_busy_who_will_not_wait() {
    explore(None, || {
        let lent = lent(2, Critical::counted(Fault::None));
        let writer = {
            let lent = Arc::clone(&lent);
            thread::spawn(move || put(&lent, 2, 1))
        };
        let run = 0..3;
        let mut recalled = 0;
        let taken = lent.recall(&run, false, false);
        if let Ok(taken) = &taken {
            recalled = taken.pages;
            poison(&lent, &run);
        }
        let (end, added) = writer.join().unwrap();
        if taken.is_ok() {
            assert_all(&lent, &run, POISON);
            lent.give_back(&run);
        } else {
            assert_ne!(end, Put::Recalled);
        }
        assert_eq!(added, recalled + settled(&lent));
        assert_usable(&lent);
    });
}

const HASH: u64 = 5 << 49;

fn first(page: usize) -> PageUse {
    PageUse { page, generation: 1 }
}

fn all_but(at: PageUse) -> impl Fn(PageUse) -> Held {
    move |other| if other == at { Held::Other } else { Held::Same }
}

#[test]
fn two_publishers_of_a_key_leave_one_entry() {
    explore(None, || {
        let index = Arc::new(Index::new(&mut Tables, 4).expect("model memory"));
        let publish = |index: &Index, page| {
            let published = index.publish(HASH, first(page), all_but(first(page)));
            published.expect("room").replaced
        };
        let other = {
            let index = Arc::clone(&index);
            thread::spawn(move || publish(&index, 1))
        };
        let replaced = [publish(&index, 2), other.join().unwrap()];
        let left = index.find(HASH, |_| true).expect("one entry");
        let ends = [[Some(first(1)), None], [None, Some(first(2))]];
        assert!(ends.contains(&replaced), "{replaced:?}");
        assert_eq!(left, first(if replaced[0].is_some() { 2 } else { 1 }));
        assert_eq!(index.remove(HASH, |_| true), Some(left));
        assert_eq!(index.find(HASH, |_| true), None);
    });
}

#[test]
fn entry_is_removed_once_or_replaced() {
    explore(None, || {
        let index = Arc::new(Index::new(&mut Tables, 4).expect("model memory"));
        index.publish(HASH, first(1), |_| Held::Other).expect("room");
        let other = {
            let index = Arc::clone(&index);
            thread::spawn(move || index.remove(HASH, |_| true))
        };
        let replaced = index.publish(HASH, first(2), all_but(first(2))).expect("room").replaced;
        let removed = other.join().unwrap();
        let left = index.find(HASH, |_| true);
        let (one, two) = (Some(first(1)), Some(first(2)));
        let ends = [(one, None, two), (None, one, two), (one, two, None)];
        assert!(ends.contains(&(replaced, removed, left)), "{replaced:?} {removed:?} {left:?}");
    });
}
