//! Tests statistics as OpenMetrics text with a strict parser.

use std::io::Write;
use std::process::{Command, Stdio};

use glebe::contig::{Contig, Source};
use glebe::page_size;
use glebe::reserve::{Request, Reserve, Stats};
use glebe::units::{Bytes, Pages};

use glebe_testing::openmetrics::{parse, Family};

fn busy() -> Reserve {
    let len = Pages::new(1024).bytes(page_size());
    let contig = Contig::options().source(Source::Plain).build(len).unwrap();
    let reserve = Reserve::options().build_on(contig).unwrap();
    let pool = reserve.page_cache().namespace("busy").unwrap();
    let mut page = vec![1; page_size().bytes().as_usize()];
    for index in 0..100 {
        assert!(matches!(pool.put(1, index, &page), Ok(glebe::reserve::Put::Stored)));
    }
    assert!(pool.get(1, 5, &mut page).unwrap() && !pool.get(2, 5, &mut page).unwrap());
    assert!(pool.invalidate_page(1, 6).unwrap());
    for pages in [1, 3, 700] {
        reserve.alloc(Request::new(Pages::new(pages)).any()).unwrap();
    }
    assert!(reserve.alloc(Pages::new(1 << 40)).is_err());
    reserve
}

fn value(families: &[Family], sample: &str) -> f64 {
    let mut all = families.iter().flat_map(|family| &family.samples);
    all.find(|s| s.name == sample).unwrap_or_else(|| panic!("no {sample}")).value
}

#[test]
fn volatile_regions_are_told_apart() {
    use glebe::volatile::{Engine, Priority, Region};
    let page = page_size().bytes();
    let region = Region::options().engine(Engine::Tag).build(Bytes::mib(2)).unwrap();
    region.write(Bytes::ZERO, &vec![1; page.as_usize()]).unwrap();
    region.mark(Bytes::ZERO..page, Priority::NORMAL).unwrap();
    region.drop_now(Bytes::ZERO..page).unwrap();
    assert_eq!(region.unmark(Bytes::ZERO..page).unwrap().pages(), Pages::new(1));
    let stats = region.stats();
    let families = parse(&stats.to_openmetrics()).unwrap();
    let expected = page.get() as f64;
    assert!((value(&families, "glebe_volatile_purged_bytes_total") - expected).abs() < 1e-12);
    let two = glebe::volatile::Stats::openmetrics_of(&[("one", &stats), ("two", &stats)]);
    let families = parse(&two).unwrap();
    assert!(families.iter().all(|family| family.samples.len() == 2));
}

#[test]
fn shared_files_are_told_apart() {
    use glebe::volatile::{Order, Priority, Shared, SharedStats};
    let page = page_size().bytes();
    let shared = Shared::options().create(Bytes::mib(1)).unwrap();
    drop(shared.pin(Bytes::ZERO..page).unwrap());
    shared.mark(Bytes::ZERO..page, Priority::LOWEST, Order::Fifo).unwrap();
    let stats = shared.stats();
    let families = parse(&stats.to_openmetrics()).unwrap();
    let expected = page.get() as f64;
    for name in ["glebe_shared_marked_bytes", "glebe_shared_present_bytes"] {
        assert!((value(&families, name) - expected).abs() < 1e-12, "{name}");
    }
    let of_levels = |files: usize| move |family: &&Family| family.samples.len() == 8 * files;
    assert_eq!(families.iter().filter(of_levels(1)).count(), 1);
    let two = SharedStats::openmetrics_of(&[("one", &stats), ("two", &stats)]);
    let families = parse(&two).unwrap();
    assert_eq!(families.iter().filter(of_levels(2)).count(), 1);
    assert!(families.iter().all(|family| family.samples.len() % 2 == 0));
}

