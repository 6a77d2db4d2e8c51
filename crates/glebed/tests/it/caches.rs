//! Tests named caches in the daemon's idle memory.

use std::fs::Permissions;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::time::Duration;

use glebe::contig::{PoolLock, Run};
use glebe::internal::sys::processes::process::effective_user;
use glebe::units::Bytes;
use glebe_cache::{CacheError, SharedCache};
use glebe_lease::wire::Flags;
use glebe_lease::{Client, LeaseError, Wish};
use glebe_testing::process::{child_of, is_child};
use glebe_testing::time::{is_long, wait_until};
use glebed::{Daemon, Quota, Settings};
use rustix::thread::{capabilities, set_capabilities, CapabilitySet};

use super::leases::{errno_of, EAGAIN, ENOMEM};
use super::running::{
    answered, brick, put, settings, wish, Running, CONTIGUOUS, PATIENCE, REVOCABLE,
};

const PATH: &str = "GLEBE_TEST_CACHE";
const NOBODY: u32 = 65534;
const LEN: usize = 4096;

fn open(running: &Running, name: &str, bricks: u64) -> SharedCache {
    let options = SharedCache::options().size(Bytes::new(bricks * brick())).socket(&running.path);
    let cache = answered(|| options.clone().open(name)).unwrap();
    assert!(cache.is_of_daemon());
    cache
}

fn value_of(key: u32, nth: u32) -> Vec<u8> {
    [key, nth].iter().flat_map(|word| word.to_le_bytes()).cycle().take(LEN).collect()
}

/// Returns the number of values, each of which must be right.
fn found(cache: &SharedCache, keys: u32) -> u32 {
    let mut value = Vec::new();
    let is_there = |key: &u32| {
        let is_hit = cache.get(&key.to_le_bytes(), &mut value);
        assert!(!is_hit || value == value_of(*key, 1), "key {key}");
        is_hit
    };
    (0..keys).filter(is_there).count() as u32
}

fn fill(cache: &SharedCache, keys: u32) -> u32 {
    let put = |key: &u32| cache.put(&key.to_le_bytes(), &value_of(*key, 1)).unwrap();
    (0..keys).filter(put).count() as u32
}

/// Stores values until every one is stored.
fn fill_wholly(cache: &SharedCache, keys: u32) {
    wait_until("all values are stored", PATIENCE, || fill(cache, keys) == keys);
}

/// Stores values until every one is stored and caches have so many bricks.
fn fill_to(running: &Running, cache: &SharedCache, keys: u32, bricks: u64) {
    wait_until("the cache has its memory", PATIENCE, || {
        fill(cache, keys) == keys && stat(running, "cached_bytes") == bricks * brick()
    });
}

fn stat(running: &Running, name: &str) -> u64 {
    let stats = running.client().stats().unwrap();
    let prefix = format!("glebe_lease_{name} ");
    let line = stats.lines().find_map(|line| line.strip_prefix(&prefix));
    line.unwrap_or_else(|| panic!("no {name} in {stats}")).parse().unwrap()
}

#[test]
fn a_name_is_one_cache_for_the_processes_of_a_user_alone() {
    if is_child() {
        let path = std::env::var_os(PATH).unwrap();
        let options = SharedCache::options().size(Bytes::new(brick())).socket(path);
        let cache = answered(|| options.clone().open("shared")).unwrap();
        let mut value = Vec::new();
        let is_hit = cache.get(b"from the parent", &mut value);
        println!("saw {is_hit} {}", String::from_utf8_lossy(&value));
        put(&cache, b"from the child", b"hello");
        return;
    }
    let open_to_all = Settings { mode: 0o666, ..settings(1) };
    let Some(running) = Running::new(6, open_to_all) else { return };
    let cache = open(&running, "shared", 2);
    put(&cache, b"from the parent", b"secret");
    let test = "caches::a_name_is_one_cache_for_the_processes_of_a_user_alone";
    let run = |uid: Option<u32>| {
        let mut command = child_of(test);
        command.env(PATH, &running.path);
        if let Some(uid) = uid {
            command.uid(uid);
        }
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
        said
    };
    let mut value = Vec::new();
    if rustix::process::geteuid().is_root() {
        std::fs::set_permissions(running.path.parent().unwrap(), Permissions::from_mode(0o755))
            .unwrap();
        assert!(run(Some(NOBODY)).contains("saw false"));
        assert!(!cache.get(b"from the child", &mut value), "another user's value");
    }
    // A child misses if the daemon does not answer it at once.
    wait_until("a child sees the value", PATIENCE, || run(None).contains("saw true secret"));
    wait_until("the child's value is seen", PATIENCE, || cache.get(b"from the child", &mut value));
    assert_eq!(value, b"hello");
    let again = open(&running, "shared", 5);
    assert_eq!(again.size(), Bytes::new(2 * brick()), "a cache keeps its size");
    assert!(!open(&running, "other", 1).get(b"from the parent", &mut value));
    let rows = running.client().list().unwrap();
    let row = rows.iter().find(|row| row.name.as_str() == "shared").unwrap();
    assert!(row.is_cache && row.bytes > 0 && row.pid == 0, "{row:?}");
    answered(|| again.end()).unwrap();
    assert!(!cache.get(b"from the parent", &mut value), "the cache was ended");
}

