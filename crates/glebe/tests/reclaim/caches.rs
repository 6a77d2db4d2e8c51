//! Tests a cache as a part of a reclaimer: entries are purged by priority, and none is kept while
//! refills are withheld.

use std::convert::Infallible;
use std::thread::sleep;
use std::time::{Duration, Instant};

use glebe::internal::reclaimer_below;
use glebe::reclaim::{Class, Policy};
use glebe::units::Bytes;
use glebe::volatile::{Cache, Priority};
use glebe_testing::time::slowed;

use super::fixture::Tree;

const LIMIT: Bytes = Bytes::mib(160);
const KEYS: u32 = 80;
const WITHHELD: Duration = Duration::from_millis(100);

#[test]
fn entries_of_the_lowest_priority_go_and_what_is_built_then_is_not_kept() {
    let tree = Tree::v2("cache", LIMIT, Bytes::mib(20));
    let policy = Policy::default().margin(Bytes::mib(4)).lead(Duration::ZERO);
    let policy = policy.withhold(WITHHELD);
    let reclaimer = reclaimer_below(tree.root(), policy).unwrap();
    let options = Cache::<u32, u8>::options().refills(reclaimer.refills());
    let cache = options.build(Bytes::mib(128)).unwrap();
    let build = |bytes: &mut [u8]| {
        bytes.fill(1);
        Ok::<_, Infallible>(())
    };
    let had = |key| cache.get_or_build(key, 1 << 20, build).unwrap();
    for key in 0..KEYS {
        had(key).set_priority(if key % 2 == 0 { Priority::LOWEST } else { Priority::NORMAL });
    }
    cache.offer_all();
    reclaimer.add(&cache).unwrap();
    assert_eq!(reclaimer.poll().unwrap().freed(), Bytes::ZERO, "there is room");
    assert!(had(KEYS).is_kept());
    tree.set_used(Bytes::mib(158));
    let asked = Instant::now();
    let done = reclaimer.poll().unwrap();
    assert!(done.asked > Bytes::ZERO && done.failed == 0, "{done:?}");
    assert_eq!(done.freed_of(Class::Volatile(Priority::LOWEST)), done.freed(), "{done:?}");
    // A busy machine may be too late.
    assert!(!had(KEYS + 1).is_kept() || asked.elapsed() >= WITHHELD);
    let lost: Vec<u32> = (0..KEYS).filter(|key| cache.get(key).is_none()).collect();
    assert!(lost.len() as u64 >= done.freed().get() >> 20 && !lost.is_empty(), "{lost:?}");
    assert!(lost.iter().all(|key| key % 2 == 0), "{lost:?}");
    tree.set_used(Bytes::mib(20));
    let end = Instant::now() + slowed(Duration::from_secs(20));
    while !reclaimer.refills().are_allowed() && Instant::now() < end {
        reclaimer.poll().unwrap();
        sleep(Duration::from_millis(20));
    }
    assert!(had(KEYS + 1).is_kept());
    cache.stats().check().unwrap();
}
