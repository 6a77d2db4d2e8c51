//! Tests limits, and calls that wait for others.

#[cfg(all(feature = "lz4", feature = "zstd"))]
use super::coded::codecs;
use super::samples::{noise, text};
use super::*;

#[test]
fn nothing_is_evicted_or_refused_that_compaction_makes_room_for() {
    for at_limit in [AtLimit::Refuse, AtLimit::EvictOldest] {
        let options = plain().limit(Bytes::mib(4)).at_limit(at_limit);
        let pool = options.compaction(Compaction::Manual).build().unwrap();
        let mut all: Vec<(Handle, u64)> = Vec::new();
        for n in 0..3600 {
            all.push((pool.insert(&bytes_of(n, 1000)).unwrap(), n));
        }
        all.retain(|(handle, n)| n % 4 == 0 || pool.remove(*handle).is_err());
        let mut freeable = pool.freeable();
        assert!(freeable.bytes(page_size()) > Bytes::new(2_048_000), "{freeable}");
        for n in 3600.. {
            let Ok(handle) = pool.insert(&bytes_of(n, 2000)) else { break };
            if pool.stats().evicted > 0 {
                break;
            }
            all.push((handle, n));
            freeable = pool.freeable();
        }
        assert!(freeable < Pages::new(16), "{at_limit:?}: {freeable} could have been freed");
        assert_eq!(pool.stats().evicted > 0, at_limit == AtLimit::EvictOldest);
        assert!(all.len() > 900 + 1200, "{} objects", all.len());
    }
}

#[test]
fn zspages_may_be_longer_in_a_large_pool() {
    let chain = |choice, mib| {
        let pool = plain().table(choice).limit(Bytes::mib(mib)).build().unwrap();
        pool.table().rules().chain.get()
    };
    assert_eq!([63, 64].map(|mib| chain(TableChoice::BySize, mib)), [4, 8]);
    assert_eq!([63, 64].map(|mib| chain(TableChoice::Fitted, mib)), [4, 4]);
    for asked in 1..=16 {
        let rules = Rules { chain: Pages::new(asked), ..Rules::of_page(page_size()) };
        assert_eq!(chain(TableChoice::Rules(rules), 8), asked);
    }
}

#[test]
fn what_spans_pages_is_read_in_place() {
    let pool = plain().build().unwrap();
    let handles: Vec<Handle> =
        (0..400).map(|n| pool.insert(&bytes_of(n, page() * 3 / 10)).unwrap()).collect();
    let mut spanning = 0;
    for (n, handle) in handles.iter().enumerate() {
        let guard = pool.get(*handle).unwrap();
        assert!(guard.is_in_place() && *guard == *bytes_of(n as u64, page() * 3 / 10));
        let (first, last) = (guard.as_ptr() as usize, guard.as_ptr() as usize + guard.len() - 1);
        spanning += usize::from(first / page() != last / page());
    }
    assert!((50..350).contains(&spanning), "{spanning} of 400 span two pages");
}

#[test]
fn objects_of_one_class_come_and_go_while_another_is_locked() {
    let options = plain().compaction(Compaction::Manual);
    let pool = std::sync::Arc::new(options.build().unwrap());
    let [small, large] = [100, 2000].map(|len| pool.insert(&bytes_of(1, len)).unwrap());
    let place = pool.objects.entry(large.index(), large.generation()).unwrap().place();
    let class = pool.objects.memory.zspages.about(place.zspage).class;
    let locked = pool.objects.classes.get(class).unwrap().lock();
    let (said, hears) = std::sync::mpsc::channel();
    let other = std::sync::Arc::clone(&pool);
    let thread = std::thread::spawn(move || {
        other.remove(small).unwrap();
        let again = other.insert(&bytes_of(2, 100)).unwrap();
        other.replace(again, &bytes_of(3, 90)).unwrap();
        said.send(again).unwrap();
    });
    let again = hears.recv_timeout(std::time::Duration::from_secs(60));
    drop(locked);
    thread.join().unwrap();
    assert_eq!(*pool.get(again.expect("it waited for the lock")).unwrap(), *bytes_of(3, 90));
}

#[cfg(all(feature = "lz4", feature = "zstd"))]
#[test]
fn a_limit_counts_everything() {
    for codec in codecs() {
        for limit in [Bytes::mib(2), Bytes::mib(8)] {
            for at_limit in [AtLimit::Refuse, AtLimit::EvictOldest] {
                let options =
                    ObjectPool::options().codec(codec.clone()).limit(limit).at_limit(at_limit);
                let pool = options.build().unwrap();
                let mut buf = vec![0; page()];
                assert_eq!(pool.held().get() > 150 << 10, matches!(codec, Codec::Zstd(_)));
                for n in 0..8_000 {
                    let len = 200 + n as usize * 37 % 3000;
                    let bytes = if n % 3 == 0 { noise(n, len) } else { text(n, len) };
                    match pool.insert(&bytes) {
                        Ok(handle) => assert_eq!(pool.read(handle, &mut buf).unwrap(), len),
                        Err(error) => {
                            assert!(matches!(error, Error::Full { .. }), "{error}");
                            break;
                        }
                    }
                }
                let stats = pool.stats();
                stats.check().unwrap();
                let held = pool.held();
                assert!(stats.held_bytes <= held.get() && held <= limit, "{held}\n{stats}");
                let ahead = held.get() - stats.held_bytes;
                assert!(ahead < 16 << 10, "{ahead} bytes are charged ahead");
                pool.set_limit(held).unwrap();
            }
        }
    }
}

#[cfg(feature = "zstd")]
#[test]
fn what_codecs_of_more_threads_take_is_counted() {
    let limit = Bytes::mib(4);
    let options = ObjectPool::options().codec(Codec::Zstd(Zstd::default())).limit(limit);
    let pool = options.at_limit(AtLimit::EvictOldest).build().unwrap();
    let states = |pool: &ObjectPool| pool.coder.count().1;
    let (one, all) = (states(&pool), std::sync::Barrier::new(4));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (pool, all) = (&pool, &all);
            scope.spawn(move || {
                all.wait();
                let mut buf = vec![0; page()];
                for n in 0..3000 {
                    let handle = pool.insert(&text(thread << 32 | n, page())).unwrap();
                    let read = pool.read(handle, &mut buf);
                    assert!(matches!(read, Ok(_) | Err(Error::Stale)), "{read:?}");
                }
            });
        }
    });
    assert!(states(&pool) >= one && !pool.coder.has_grown());
    let stats = pool.stats();
    stats.check().unwrap();
    assert!(stats.held_bytes <= limit.get() && stats.metadata_bytes > states(&pool), "{stats}");
}
