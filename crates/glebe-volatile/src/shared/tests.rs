//! Calls on a shared file in one process.

mod oracle;

use std::ops::Range;
use std::os::fd::AsFd;

use super::*;
use crate::{Error, Priority, Purged};
use glebe_os::extent::Extent;
use glebe_os::internal::sync::Ordering;
use glebe_os::internal::sys::page_size;
use glebe_os::units::{Bytes, Pages};

const GRANULES: u64 = 16;

fn page() -> Bytes {
    page_size().bytes()
}

fn at(granule: u64) -> Bytes {
    Pages::new(granule).bytes(page_size())
}

fn range(start: u64, len: u64) -> Range<Bytes> {
    at(start)..at(start + len)
}

fn made() -> Shared {
    Shared::options().create(at(GRANULES)).unwrap()
}

fn again(shared: &Shared) -> Shared {
    Shared::options().adopt(shared.fd().try_clone_to_owned().unwrap()).unwrap()
}

fn purger(shared: &Shared) -> Purger {
    Purger::adopt(shared.fd().try_clone_to_owned().unwrap()).unwrap()
}

fn runs(purged: &Purged) -> Vec<(u64, u64)> {
    purged.runs().iter().map(|run| (run.start(), run.len())).collect()
}

fn fill(shared: &Shared, granules: Range<u64>, byte: u8) {
    let pin = shared.pin(at(granules.start)..at(granules.end)).unwrap();
    pin.write(Bytes::ZERO, &vec![byte; pin.len().as_usize()]).unwrap();
}

fn first_byte(shared: &Shared, granule: u64) -> u8 {
    let mut byte = [0xEE];
    shared.pin(range(granule, 1)).unwrap().read(Bytes::ZERO, &mut byte).unwrap();
    byte[0]
}

fn mark(shared: &Shared, granules: Range<u64>, priority: u8, order: Order) {
    let priority = Priority::new(priority).unwrap();
    shared.mark(at(granules.start)..at(granules.end), priority, order).unwrap();
}

#[test]
fn a_purge_takes_what_the_order_says_and_no_more() {
    let shared = made();
    fill(&shared, 0..10, 1);
    mark(&shared, 0..2, 4, Order::Fifo);
    mark(&shared, 2..4, 4, Order::Fifo);
    mark(&shared, 4..6, 1, Order::Fifo);
    mark(&shared, 6..7, 4, Order::Lifo);
    mark(&shared, 7..8, 4, Order::Lifo);
    mark(&shared, 8..9, 7, Order::Fifo);
    let look = purger(&shared).look().unwrap();
    assert_eq!(look.marked_bytes[1], at(2));
    assert_eq!((look.marked_bytes[4], look.marked_bytes[7]), (at(6), at(1)));
    assert!(look.oldest[4] < look.oldest[7] && look.oldest[0].is_none());
    let taken = |target: u64, up_to| {
        let freed = shared.purge(Bytes::new(target), Priority::new(up_to).unwrap()).unwrap();
        let lost = runs(&shared.unmark(range(0, GRANULES)).unwrap());
        mark(&shared, 0..GRANULES, 0, Order::Fifo);
        (freed, lost)
    };
    assert_eq!(taken(at(3).get() - 1, 6), (at(3), vec![(4, 2), (7, 1)]));
    fill(&shared, 4..5, 2);
    assert_eq!(taken(1, 0), (at(1), vec![(0, 1)]));
    assert_eq!(taken(u64::MAX, 7), (at(7), vec![(1, 4), (6, 1), (8, 2)]));
    assert_eq!(taken(u64::MAX, 7), (Bytes::ZERO, vec![]));
}

#[test]
fn a_pin_keeps_and_tells_until_it_is_restored() {
    let (shared, other) = {
        let shared = made();
        let other = again(&shared);
        (shared, other)
    };
    fill(&shared, 0..8, 1);
    mark(&shared, 0..8, 4, Order::Fifo);
    let kept = other.pin(range(2, 2)).unwrap();
    assert_eq!(shared.purge(at(8), Priority::HIGHEST).unwrap(), at(6));
    assert_eq!((first_byte(&shared, 2), first_byte(&shared, 0)), (1, 0));
    let pin = other.pin(range(0, 4)).unwrap();
    assert_eq!(runs(pin.lost()), [(0, 2)]);
    assert!(kept.lost().is_empty());
    drop(pin);
    let pin = shared.pin(range(1, 3)).unwrap();
    assert_eq!(runs(pin.lost()), [(1, 1)]);
    pin.restored().unwrap();
    drop((pin, kept));
    assert_eq!(runs(shared.pin(range(0, 8)).unwrap().lost()), [(0, 1), (4, 4)]);
    assert_eq!(runs(&other.unmark(range(0, 8)).unwrap()), [(0, 1), (4, 4)]);
    assert_eq!(runs(&shared.unmark(range(0, 8)).unwrap()), []);
}

