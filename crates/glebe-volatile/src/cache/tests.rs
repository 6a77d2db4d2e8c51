//! Tests of a cache: losses, evictions and random programs.

mod oracle;

use std::convert::Infallible;
use std::time::Duration;

use super::*;

pub(super) fn caches(pages: u64, options: &CacheOptions<u32, u32>) -> Vec<Cache<u32, u32>> {
    let made = [Engine::Scan, Engine::Tag].map(|engine| {
        let cache = options.clone().engine(engine).build(Pages::new(pages).bytes(page_size()));
        cache.inspect_err(|why| println!("skipped: engine {engine}: {why}")).ok()
    });
    let caches: Vec<_> = made.into_iter().flatten().collect();
    assert!(!caches.is_empty(), "no engine at all");
    caches
}

pub(super) fn page_len() -> usize {
    page_size().bytes().as_usize() / size_of::<u32>()
}

impl Cache<u32, u32> {
    pub(super) fn had(&self, key: u32, pages: usize, value: u32) -> Entry<'_, u32, u32> {
        let build = |values: &mut [u32]| {
            assert!(values.iter().all(|value| *value == 0), "not zeros");
            values.fill(value);
            Ok::<_, Infallible>(())
        };
        self.get_or_build(key, pages * page_len(), build).unwrap()
    }

    pub(super) fn lose(&self, key: u32, nth: u64) -> bool {
        let mut table = self.lock().unwrap();
        let Some(id) = table.find(&key) else { return false };
        let item = table.item(id);
        let (Some(place), table::Phase::Marked(_)) = (item.place, item.phase) else { return false };
        let page = Extent::new(place.start() + nth % place.len(), 1).unwrap();
        self.region.drop_now(range_of(page)).unwrap();
        true
    }

    pub(super) fn check(&self) {
        self.lock().unwrap().check_invariants();
        self.stats().check().unwrap();
    }
}

#[test]
fn an_entry_that_lost_a_page_is_lost_and_built_again_in_its_place() {
    for cache in caches(64, &Cache::<u32, u32>::options()) {
        drop((cache.had(1, 4, 10), cache.had(2, 4, 20)));
        cache.offer_all();
        assert!(cache.lose(1, 2) && cache.lose(2, 0));
        assert!(cache.get(&1).is_none() && cache.get(&2).is_none());
        assert_eq!((cache.len(), cache.stats().kept), (0, Pages::ZERO));
        assert_eq!(cache.region.stats().resident, Pages::ZERO);
        drop(cache.had(1, 4, 30));
        cache.offer_all();
        assert!(cache.lose(1, 3));
        assert_eq!(cache.had(1, 4, 40)[..], vec![40; 4 * page_len()]);
        let stats = cache.stats();
        assert_eq!((stats.purges, stats.rebuilds, stats.built), (3, 1, 4));
        cache.check();
    }
}

#[test]
fn what_is_pinned_or_hot_is_not_marked_and_the_oldest_stops_being_hot() {
    for cache in caches(64, &Cache::<u32, u32>::options().hot(Pages::new(8).bytes(page_size()))) {
        let pinned = cache.had(0, 4, 1);
        (1..=2).for_each(|key| drop(cache.had(key, 4, key)));
        let hit = cache.get(&1);
        assert!(hit.is_some());
        drop(hit);
        assert_eq!((cache.stats().hot, cache.stats().marked), (Pages::new(8), Pages::ZERO));
        drop(cache.had(3, 4, 3));
        assert_eq!(cache.drop_marked().unwrap().pages_down(page_size()), Pages::new(4));
        let left = [0, 1, 2, 3].map(|key| cache.get(&key).is_some());
        assert_eq!(left, [true, true, false, true]);
        assert_eq!(pinned[..], vec![1; 4 * page_len()]);
        cache.check();
    }
}

#[test]
fn the_oldest_of_the_lowest_priority_goes_for_what_needs_room() {
    let four = Pages::new(16).bytes(page_size());
    let options = Cache::<u32, u32>::options();
    let all = [caches(64, &options.clone().cap(four).hot(Bytes::ZERO)), caches(16, &options)];
    for cache in all.into_iter().flatten() {
        let low = Priority::new(1).unwrap();
        for key in 0..4 {
            let entry = cache.had(key, 4, key);
            entry.set_priority(if key == 2 { low } else { Priority::NORMAL });
            drop(entry);
        }
        cache.offer_all();
        (4..6).for_each(|key| drop(cache.had(key, 4, key)));
        cache.offer_all();
        let left: Vec<_> = (0..6).filter(|key| cache.get(key).is_some()).collect();
        assert_eq!(left, [1, 3, 4, 5]);
        assert_eq!(cache.stats().evicted, 2);
        cache.check();
    }
}