#[test]
fn shared_caches_are_told_apart() {
    use glebe::volatile::{Shared, SharedCache, SharedCacheStats};
    let shared = Shared::options().create(Bytes::mib(1)).unwrap();
    let cache = SharedCache::over(shared.into(), SharedCache::options()).unwrap();
    assert!(!cache.get(b"key", &mut Vec::new()).unwrap());
    let stats = cache.stats();
    let families = parse(&stats.to_openmetrics()).unwrap();
    assert!((value(&families, "glebe_shared_cache_misses_total") - 1.0).abs() < 1e-12);
    let two = SharedCacheStats::openmetrics_of(&[("one", &stats), ("two", &stats)]);
    let families = parse(&two).unwrap();
    assert!(families.iter().all(|family| family.samples.len() == 2));
}

#[test]
fn stores_regions_and_areas_are_told_apart() {
    use glebe::swap::{cache, Stats, Store};
    let page = page_size().bytes();
    let store = Store::with_budget(Bytes::mib(1)).unwrap();
    store.insert(&[7; 100]).unwrap();
    let of_store = store.stats();
    let families = parse(&of_store.to_openmetrics()).unwrap();
    let is = |families: &[Family], name: &str, expected: u64| {
        assert!((value(families, name) - expected as f64).abs() < 1e-12, "{name}");
    };
    is(&families, "glebe_store_created_bytes_total", page.get());
    is(&families, "glebe_store_budget_bytes", Bytes::mib(1).get());
    match Store::options().build_region(Bytes::mib(2), Bytes::mib(1)) {
        Ok(region) => {
            region.write_at(Bytes::ZERO, b"touched").unwrap();
            let both = [("objects", &of_store), ("memory", &region.stats())];
            let families = parse(&Stats::openmetrics_of(&both)).unwrap();
            assert!(families.iter().all(|family| family.samples.len() % 2 == 0));
            is(&families, "glebe_store_resident_bytes", page.get());
        }
        Err(why) => println!("skipped: a region ({why})"),
    }
    let cache = cache::SwapCache::with_limit(Bytes::mib(1)).unwrap();
    let area = cache.area_without_file(Pages::new(9)).unwrap();
    area.set_put_back(Bytes::mib(2)).unwrap();
    area.store(3, &vec![1; page.as_usize()]).unwrap();
    let stats = area.stats();
    let families = parse(&stats.to_openmetrics()).unwrap();
    is(&families, "glebe_swap_area_present_bytes", page.get());
    is(&families, "glebe_swap_area_limit_bytes", Bytes::mib(2).get());
    let two = cache::Stats::openmetrics_of(&[("one", &stats), ("two", &stats)]);
    let families = parse(&two).unwrap();
    assert!(families.iter().all(|family| family.samples.len() == 2));
}

#[test]
fn a_reclaimer_is_told() {
    use glebe::reclaim::{Policy, Reclaimer};
    let reclaimer = Reclaimer::new(Policy::default()).unwrap();
    reclaimer.poll().unwrap();
    let stats = reclaimer.stats();
    let families = parse(&stats.to_openmetrics()).unwrap();
    assert!((value(&families, "glebe_reclaim_polls_total") - 1.0).abs() < 1e-12);
    assert!(value(&families, "glebe_reclaim_limit_bytes") > 0.0, "{stats}");
    assert!(families.iter().all(|family| family.name.starts_with("glebe_reclaim_")));
}

