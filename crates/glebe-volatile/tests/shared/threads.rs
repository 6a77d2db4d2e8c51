//! Tests threads of one process on common granules.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use glebe_testing::time::{slowed, storm};
use glebe_volatile::Error;

use super::*;

const GRANULES: u64 = 8;
const USUAL: Duration = Duration::from_millis(350);
/// Time limit for `ENOUGH` freed granules on a busy machine.
const GRACE: Duration = Duration::from_secs(30);
const ENOUGH: u64 = 100;

#[test]
fn what_threads_have_pinned_is_whole() {
    let shared = filled(GRANULES);
    let (begin, freed, rebuilt) = (Instant::now(), AtomicU64::new(0), AtomicU64::new(0));
    let failed = AtomicBool::new(false);
    let goes_on = || {
        let is_enough = freed.load(Ordering::Relaxed) >= at(ENOUGH).get();
        let time = if is_enough { storm(USUAL) } else { slowed(GRACE) };
        begin.elapsed() < time && !failed.load(Ordering::Relaxed)
    };
    std::thread::scope(|scope| {
        for thread in 0..2_u64 {
            let (shared, rebuilt, failed, goes_on) = (&shared, &rebuilt, &failed, &goes_on);
            // The program must order concurrent rebuilds, so pinners share no granules.
            let own = thread * GRANULES / 2..(thread + 1) * GRANULES / 2;
            scope.spawn(move || {
                let mut random = 0x9e37_79b9_u64 + thread;
                while goes_on() {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let granule = own.start + (random >> 33) % (own.end - own.start);
                    let pin = shared.pin(range(granule, 1)).unwrap();
                    let mut byte = [0xEE];
                    pin.read(Bytes::ZERO, &mut byte).unwrap();
                    let is_lost = !pin.lost().is_empty();
                    let expected = if is_lost { 0 } else { granule as u8 + 1 };
                    if byte[0] != expected {
                        failed.store(true, Ordering::Relaxed);
                    }
                    assert_eq!(byte[0], expected, "granule {granule}");
                    if is_lost {
                        pin.write(Bytes::ZERO, &[granule as u8 + 1]).unwrap();
                        pin.restored().unwrap();
                        rebuilt.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        for _ in 0..2 {
            scope.spawn(|| {
                while goes_on() {
                    match shared.purge(at(2), Priority::HIGHEST) {
                        Ok(bytes) => _ = freed.fetch_add(bytes.get(), Ordering::Relaxed),
                        Err(Error::Busy { .. }) => std::thread::yield_now(),
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
    });
    let lost = shared.unmark(range(0, GRANULES)).unwrap().pages().get();
    let granules = freed.load(Ordering::Relaxed) / page_size().bytes().get();
    assert_eq!(granules, rebuilt.load(Ordering::Relaxed) + lost, "each loss is told once");
    assert!(granules >= ENOUGH, "{granules} granules purged");
}