#[test]
fn leases_take_the_memory_of_caches_and_leave_misses() {
    let Some(running) = Running::new(8, settings(1)) else { return };
    let cache = open(&running, "tiles", 100);
    assert_eq!(cache.size(), Bytes::new(7 * brick()), "at most what is not kept zeroed");
    // All memory but what is kept zeroed.
    fill_to(&running, &cache, 2000, 7);
    let (stored, there) = (2000, found(&cache, 2000));
    if there != stored {
        // Two keys with equal set and tag, as in one run of 200, have one slot: either is there.
        let is_lost = |key: &u32| !cache.get(&key.to_le_bytes(), &mut Vec::new());
        let lost = (0..2000).find(is_lost).unwrap();
        put(&cache, &lost.to_le_bytes(), &value_of(lost, 1));
        assert_eq!((there + 1, found(&cache, 2000)), (stored, there), "key {lost}");
    }
    let client = running.client();
    let some = client.lease(wish(3, Flags::default())).unwrap();
    let left = found(&cache, 2000);
    assert!(0 < left && left < stored, "{left} of {stored}");
    let all = client.lease(wish(5, Flags::default())).unwrap();
    let mut bytes = vec![1; all.len().as_usize()];
    all.read(Bytes::ZERO, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0), "a cache's bytes in a lease");
    assert_eq!((found(&cache, 2000), stat(&running, "cached_bytes")), (0, 0));
    assert!(!cache.put(b"key", b"value").unwrap(), "no memory is left");
    drop((some, all));
    wait_until("the cache has memory again", Duration::from_secs(10), || {
        fill(&cache, 2000);
        found(&cache, 2000) > 1000
    });
    assert_eq!(cache.stats().removed, 0);
    // The machine may have no longer run of whole bricks to build the reserve of.
    let each = Bytes::new(brick()).pages_down(glebe::page_size()).get();
    let whole = |run: &Run| {
        let is_even = run.pfn.is_some_and(|pfn| pfn.get() % each == run.pages.start() % each);
        let bricks = (run.pages.end() / each).saturating_sub(run.pages.start().div_ceil(each));
        if is_even {
            bricks
        } else {
            0
        }
    };
    let longest = running.reserve.contig().runs().iter().map(whole).max().unwrap();
    let longest = longest.max(u64::from(brick() == 2 << 20));
    if longest == 0 {
        return println!("skipped: no brick's frames are adjacent");
    }
    let run = client.lease(wish(longest, CONTIGUOUS)).unwrap();
    assert_eq!(run.runs().len(), 1, "a run out of the caches' memory");
}

