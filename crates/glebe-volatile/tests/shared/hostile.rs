//! Tests files with arbitrary state: every call ends without a crash.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use glebe_testing::time::{is_long, Storm};
use proptest::prelude::*;

use super::*;

const USUAL: Duration = Duration::from_millis(250);

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if is_long() { 300 } else { 150 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn calls_on_a_file_of_anything_end(program in prop::collection::vec(any::<u8>(), 0..600)) {
        program::run(&program);
    }
}

#[test]
fn calls_end_while_somebody_spoils_the_state() {
    let shared = Shared::options().holders(3).create(at(program::GRANULES)).unwrap();
    let (file, total) = program::file_of(&shared);
    let state = total - shared.len().get();
    let (storm, calls) = (Storm::begin(USUAL), AtomicU64::new(0));
    let goes_on = || storm.goes_on(|| calls.load(Ordering::Relaxed) > 10);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let noise: Vec<u8> =
                (0..997_u32).map(|at| (at.wrapping_mul(0x9e37_79b1) >> 24) as u8).collect();
            for nth in 0.. {
                if !goes_on() {
                    break;
                }
                program::spoil(&file, state, &noise, nth);
            }
        });
        for thread in 0..3 {
            let (shared, calls, goes_on) = (&shared, &calls, &goes_on);
            scope.spawn(move || {
                for nth in thread.. {
                    if !goes_on() {
                        break;
                    }
                    let range = range(nth % (program::GRANULES - 4), 1 + nth % 4);
                    match nth % 5 {
                        0 => drop(shared.pin(range).map(|pin| pin.restored())),
                        1 => drop(shared.mark(range, Priority::NORMAL, Order::Lifo)),
                        2 => drop(shared.unmark(range)),
                        3 => drop(shared.purge(at(3), Priority::HIGHEST)),
                        _ => drop(purger(shared).look()),
                    }
                    calls.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert!(calls.load(Ordering::Relaxed) > 10);
}

#[test]
fn words_of_one_kind_are_survived() {
    for byte in [0x00, 0x01, 0x04, 0x05, 0x0C, 0x0D, 0x0F, 0x55, 0xAA, 0xFF] {
        program::run(&vec![byte; 4096]);
    }
}
