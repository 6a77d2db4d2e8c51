//! Tests that each part of a reclaimer frees about as much as asked.

use std::sync::Arc;

use glebe::contig::{Contig, Source};
use glebe::reclaim::{Class, Part, Policy, Reclaimed, Reclaimer};
use glebe::reserve::Reserve;
use glebe::units::Bytes;
use glebe::volatile::{Engine, Priority, Region};
use glebe::zpool::{Codec, Compaction, ObjectPool};

use super::margin::full_pool;
use glebe_testing::inside::inside;

const LIMIT: Bytes = Bytes::mib(96);

/// Returns a reclaimer with the largest margin, a quarter of the limit, so that memory is short.
fn short() -> Reclaimer {
    Reclaimer::new(Policy::default().margin(Bytes::gib(1)).keep_files(false)).unwrap()
}

fn check(done: &Reclaimed, granule: Bytes) {
    assert!(done.asked > Bytes::mib(1), "{done:?}");
    let most = done.asked.get() + done.asked.get() / 10 + granule.get();
    let least = done.asked.get() - done.asked.get() / 10;
    for freed in [done.freed(), done.measured] {
        assert!((least..=most).contains(&freed.get()), "{freed}: {done:?}");
    }
    assert_eq!(done.failed, 0);
}

fn filled(engine: Engine, len: Bytes) -> Option<Arc<Region>> {
    let region = Region::options().engine(engine).build(len);
    let region = region.inspect_err(|why| println!("skipped: engine {engine}: {why}")).ok()?;
    let block = vec![7; 1 << 20];
    let whole = 0..len.get() >> 20;
    whole.for_each(|mib| region.write(Bytes::mib(mib), &block).unwrap());
    Some(Arc::new(region))
}

#[test]
fn of_volatile_memory_of_both_engines() {
    inside(LIMIT, "reclaim::exact::of_volatile_memory_of_both_engines", || {
        for engine in [Engine::Scan, Engine::Tag] {
            let Some(region) = filled(engine, Bytes::mib(72)) else { continue };
            region.mark(Bytes::ZERO..region.len(), Priority::NORMAL).unwrap();
            let reclaimer = short();
            reclaimer.add(&region).unwrap();
            let done = reclaimer.poll().unwrap();
            check(&done, Bytes::mib(1));
            assert_eq!(done.freed_of(Class::Volatile(Priority::NORMAL)), done.freed());
            let lost = region.unmark(Bytes::ZERO..region.len()).unwrap().pages();
            assert_eq!(region.stats().shed, lost.get(), "and all of it is told as lost");
            assert_eq!(reclaimer.poll().unwrap(), Reclaimed::default(), "it is calm then");
        }
    });
}

#[test]
fn of_objects_of_a_pool() {
    inside(LIMIT, "reclaim::exact::of_objects_of_a_pool", || {
        let pool = full_pool(Bytes::mib(80));
        let reclaimer = short();
        reclaimer.add(&pool).unwrap();
        let objects = pool.stats().objects;
        let done = reclaimer.poll().unwrap();
        check(&done, Bytes::mib(1));
        let stats = pool.stats();
        stats.check().unwrap();
        assert_eq!(stats.objects + stats.evicted, objects);
    });
}

#[test]
fn of_a_reserve_and_what_first_class_holds_stays() {
    inside(LIMIT, "reclaim::exact::of_a_reserve_and_what_first_class_holds_stays", || {
        let plain = Contig::options().source(Source::Plain);
        let options = Reserve::options().room(Bytes::mib(56)).memory(plain);
        let reserve = options.build(Bytes::mib(56)).unwrap();
        let block = reserve.alloc(Bytes::mib(4).pages_up(glebe::page_size()));
        let reclaimer = short();
        reclaimer.add(Part::reserve(&reserve, Bytes::mib(36))).unwrap();
        let more = || vec![1_u8; Bytes::mib(24).as_usize()];
        let one = more();
        let done = reclaimer.poll().unwrap();
        check(&done, Bytes::mib(2));
        let len = || reserve.len().bytes(glebe::page_size());
        assert_eq!(len(), Bytes::mib(56).saturating_sub(done.freed()));
        let other = more();
        (0..3).for_each(|_| assert!(reclaimer.poll().is_ok()));
        assert_eq!(len(), Bytes::mib(36));
        drop((block, one, other));
    });
}

#[test]
fn a_pool_that_may_not_evict_gives_its_waste_alone() {
    inside(LIMIT, "reclaim::exact::a_pool_that_may_not_evict_gives_its_waste_alone", || {
        let pool = ObjectPool::options().codec(Codec::None).limit(Bytes::gib(1));
        let pool = Arc::new(pool.compaction(Compaction::Manual).build().unwrap());
        let object = |nth: u64| (0..250).flat_map(|at| (nth << 8 | at).to_ne_bytes()).collect();
        let insert = |nth: u64| {
            let bytes: Vec<u8> = object(nth);
            pool.insert(&bytes).unwrap()
        };
        let handles: Vec<_> = (0..40_000).map(insert).collect();
        handles.iter().step_by(4).for_each(|handle| drop(pool.remove(*handle)));
        let left = pool.stats().objects;
        let reclaimer = short();
        reclaimer.add(&pool).unwrap();
        let done = reclaimer.poll().unwrap();
        assert!(done.freed_of(Class::Waste) > Bytes::mib(4), "{done:?}");
        assert_eq!(done.freed_of(Class::Objects), Bytes::ZERO);
        assert_eq!(pool.stats().objects, left);
    });
}