#[test]
fn what_was_restored_is_young_and_marks_are_not_renewed() {
    let shared = made();
    fill(&shared, 0..3, 1);
    for granule in 0..3 {
        mark(&shared, granule..granule + 1, 4, Order::Fifo);
    }
    mark(&shared, 0..3, 0, Order::Lifo);
    assert_eq!(shared.purge(at(1), Priority::HIGHEST).unwrap(), at(1));
    let pin = shared.pin(range(0, 1)).unwrap();
    assert_eq!(runs(pin.lost()), [(0, 1)]);
    pin.restored().unwrap();
    drop(pin);
    assert_eq!(shared.purge(at(2), Priority::HIGHEST).unwrap(), at(2));
    assert_eq!(runs(&shared.unmark(range(0, 3)).unwrap()), [(1, 2)]);
}

#[test]
fn what_was_written_without_a_pin_is_found_by_the_mark() {
    let shared = made();
    // SAFETY: the byte is in this test's own file.
    #[allow(unsafe_code)]
    unsafe {
        shared.as_ptr().add(at(5).as_usize() + 7).write_volatile(1);
    }
    mark(&shared, 4..7, 4, Order::Fifo);
    assert_eq!(purger(&shared).look().unwrap().marked_bytes[4], at(1));
    assert_eq!(shared.drop_now(range(0, GRANULES)).unwrap(), Pages::new(1));
    assert_eq!(runs(&shared.unmark(range(0, GRANULES)).unwrap()), [(5, 1)]);
}

#[test]
fn volatility_ends_with_the_last_user_and_losses_are_still_told() {
    let shared = made();
    let (file, purger) = (shared.fd().as_fd().try_clone_to_owned().unwrap(), purger(&shared));
    fill(&shared, 0..4, 1);
    mark(&shared, 0..4, 4, Order::Fifo);
    let other = again(&shared);
    assert_eq!(purger.purge(at(1), Priority::HIGHEST).unwrap(), at(1));
    drop(shared);
    assert_eq!(purger.purge(at(1), Priority::HIGHEST).unwrap(), at(1), "one is left");
    std::mem::forget(other.pin(range(3, 1)).unwrap());
    assert_eq!(purger.look().unwrap().holders.len(), 1);
    assert_eq!(purger.look().unwrap().holders[0].pinned, at(1));
    drop(other);
    assert_eq!(purger.look().unwrap().holders, []);
    assert_eq!(purger.purge(at(4), Priority::HIGHEST).unwrap(), Bytes::ZERO);
    let next = Shared::options().adopt(file).unwrap();
    assert_eq!(next.purge(at(4), Priority::HIGHEST).unwrap(), Bytes::ZERO);
    let stats = next.stats();
    assert_eq!((stats.marked, stats.lost, stats.pinned), (Pages::ZERO, Pages::new(2), Pages::ZERO));
    assert_eq!(runs(&next.unmark(range(0, 4)).unwrap()), [(0, 2)]);
    mark(&next, 0..4, 4, Order::Fifo);
    assert_eq!(next.purge(at(4), Priority::HIGHEST).unwrap(), at(2));
}