#[test]
fn classes_of_a_pool_are_told_apart_and_add_up() {
    use glebe::zpool::{Codec, Compaction, ObjectPool};
    let options = ObjectPool::options().codec(Codec::None).compaction(Compaction::Manual);
    let pool = options.build().unwrap();
    let object = |n: usize| vec![n as u8; 40 + n * 37 % 2000];
    let handles: Vec<_> = (0..3000).map(|n| pool.insert(&object(n)).unwrap()).collect();
    handles.iter().step_by(3).for_each(|handle| pool.remove(*handle).unwrap());
    let stats = pool.stats();
    stats.check().unwrap();
    let families = parse(&stats.to_openmetrics()).unwrap();
    let sum = |name: &str| -> f64 {
        let family = families.iter().find(|family| family.name == name);
        let family = family.unwrap_or_else(|| panic!("no {name}"));
        assert!(family.samples.iter().all(|sample| sample.labels.contains_key("size")));
        family.samples.iter().map(|sample| sample.value).sum()
    };
    let total = |name| value(&families, name);
    for (of_classes, of_all) in [
        ("glebe_zpool_class_used", total("glebe_zpool_objects")),
        ("glebe_zpool_class_zspages", total("glebe_zpool_zspages")),
        ("glebe_zpool_class_stored_bytes", total("glebe_zpool_stored_bytes")),
        ("glebe_zpool_class_freeable_bytes", total("glebe_zpool_freeable_bytes")),
    ] {
        assert!(of_all > 0.0 && sum(of_classes) == of_all, "{of_classes}: not {of_all}");
    }
    let classes = stats.classes.iter().filter(|class| class.zspages > 0).count();
    let used = families.iter().find(|family| family.name == "glebe_zpool_class_used").unwrap();
    assert!(classes > 10 && used.samples.len() == classes);
}

#[test]
fn every_statistic_is_there_in_base_units() {
    let stats = busy().stats();
    let families = parse(&stats.to_openmetrics()).unwrap();
    let page = page_size().bytes().get() as f64;
    let cases = [
        ("glebe_reserve_stored_bytes_total", 100.0 * page),
        ("glebe_reserve_loaded_total", 1.0),
        ("glebe_reserve_missed_total", 1.0),
        ("glebe_reserve_invalidated_bytes_total", page),
        ("glebe_reserve_allocs_total", 3.0),
        ("glebe_reserve_alloc_failures_total", 1.0),
        ("glebe_reserve_total_bytes", 4.0 * 1024.0 * 1024.0),
        ("glebe_reserve_live_bytes", stats.live.get() as f64 * page),
        ("glebe_reserve_grant_seconds_count", 3.0),
        ("glebe_reserve_grant_seconds_sum", stats.alloc_ns.sum() as f64 / 1e9),
    ];
    for (sample, expected) in cases {
        let found = value(&families, sample);
        assert!((found - expected).abs() < 1e-12, "{sample}: {found}, not {expected}");
    }
    // Each line of `describe` is a family, except the lines of `alloc_failures` and the histogram.
    let single = Stats::describe().lines().filter(|line| !line.starts_with("alloc_")).count();
    let failures = families.iter().filter(|f| f.name == "glebe_reserve_alloc_failures").count();
    assert_eq!(families.len(), single + failures + 1);
    let unit = |f: &Family| f.name.ends_with(&format!("_{}", f.unit));
    assert!(families.iter().all(|f| f.unit.is_empty() || unit(f)));
}

#[test]
fn several_reserves_share_each_family_and_hostile_names_stay_labels() {
    let (one, two) = (busy().stats(), Stats::default());
    let hostile = "a \"quoted\" \\ name\n# EOF";
    let families = parse(&Stats::openmetrics_of(&[("one", &one), (hostile, &two)])).unwrap();
    for family in &families {
        let names: Vec<&String> = family.samples.iter().map(|s| &s.labels["reserve"]).collect();
        let first = names.iter().filter(|name| **name == "one").count();
        assert!(first * 2 == names.len() && names[first..].iter().all(|name| *name == hostile));
    }
    assert_eq!(Stats::openmetrics_of(&[]), "# EOF\n");
    assert!(parse(&Stats::openmetrics_of(&[("one", &one), ("one", &two)])).is_err());
}