#[test]
fn a_promise_takes_memory_of_caches_if_there_is_enough() {
    let Some(running) = Running::new(8, settings(0)) else { return };
    let cache = open(&running, "promised", 8);
    fill_to(&running, &cache, 4000, 8);
    let client = running.client();
    let lease = client.lease(wish(2, Flags::default())).unwrap();
    assert_eq!(stat(&running, "cached_bytes"), 6 * brick());
    for contiguous in [false, true] {
        let wanted = wish(8, Flags { contiguous, ..Flags::default() });
        let refused = client.promise(wanted).unwrap_err();
        assert!(matches!(refused, LeaseError::Refused { errno: 12, .. }), "{refused}");
        assert_eq!(stat(&running, "cached_bytes"), 6 * brick(), "in vain");
    }
    let promise = client.promise(wish(6, Flags::default())).unwrap();
    assert_eq!(stat(&running, "cached_bytes"), 0);
    drop(lease);
    assert_eq!(promise.take().unwrap().len(), Bytes::new(6 * brick()));
}

#[test]
fn the_last_lease_that_a_user_may_have_takes_memory_of_caches() {
    let zeroing = Bytes::new(4 * brick());
    let quota = Quota { leases: 1, zeroing, ..Quota::default() };
    let Some(running) = Running::new(8, Settings { quota, ..settings(0) }) else { return };
    let cache = open(&running, "last", 8);
    // A place costs zeroing, so the cache fills slowly.
    wait_until("the cache has all memory", Duration::from_secs(20), || {
        fill(&cache, 4000);
        stat(&running, "cached_bytes") == 8 * brick()
    });
    let client = running.client();
    let is_had = || client.lease(wish(3, Flags::default())).is_ok();
    wait_until("the user may have the daemon zero again", Duration::from_secs(10), is_had);
}

#[test]
fn a_small_cache_gets_memory_of_a_larger_one() {
    let Some(running) = Running::new(8, settings(0)) else { return };
    let large = open(&running, "large", 8);
    fill_to(&running, &large, 4000, 8);
    let small = open(&running, "small", 8);
    wait_until("the small cache has memory", Duration::from_secs(10), || {
        fill(&small, 4000);
        let rows = running.client().list().unwrap();
        let row = rows.iter().find(|row| row.name.as_str() == "small").unwrap();
        row.bytes >= 3 * brick() && found(&small, 4000) > 0 && found(&large, 4000) > 0
    });
}

#[test]
fn an_unused_cache_loses_its_memory() {
    let idle = Settings { cache_idle: Duration::from_millis(50), ..settings(0) };
    let Some(running) = Running::new(4, idle) else { return };
    let cache = open(&running, "idle", 4);
    wait_until("the cache has memory", PATIENCE, || fill(&cache, 10) > 0);
    wait_until("the memory is back", Duration::from_secs(10), || {
        stat(&running, "cached_bytes") == 0
    });
    wait_until("and comes when it is used", Duration::from_secs(10), || {
        fill(&cache, 10);
        found(&cache, 10) > 0
    });
}

#[test]
fn a_cache_goes_on_with_the_next_daemon() {
    let Some(mut running) = Running::new(4, settings(0)) else { return };
    let cache = open(&running, "goes on", 4);
    fill_wholly(&cache, 100);
    assert_eq!(found(&cache, 100), 100);
    drop(running.daemon.take());
    assert_eq!((found(&cache, 100), fill(&cache, 10)), (0, 0), "no daemon, no memory");
    let settings = Settings { path: running.path.clone(), ..settings(0) };
    running.daemon = Some(Daemon::start(&running.reserve, settings).unwrap());
    wait_until("the cache finds the daemon", Duration::from_secs(10), || fill(&cache, 10) > 0);
    let other = open(&running, "goes on", 4);
    wait_until("both have the new daemon's", PATIENCE, || found(&other, 10) > 0);
}

