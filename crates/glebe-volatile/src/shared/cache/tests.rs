//! Tests words that only another process could have written.

use super::*;

const KEY: &[u8] = b"key";

fn cache(patience: Duration) -> SharedCache {
    let page = page_size().bytes();
    let shared = Shared::options().create(Bytes::new(page.get() * 9)).unwrap();
    let options = SharedCache::options().entry(page).patience(patience);
    SharedCache::over(Arc::new(shared), options).unwrap()
}

fn writers(cache: &SharedCache) -> [Writer; 2] {
    let joined = cache.shared.joined().unwrap();
    [0, 1].map(|gone| Writer::new(joined.holder, joined.since + gone))
}

fn put(cache: &SharedCache, slot: u64, hash: u64, state: SlotState) {
    cache.hash_of(slot).store(hash, Ordering::SeqCst);
    cache.word(cache.places.state_at(slot)).store(state.0, Ordering::SeqCst);
}

fn is_claimed_beside(cache: &SharedCache, slot: u64, phase: SlotPhase) -> bool {
    let hash = cache.hash(KEY);
    put(cache, slot, hash, SlotState(0).with(phase));
    let is_claimed = cache.claim(hash).unwrap().is_some();
    put(cache, slot, 0, SlotState(0));
    is_claimed
}

#[test]
fn of_two_that_claim_one_hash_one_builds() {
    let cache = cache(Duration::from_millis(5));
    let [lives, dead] = writers(&cache);
    for (slot, phase, is_claimed) in [
        (0, SlotPhase::Claimed(lives), false),
        (0, SlotPhase::Building(lives), false),
        (0, SlotPhase::Claimed(dead), true),
        (7, SlotPhase::Building(lives), false),
        (7, SlotPhase::Building(dead), true),
        // The new claim waits until the patience ends.
        (7, SlotPhase::Claimed(lives), false),
    ] {
        assert_eq!(is_claimed_beside(&cache, slot, phase), is_claimed, "{slot} {phase:?}");
    }
    assert!((0..8).all(|slot| cache.state(slot).phase() == SlotPhase::Empty));
}

#[test]
fn the_lower_waits_until_the_upper_gives_way() {
    let cache = cache(Duration::from_secs(60));
    let ([lives, _], hash) = (writers(&cache), cache.hash(KEY));
    put(&cache, 7, hash, SlotState(0).with(SlotPhase::Claimed(lives)));
    std::thread::scope(|scope| {
        let claim = scope.spawn(|| cache.claim(hash).unwrap().is_some());
        while !matches!(cache.state(0).phase(), SlotPhase::Claimed(_)) {
            std::thread::yield_now();
        }
        put(&cache, 7, hash, SlotState(0));
        assert!(claim.join().unwrap());
    });
}

#[test]
fn what_was_written_for_another_key_or_turn_is_not_found() {
    let cache = cache(Duration::ZERO);
    let mut value = Vec::new();
    let build = |value: &mut Vec<u8>| {
        value.extend_from_slice(b"value");
        Ok::<_, ()>(())
    };
    cache.get_or_build(KEY, &mut value, build).unwrap();
    let hash = cache.hash(KEY);
    let slot = (0..8).find(|slot| cache.hash_of(*slot).load(Ordering::SeqCst) == hash).unwrap();
    let state = cache.state(slot);
    let mut find = |key: &[u8], state: SlotState| {
        put(&cache, slot, cache.hash(key), state);
        cache.find(key, cache.hash(key), &mut value).unwrap() == Found::Hit
    };
    assert!(find(KEY, state));
    let claim = cache.claim(hash).unwrap();
    assert!(claim.is_some() && find(KEY, state));
    drop(claim);
    assert!(!find(b"yek", state) && !find(b"", state));
    let SlotPhase::Kept(len) = state.phase() else { panic!("{state:?}") };
    let [lives, _] = writers(&cache);
    assert!(!find(KEY, state.claimed(lives).with(SlotPhase::Kept(len))));
    for len in [0, 1, 8, 11, len - 1, len + 1, 4096, 4097, u32::MAX] {
        assert!(!find(KEY, state.with(SlotPhase::Kept(len))), "{len}");
    }
    assert!(find(KEY, state));
    cache.shared.purge(cache.shared.len(), Priority::HIGHEST).unwrap();
    assert!(!find(KEY, state));
}