#[test]
fn ranges_and_pins_have_limits() {
    let shared = Shared::options().pin_quota(at(2)).holders(2).create(at(GRANULES)).unwrap();
    let half = Bytes::new(page().get() / 2);
    for (bad, what) in [
        (half..at(1), "multiple"),
        (at(0)..half, "multiple"),
        (at(1)..at(1), "no bytes"),
        (at(2)..at(1), "no bytes"),
        (at(1)..at(GRANULES + 1), "limit"),
        (at(0)..Bytes::new(!(page().get() - 1)), "limit"),
    ] {
        let results = [
            shared.mark(bad.clone(), Priority::NORMAL, Order::Fifo).unwrap_err(),
            shared.unmark(bad.clone()).map(drop).unwrap_err(),
            shared.pin(bad.clone()).map(drop).unwrap_err(),
            shared.drop_now(bad.clone()).map(drop).unwrap_err(),
        ];
        results.iter().for_each(|error| assert!(error.to_string().contains(what), "{error}"));
    }
    let pin = shared.pin(range(0, 2)).unwrap();
    let again_pinned = shared.pin(range(0, 2)).unwrap();
    let refused = shared.pin(range(1, 2)).unwrap_err();
    assert!(matches!(refused, Error::Quota { pinned: 2, quota: 2 }), "{refused}");
    drop((pin, again_pinned));
    assert_eq!(shared.stats().pinned, Pages::ZERO, "what was refused is pinned");
    let pin = shared.pin(range(1, 2)).unwrap();
    for (offset, len) in [(at(2), 1), (at(1), page().as_usize() + 1), (Bytes::new(u64::MAX), 1)] {
        let error = pin.read(offset, &mut vec![0; len]).unwrap_err();
        assert!(matches!(error, Error::Beyond { .. }), "{error}");
        assert!(pin.write(offset, &vec![0; len]).is_err());
    }
    let other = again(&shared);
    let third = Shared::options().adopt(shared.fd().try_clone_to_owned().unwrap()).unwrap_err();
    assert!(matches!(third, Error::NoHolderLeft { holders: 2 }), "{third}");
    drop(other);
    drop(again(&shared));
}

#[test]
fn a_refused_pin_takes_no_charge_of_another_pin() {
    const ROUNDS: usize = 100_000;
    let shared = Shared::options().pin_quota(at(1)).create(at(GRANULES)).unwrap();
    let first = shared.pin(range(0, 1)).unwrap();
    let pins = || (0..ROUNDS).for_each(|_| drop(shared.pin(range(1, 1))));
    std::thread::scope(|scope| {
        scope.spawn(pins);
        pins();
    });
    let refused = shared.pin(range(1, 1)).map(drop);
    assert!(matches!(refused, Err(Error::Quota { pinned: 1, quota: 1 })), "{refused:?}");
    drop(first);
    assert!(shared.pin(range(1, 1)).is_ok(), "a charge that no pin has");
}

#[test]
fn a_granule_takes_no_more_pins_than_are_counted() {
    let shared = made();
    let max = protocol::PINS_MAX;
    let pins: Vec<_> = (0..max).map(|_| shared.pin(range(3, 1)).unwrap()).collect();
    let error = shared.pin(range(2, 2)).unwrap_err();
    assert!(matches!(error, Error::PinsExhausted { limit, .. } if limit == max), "{error}");
    fill(&shared, 2..3, 1);
    mark(&shared, 0..GRANULES, 4, Order::Fifo);
    assert_eq!(shared.purge(at(GRANULES), Priority::HIGHEST).unwrap(), at(1));
    drop(pins);
    assert_eq!(shared.purge(at(GRANULES), Priority::HIGHEST).unwrap(), at(1));
}

#[test]
fn two_purgers_exclude_each_other() {
    let shared = made();
    let lock = purge::try_lock(shared.ledger()).unwrap().unwrap();
    let refused = shared.purge(at(1), Priority::HIGHEST).unwrap_err();
    assert!(matches!(refused, Error::Busy { .. }), "{refused}");
    assert!(purger(&shared).purge(at(1), Priority::HIGHEST).is_err());
    drop(lock);
    shared.purge(at(1), Priority::HIGHEST).unwrap();
}

#[test]
fn what_a_killed_purger_left_is_finished_by_whoever_meets_it() {
    for is_doomed in [false, true] {
        for meet in 0..5 {
            let shared = made();
            fill(&shared, 0..4, 1);
            mark(&shared, 0..4, 4, Order::Fifo);
            let word = shared.ledger().word(1);
            let seen = word::Word(word.load(Ordering::SeqCst));
            assert!(protocol::claim(shared.ledger(), 1, seen));
            if is_doomed {
                word.store(seen.claimed().doomed().0, Ordering::SeqCst);
            }
            let pin = match meet {
                0 => Some(shared.pin(range(0, 4)).unwrap()),
                1 => {
                    assert_eq!(runs(&shared.unmark(range(0, 4)).unwrap()), [(1, 1)]);
                    continue;
                }
                2 => {
                    mark(&shared, 0..GRANULES, 4, Order::Fifo);
                    None
                }
                3 => {
                    assert_eq!(shared.purge(at(1), Priority::LOWEST).unwrap(), Bytes::ZERO);
                    None
                }
                _ => {
                    let file = shared.fd().try_clone_to_owned().unwrap();
                    drop(shared);
                    let next = Shared::options().adopt(file).unwrap();
                    assert_eq!(runs(&next.unmark(range(0, 4)).unwrap()), [(1, 1)]);
                    continue;
                }
            };
            drop(pin);
            let pin = shared.pin(range(0, 4)).unwrap();
            assert_eq!(runs(pin.lost()), [(1, 1)], "{is_doomed} {meet}");
            drop(pin);
            assert_eq!([0, 1, 2].map(|granule| first_byte(&shared, granule)), [1, 0, 1]);
        }
    }
}

