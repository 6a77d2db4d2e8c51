//! Tests what clients see of a daemon that is stopped (SIGSTOP) under load.

use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use glebe::cache::{CacheError, SharedCache};
use glebe::lease::{Client, LeaseError};
use glebe::Bytes;
use glebe_testing::time::wait_until;
use glebe_testing::turn::{Turn, POOL};
use glebe_testing::Scratch;

use super::leases::lending;
use super::{patience, wait_until_stopped};

const KEYS: u32 = 2000;

fn hits(cache: &SharedCache) -> u32 {
    let mut value = Vec::new();
    let is_hit = |key: &u32| {
        let is_hit = cache.get(&key.to_le_bytes(), &mut value);
        assert!(!is_hit || value == key.to_le_bytes().repeat(1000), "key {key}");
        is_hit
    };
    (0..KEYS).filter(is_hit).count() as u32
}

/// Opens a cache. Repeats that while the daemon does not answer within 200 ms.
fn opened(socket: &Path) -> SharedCache {
    let options = SharedCache::options().socket(socket).size(Bytes::mib(32));
    let begin = Instant::now();
    loop {
        match options.clone().open("stopped") {
            Err(CacheError::Lease(LeaseError::Silent { .. })) if begin.elapsed() < patience() => {}
            opened => return opened.unwrap(),
        }
    }
}

#[test]
fn a_stopped_daemon_holds_up_no_cache_and_a_lease_until_it_goes_on() {
    let (_turn, scratch) = (Turn::alone(POOL), Scratch::new("stopped"));
    let Some((server, socket)) = lending(&scratch, "64") else { return };
    let cache = opened(Path::new(&socket));
    let store = |key: u32| cache.put(&key.to_le_bytes(), &key.to_le_bytes().repeat(1000)).unwrap();
    let mut there = 0;
    // A cache whose daemon does not answer within 200 ms stores and finds nothing for a while.
    wait_until("values are there", Duration::from_secs(20), || {
        let stored = (0..KEYS / 4).filter(|key| store(*key)).count() as u32;
        there = hits(&cache);
        0 < there && there <= stored
    });
    let client = Client::connect_to(Path::new(&socket), "stopped").unwrap();
    server.signal("STOP");
    wait_until_stopped(server.pid());
    assert_eq!(hits(&cache), there, "hits need no daemon");
    let (told, answer) = mpsc::channel();
    let lease = std::thread::spawn(move || {
        let lease = client.lease(Bytes::mib(4));
        told.send(()).unwrap();
        lease.map(|lease| lease.len())
    });
    // The cache asks for a place without memory once, and then makes a pause.
    let begin = Instant::now();
    for _ in 0..20 {
        let _ = (0..KEYS).filter(|key| store(*key)).count();
    }
    assert!(begin.elapsed() < patience(), "puts wait for the daemon");
    assert!(answer.recv_timeout(Duration::from_millis(50)).is_err(), "who leased memory?");
    server.signal("CONT");
    answer.recv_timeout(patience()).expect("the lease is given");
    assert_eq!(lease.join().unwrap().unwrap(), Bytes::mib(4));
    wait_until("the cache has memory again", Duration::from_secs(20), || {
        let stored = (0..KEYS).filter(|key| store(*key)).count() as u32;
        stored >= KEYS / 2 && hits(&cache) > KEYS / 4
    });
}