#[test]
fn what_a_cache_cannot_do_is_said() {
    let Some(running) = Running::new(4, settings(0)) else { return };
    let options = || SharedCache::options().socket(&running.path);
    for name in ["", "a\nb", &"x".repeat(33)] {
        let refused = options().open(name).unwrap_err();
        assert!(matches!(refused, CacheError::BadName { .. }), "{refused}");
    }
    let refused = options().size(Bytes::ZERO).open("empty").unwrap_err();
    assert!(matches!(refused, CacheError::BadSize { .. }), "{refused}");
    let cache = open(&running, "limited", 1);
    put(&cache, b"key", b"value");
    let refused = cache.put(b"key", &vec![0; cache.limit() - 2]).unwrap_err();
    let shown = format!("{} bytes; the cache \"limited\" has room for", cache.limit() + 1);
    assert!(refused.to_string().contains(&shown), "{refused}");
    assert!(!cache.get(b"key", &mut Vec::new()), "the older value must not stay");
    let (longest, mut found) = (vec![7; cache.limit() - 3], Vec::new());
    put(&cache, b"key", &longest);
    assert!(cache.get(b"key", &mut found) && found == longest);
    let refused = cache.put(&vec![0; 65_537], b"").unwrap_err();
    assert!(refused.to_string().contains("has room for 65536 bytes"), "{refused}");
    let all: Vec<SharedCache> = (1..64).map(|nth| open(&running, &nth.to_string(), 1)).collect();
    match answered(|| options().open("one more")) {
        Err(CacheError::Lease(LeaseError::Refused { errno: 122, limit, .. })) => {
            assert_eq!(limit, Bytes::new(64));
        }
        other => panic!("{other:?}"),
    }
    drop(all);
}

/// Stores and reads for ever; says what it finds wrong.
fn worker() {
    let path = std::env::var_os(PATH).unwrap();
    let options = SharedCache::options().size(Bytes::new(6 * brick())).socket(path);
    let cache = answered(|| options.clone().open("killed")).unwrap();
    let own = std::process::id();
    println!("ready");
    let mut value = Vec::new();
    for round in 0_u32.. {
        let key = round.wrapping_mul(own) % 600;
        if round % 3 == 0 {
            let _ = cache.put(&key.to_le_bytes(), &value_of(key, round)).unwrap();
        } else if cache.get(&key.to_le_bytes(), &mut value) {
            let nth = u32::from_le_bytes(*value[4..].first_chunk().unwrap());
            if value != value_of(key, nth) {
                println!("wrong value of key {key}");
            }
        }
    }
}

fn started(running: &Running) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut command = child_of("caches::killed_workers_leave_no_broken_value");
    let mut child = command.env(PATH, &running.path).stdout(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("ready") {
        line.clear();
        assert!(out.read_line(&mut line).unwrap() > 0, "the worker starts");
    }
    (child, out)
}

#[test]
fn killed_workers_leave_no_broken_value() {
    if is_child() {
        return worker();
    }
    let Some(running) = Running::new(8, settings(1)) else { return };
    let mut workers: Vec<_> = (0..3).map(|_| started(&running)).collect();
    let client = Client::connect_to(&running.path, "leases").unwrap();
    for round in 0..if is_long() { 300 } else { 20 } {
        let lease = client.lease(wish(1 + round % 6, Flags::default()));
        std::thread::sleep(Duration::from_millis(3));
        drop(lease);
        let (mut child, mut out) = workers.remove(0);
        assert!(child.try_wait().unwrap().is_none(), "a worker died by itself");
        child.kill().unwrap();
        child.wait().unwrap();
        let mut said = String::new();
        out.read_to_string(&mut said).unwrap();
        assert!(!said.contains("wrong"), "{said}");
        workers.push(started(&running));
    }
    for (mut child, mut out) in workers {
        child.kill().unwrap();
        child.wait().unwrap();
        let mut said = String::new();
        out.read_to_string(&mut said).unwrap();
        assert!(!said.contains("wrong"), "{said}");
    }
    let cache = open(&running, "killed", 6);
    put(&cache, b"key", b"value");
    assert!(cache.get(b"key", &mut Vec::new()));
}

#[test]
fn a_recall_takes_caches_before_revocable_leases_and_those_take_no_caches() {
    let Some(running) = Running::new(8, settings(0)) else { return };
    let cache = open(&running, "before", 3);
    let keys = (3 * brick() / LEN as u64) as u32;
    wait_until("the cache has memory", PATIENCE, || fill(&cache, keys) > 0);
    let filled = stat(&running, "cached_bytes") / brick();
    assert!(filled > 0);
    let client = running.client();
    let refused = client.lease(wish(8, REVOCABLE)).unwrap_err();
    assert!(matches!(refused, LeaseError::Refused { errno: 12, .. }), "{refused}");
    assert_eq!(stat(&running, "cache_taken_total"), 0);
    let kept = client.lease(wish(8 - filled, REVOCABLE)).unwrap();
    let patient = running.client().patience(PATIENCE);
    drop(patient.lease(wish(filled, Flags::default())).unwrap());
    assert_eq!(stat(&running, "cache_taken_total"), filled);
    assert_eq!(kept.recalled(Duration::ZERO).unwrap(), None);
    drop(patient.lease(wish(filled + 1, Flags::default())).unwrap());
    assert!(kept.recalled(PATIENCE).is_ok_and(|notice| notice.is_some()));
}