#[test]
fn broken_texts_are_refused() {
    let good = busy().stats().to_openmetrics();
    parse(&good).unwrap();
    let inf = "grant_seconds_bucket{le=\"+Inf\"} 3\n";
    let loaded = "glebe_reserve_loaded_total 1\n";
    let cases: &[(&str, &str, &str)] = &[
        ("no end", "# EOF\n", ""),
        ("text after the end", "# EOF\n", "# EOF\nx 1\n"),
        ("an empty line", "# EOF\n", "\n# EOF\n"),
        ("a carriage return", loaded, "glebe_reserve_loaded_total 1\r\n"),
        ("two spaces", loaded, "glebe_reserve_loaded_total  1\n"),
        ("a series twice", loaded, &loaded.repeat(2)),
        ("no number", loaded, "glebe_reserve_loaded_total one\n"),
        ("a number of Rust", loaded, "glebe_reserve_loaded_total infinity\n"),
        ("a negative counter", loaded, "glebe_reserve_loaded_total -1\n"),
        ("a counter without _total", loaded, "glebe_reserve_loaded 1\n"),
        ("a name that is none", loaded, "glebe-reserve_loaded_total 1\n"),
        ("a bad escape", loaded, "glebe_reserve_loaded_total{a=\"\\t\"} 1\n"),
        ("a label twice", loaded, "glebe_reserve_loaded_total{a=\"\",a=\"\"} 1\n"),
        ("an open label", loaded, "glebe_reserve_loaded_total{a=\"} 1\n"),
        ("a foreign sample", loaded, "glebe_reserve_missed_total 1\n"),
        ("metadata after samples", loaded, &format!("{loaded}# HELP glebe_reserve_loaded x\n")),
        ("an unknown type", "missed counter", "missed tally"),
        ("a type twice", "# HELP glebe_reserve_loaded ", "# TYPE glebe_reserve_loaded counter\n#"),
        ("no type", "# TYPE glebe_reserve_loaded counter\n", ""),
        ("no help", "# HELP glebe_reserve_rejected puts that kept nothing\n", ""),
        (
            "a unit not in the name",
            "UNIT glebe_reserve_live_bytes bytes",
            "UNIT glebe_reserve_live_bytes pages",
        ),
        (
            "a family in two places",
            "# EOF\n",
            "# TYPE glebe_reserve_loaded counter\n# HELP glebe_reserve_loaded x\n# EOF\n",
        ),
        (
            "names that clash",
            "# EOF\n",
            "# TYPE glebe_reserve_loaded_total gauge\n# HELP glebe_reserve_loaded_total x\n# EOF\n",
        ),
        ("no +Inf", inf, "grant_seconds_bucket{le=\"1e9\"} 3\n"),
        ("a count that is not the last bucket", "seconds_count 3\n", "seconds_count 4\n"),
        ("no sum", "glebe_reserve_grant_seconds_sum", "glebe_reserve_grant_seconds_count"),
        ("a bucket that shrinks", "{le=\"0.000000127\"} 0", "{le=\"0.000000127\"} 4"),
        ("bounds that shrink", "{le=\"0.000000127\"}", "{le=\"5\"}"),
        ("a bucket without bound", "_bucket{le=\"0.000000127\"} 0", "_bucket 0"),
    ];
    for (what, from, to) in cases {
        assert!(good.contains(from), "{what}: {from:?} is not there to be broken");
        let bad = good.replace(from, to);
        assert!(parse(&bad).is_err(), "{what} was accepted");
    }
}

#[test]
fn the_reference_parser_agrees() {
    const PROGRAM: &str = "import sys\n\
        from prometheus_client.openmetrics.parser import text_string_to_metric_families as p\n\
        print(sum(len(family.samples) for family in p(sys.stdin.read())))";
    let has = Command::new("python3").args(["-c", "import prometheus_client"]).output();
    if !has.is_ok_and(|output| output.status.success()) {
        println!("skipped: Python's prometheus_client is not installed");
        return;
    }
    let (one, two) = (busy().stats(), Stats::default());
    let text = Stats::openmetrics_of(&[("one", &one), ("a \"\\\n", &two)]);
    let mut python = Command::new("python3");
    python.args(["-c", PROGRAM]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = python.spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "the reference parser refuses:\n{text}");
    let ours: usize = parse(&text).unwrap().iter().map(|f| f.samples.len()).sum();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), ours.to_string());
}
