//! [`live`] makes a cache in volatile memory, fills it, drops marked values, builds them again, and
//! clears the cache.
//!
//! After the cache is made, a failed call may cost a kept value, but each value belongs to its key
//! and no lookup fails.

use std::convert::Infallible;

use glebe::page_size;
use glebe::units::Pages;
use glebe::volatile::{Cache, Engine};

use super::bytes::page_of;
use super::Outcome;

const KEYS: u64 = 8;
const PAGES: usize = 3;

fn is_of(value: &[u8], key: u64) -> bool {
    value.chunks_exact(page_size().bytes().as_usize()).all(|page| page == page_of(key))
}

fn look_up(cache: &Cache<u64, u8>, key: u64) {
    let len = PAGES * page_size().bytes().as_usize();
    let build = |value: &mut [u8]| {
        assert!(value.iter().all(|byte| *byte == 0), "key {key}: not zeros");
        value.fill(page_of(key)[0]);
        Ok::<_, Infallible>(())
    };
    let entry = cache.get_or_build(key, len, build).unwrap();
    assert!(entry.len() == len && is_of(&entry, key), "key {key}");
}

pub fn live(engine: Engine) -> Outcome {
    let bytes = |pages| Pages::new(pages).bytes(page_size());
    let options = Cache::<u64, u8>::options().engine(engine).hot(bytes(4));
    // This cache is too small for all values.
    let cache = options.build(bytes(20))?;
    (0..KEYS).for_each(|key| look_up(&cache, key));
    cache.offer_all();
    let dropped = cache.drop_marked();
    (0..KEYS).for_each(|key| look_up(&cache, key));
    for key in 0..KEYS {
        assert!(cache.get(&key).is_none_or(|entry| is_of(&entry, key)), "key {key}");
        cache.remove(&(key / 2));
    }
    cache.clear();
    assert_eq!((cache.len(), cache.stats().kept), (0, Pages::ZERO));
    cache.stats().check()?;
    (0..KEYS).for_each(|key| look_up(&cache, key));
    dropped?;
    Ok(())
}