#[test]
fn a_purger_that_lives_and_stands_still_is_waited_for_and_told() {
    let shared = made();
    fill(&shared, 0..2, 1);
    mark(&shared, 0..2, 4, Order::Fifo);
    let lock = purge::try_lock(shared.ledger()).unwrap().unwrap();
    let word = word::Word(shared.ledger().word(1).load(Ordering::SeqCst));
    assert!(protocol::claim(shared.ledger(), 1, word));
    let error = shared.pin(range(0, 2)).unwrap_err();
    assert!(matches!(error, Error::PurgeUnderWay { offset, .. } if offset == at(1)), "{error}");
    assert!(shared.unmark(range(1, 1)).is_err());
    drop(lock);
    assert_eq!(shared.stats().pinned, Pages::ZERO);
    assert_eq!(runs(shared.pin(range(0, 2)).unwrap().lost()), [(1, 1)]);
}

#[test]
fn numbers_say_how_the_file_stands() {
    let shared = made();
    fill(&shared, 0..4, 1);
    mark(&shared, 1..6, 3, Order::Fifo);
    assert_eq!(shared.purge(at(2), Priority::HIGHEST).unwrap(), at(2));
    let _pin = shared.pin(range(8, 2)).unwrap();
    let stats = shared.stats();
    let pages = [stats.total, stats.marked, stats.present, stats.lost, stats.pinned];
    assert_eq!(pages.map(Pages::get), [GRANULES, 5, 4, 2, 2]);
    assert_eq!((stats.by_priority[3], stats.freed, stats.marked_ever), (at(5), 2, 5));
    let text = stats.to_openmetrics();
    for line in [
        format!("glebe_shared_marked_bytes {}\n", at(5).get()),
        format!("glebe_shared_marked_by_priority_bytes{{priority=\"3\"}} {}\n", at(5).get()),
        "glebe_shared_pins_total 2\n".to_owned(),
    ] {
        assert!(text.contains(&line), "{line} is not in:\n{text}");
    }
    assert!(text.ends_with("# EOF\n") && text.matches("# EOF").count() == 1);
    assert!(stats.to_json().contains("\"lost_pages\": 2"), "{}", stats.to_json());
    assert!(stats.to_string().contains("marked"));
}

/// Without the fence, SEEK_DATA would search on through allocated but untouched granules, which the
/// kernel takes for holes.
#[test]
fn a_search_for_state_ends_before_the_data() {
    let shared = Shared::options().holders(1).create(at(GRANULES)).unwrap();
    drop(shared.pin(range(0, GRANULES)).unwrap());
    let (ledger, layout) = (shared.ledger(), shared.ledger().layout());
    let (tables, fence) = (layout.table(0).0, layout.fence());
    let total = layout.total;
    let next = |from| ledger.file().next_data(from, total).unwrap();
    assert_eq!(next(tables), Some((tables, fence + layout.page)));
    assert_eq!(next(fence), Some((fence, fence + layout.page)));
    assert_eq!(next(layout.data_at), None);
}

#[test]
fn untouched_state_takes_no_memory() {
    let shared = Shared::options().create(Bytes::gib(64)).unwrap();
    fill(&shared, 0..1, 1);
    mark(&shared, 1 << 20..(1 << 20) + 1, 4, Order::Fifo);
    assert_eq!(shared.purge(Bytes::gib(64), Priority::HIGHEST).unwrap(), Bytes::ZERO);
    let _ = shared.stats();
    let extents = shared.ledger().noted().unwrap();
    let words: u64 = extents.iter().map(|run| run.len()).sum();
    assert_eq!(words, 2 * page().get() / 8);
    assert_eq!(extents.first().map(|run| run.start()), Some(0));
    let _: &[Extent] = &extents;
}