/// Runs a test where the kernel hides frames from the daemon, also from one of root.
fn without_frames(test: fn()) {
    let run = move || {
        let mut sets = capabilities(None).unwrap();
        sets.effective.remove(CapabilitySet::SYS_ADMIN);
        set_capabilities(None, sets).unwrap();
        test();
    };
    // The other threads keep the capability.
    std::thread::spawn(run).join().unwrap();
}

#[test]
fn a_run_that_nobody_can_prove_takes_no_memory_of_caches() {
    without_frames(|| {
        let grow = Bytes::new(4 * brick());
        let growing = Settings { grow, ..settings(0) };
        let Some(running) = Running::with_room(4, 8, growing) else { return };
        let cache = open(&running, "kept", 4);
        wait_until("the cache has memory", PATIENCE, || fill(&cache, 2000) > 0);
        let (client, page) = (running.client(), 2 << 20);
        let filled = stat(&running, "cached_bytes");
        let aligned = Wish { align: 2 * page, ..wish(1, Flags::default()) };
        for wanted in [wish(2, CONTIGUOUS), aligned] {
            let leased = client.lease(wanted).map(drop);
            let promised = client.promise(wanted).map(drop);
            for refused in [leased.unwrap_err(), promised.unwrap_err()] {
                assert_eq!(errno_of(&refused), ENOMEM, "{refused}");
                let why = "only 2 MiB are known to be adjacent";
                assert!(refused.to_string().contains(why), "{refused}");
            }
        }
        assert_eq!([stat(&running, "cached_bytes"), stat(&running, "grown_bytes")], [filled, 0]);
        let one = client.lease(wish(1, CONTIGUOUS));
        assert_eq!(one.is_ok(), brick() == page, "{one:?}");
    });
}

/// Returns a daemon of 8 bricks, half of them a cache's, and the lock of the pools. Memory comes
/// back when that lock is free.
fn half_cached(name: &str) -> Option<(Running, SharedCache, PoolLock)> {
    if effective_user() != 0 {
        println!("skipped: this user cannot change the pool, so it needs no lock");
        return None;
    }
    let running = Running::new(8, settings(0))?;
    let cache = open(&running, name, 4);
    fill_to(&running, &cache, 4000, 4);
    Some((running, cache, PoolLock::acquire().unwrap()))
}

#[test]
fn memory_that_caches_give_up_is_not_for_a_revocable_lease() {
    let Some((running, _cache, lock)) = half_cached("given up") else { return };
    let (client, other) = (running.client(), running.client());
    std::thread::scope(|scope| {
        let all = scope.spawn(|| client.lease(wish(8, Flags::default())).map(|lease| lease.len()));
        let is_asked = || stat(&running, "cache_taken_total") == 4;
        wait_until("the request waits for the cache's memory", PATIENCE, is_asked);
        let refused = other.lease(wish(1, REVOCABLE)).map(drop);
        drop(lock);
        assert_eq!(errno_of(&refused.unwrap_err()), EAGAIN);
        assert_eq!(all.join().unwrap().unwrap(), Bytes::new(8 * brick()));
    });
}

#[test]
fn a_revocable_request_does_not_wait_for_what_caches_have() {
    let Some((running, _cache, lock)) = half_cached("not idle") else { return };
    let client = running.client();
    drop(client.lease(wish(2, Flags::default())).unwrap());
    wait_until("it ended", PATIENCE, || stat(&running, "returning_bytes") == 2 * brick());
    let [less, more] = [4, 8].map(|bricks| client.lease(wish(bricks, REVOCABLE)).map(drop));
    drop(lock);
    assert_eq!([less, more].map(|it| errno_of(&it.unwrap_err())), [EAGAIN, ENOMEM]);
}