#[test]
fn what_finds_no_room_is_built_all_the_same_and_not_kept() {
    for cache in caches(8, &Cache::<u32, u32>::options()) {
        let pinned = cache.had(0, 6, 1);
        let other = cache.had(1, 4, 2);
        assert!(pinned.is_kept() && !other.is_kept());
        assert_eq!(other[..], vec![2; 4 * page_len()]);
        assert!(cache.get(&1).is_none());
        drop(pinned);
        assert!(cache.had(2, 8, 3).is_kept());
        let refused = cache.get_or_build(3, 8 * page_len() + 1, |_| Ok::<_, Infallible>(()));
        assert!(matches!(refused, Err(BuildError::TooLong { .. })));
        let refused = cache.get_or_build(3, usize::MAX, |_| Ok::<_, Infallible>(()));
        assert!(matches!(refused, Err(BuildError::TooLong { .. })));
        cache.check();
    }
}

#[test]
fn while_refills_are_withheld_what_is_missed_is_built_and_not_kept() {
    let refills = Refills::new();
    for cache in caches(64, &Cache::<u32, u32>::options().refills(refills.clone())) {
        drop((cache.had(0, 1, 1), cache.had(1, 1, 1)));
        cache.offer_all();
        assert!(cache.lose(1, 0));
        refills.withhold(Duration::from_secs(3600));
        assert!(cache.had(0, 1, 2).is_kept());
        for key in [1, 2] {
            let built = cache.had(key, 1, 3);
            assert!(!built.is_kept() && built[0] == 3);
            assert!(cache.get(&key).is_none());
        }
        assert_eq!(cache.stats().kept, Pages::new(1));
        refills.allow();
        assert!(cache.had(1, 1, 4).is_kept());
        cache.check();
    }
}

#[test]
fn what_is_removed_while_it_is_pinned_or_built_is_not_found_and_stays_till_the_end() {
    for cache in caches(64, &Cache::<u32, u32>::options()) {
        let pinned = cache.had(0, 2, 1);
        assert!(cache.remove(&0) && !cache.remove(&0) && cache.get(&0).is_none());
        let again = cache.had(0, 2, 2);
        assert_eq!((pinned[0], again[0]), (1, 2));
        drop(pinned);
        assert_eq!(cache.stats().kept, Pages::new(2));
        let build = |values: &mut [u32]| {
            assert!(cache.remove(&1));
            values.fill(3);
            Ok::<_, Infallible>(())
        };
        let built = cache.get_or_build(1, page_len(), build).unwrap();
        assert!(built[0] == 3 && cache.get(&1).is_none());
        cache.clear();
        assert_eq!((cache.len(), again[0], built[0]), (0, 2, 3));
        drop((again, built));
        assert_eq!(cache.stats().kept, Pages::ZERO);
        cache.check();
    }
}

#[test]
fn values_of_no_length_and_of_no_size_are_values() {
    for cache in caches(4, &Cache::<u32, u32>::options()) {
        assert!(cache.had(0, 0, 1).is_empty() && cache.get(&0).is_some());
    }
    let cache = Cache::<u8, ()>::new(Bytes::mib(1)).unwrap();
    let entry = cache.get_or_build(0, 1000, |_| Ok::<_, Infallible>(())).unwrap();
    assert_eq!(entry.len(), 1000);
}

#[test]
fn statistics_are_named_and_openmetrics_has_the_prefix() {
    for cache in caches(4, &Cache::<u32, u32>::options()) {
        drop((cache.had(0, 1, 1), cache.get(&0), cache.get(&1)));
        let stats = cache.stats();
        assert_eq!((stats.hits, stats.misses, stats.told, stats.build.count()), (1, 2, 1, 1));
        assert_eq!(stats.saved_ns, stats.build.sum());
        let text = CacheStats::openmetrics_of(&[("tiles", &stats)]);
        let saved = stats.saved_ns;
        for line in [
            "glebe_cache_hits_total{cache=\"tiles\"} 1\n".to_owned(),
            "# UNIT glebe_cache_saved_seconds seconds\n".to_owned(),
            format!("glebe_cache_saved_seconds_total{{cache=\"tiles\"}} 0.{saved:09}\n"),
        ] {
            assert!(text.contains(&line), "{line} is not in:\n{text}");
        }
        assert!(CacheStats::describe().contains("saved_ns"));
        assert!(stats.to_json().contains("\"hits\": 1"));
    }
}
