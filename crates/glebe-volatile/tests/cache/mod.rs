#![allow(unsafe_code)] // Safety: each module that makes children states its reasons.

mod builders;
mod fork;
mod pressure;
mod threads;

use std::convert::Infallible;

use glebe_os::units::Bytes;
use glebe_volatile::{Cache, CacheOptions, Engine};

type Words = Cache<u64, u64>;

fn caches(addresses: Bytes, options: &CacheOptions<u64, u64>) -> Vec<Words> {
    let made = [Engine::Scan, Engine::Tag].map(|engine| {
        let cache = options.clone().engine(engine).build(addresses);
        cache.inspect_err(|why| println!("skipped: engine {engine}: {why}")).ok()
    });
    let caches: Vec<_> = made.into_iter().flatten().collect();
    assert!(!caches.is_empty(), "no engine at all");
    caches
}

fn build(key: u64) -> impl FnOnce(&mut [u64]) -> Result<(), Infallible> {
    move |words| {
        (0..).zip(words).for_each(|(nth, word)| *word = word_of(key, nth));
        Ok(())
    }
}

fn word_of(key: u64, nth: u64) -> u64 {
    (key << 32 | nth).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn is_of(words: &[u64], key: u64) -> bool {
    (0..).zip(words).all(|(nth, word)| *word == word_of(key, nth))
}
