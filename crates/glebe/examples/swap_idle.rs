//! Uses an idle reserve as a cache for a store's file. The objects take four times the store's
//! budget. The reserve keeps copies until first class takes the memory. Also measures encryption.

use std::error::Error;
use std::io::{stdout, Write};
use std::time::{Duration, Instant};

use glebe::reserve::Reserve;
use glebe::swap::cache::SwapCache;
use glebe::swap::{Key, Store};
use glebe::units::Bytes;

const OBJECTS: u64 = 1024;
const LEN: u64 = 64 << 10;

/// Returns an object that compresses to about half.
fn object(n: u64) -> Vec<u8> {
    let mut word = n;
    let mut next = |at: u64| {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(at);
        if at % 16 < 8 {
            n
        } else {
            word ^ word >> 32
        }
    };
    (0..LEN / 8).flat_map(|at| next(at).to_le_bytes()).collect()
}

fn read_all(what: &str, store: &Store, keys: &[Key]) -> Result<(), Box<dyn Error>> {
    let before = store.stats();
    let mut times = Vec::new();
    for (n, key) in keys.iter().enumerate() {
        let (loaded, begun) = (store.stats().loaded, Instant::now());
        let pin = store.pin(*key)?;
        let took = begun.elapsed();
        assert!(*pin == *object(n as u64), "object {n}");
        if store.stats().loaded > loaded {
            times.push(took);
        }
    }
    times.sort_unstable();
    let after = store.stats();
    let median = times.get(times.len() / 2).copied().unwrap_or(Duration::ZERO);
    let (idle, file) = (after.loaded_idle - before.loaded_idle, after.read_back - before.read_back);
    let from = format!("{idle:5} from the reserve, {file:5} from the file");
    Ok(writeln!(stdout(), "{what:42} {from}, median {median:?}")?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let reserve = Reserve::new(Bytes::mib(64))?;
    let cache = SwapCache::on(&reserve)?;
    let store = Store::options()
        .pool_limit(Bytes::mib(1))
        .file_in(std::env::temp_dir(), Bytes::mib(128))
        .cached_in(&cache)
        .build(Bytes::new(OBJECTS * LEN / 4))?;
    let keys: Vec<_> = (0..OBJECTS).map(|n| store.insert(&object(n))).collect::<Result<_, _>>()?;
    read_all("the reserve is idle", &store, &keys)?;

    let lent = reserve.stats().live;
    let begun = Instant::now();
    let block = reserve.alloc(reserve.largest_run()?)?;
    let took = begun.elapsed();
    let pages = block.pages();
    writeln!(stdout(), "first class takes {pages} of which {lent} were lent, in {took:?}")?;
    read_all("first class has it", &store, &keys)?;

    drop(block);
    read_all("idle again: what is read comes back to it", &store, &keys)?;
    read_all("and is there", &store, &keys)?;
    store.stats().check()?;
    drop(store);

    let plain =
        Store::options().pool_limit(Bytes::mib(1)).file_in(std::env::temp_dir(), Bytes::mib(128));
    for (what, options) in
        [("a plain file alone", plain.clone()), ("an encrypted one", plain.encrypted())]
    {
        let store = options.build(Bytes::new(OBJECTS * LEN / 4))?;
        let begun = Instant::now();
        let keys: Vec<_> =
            (0..OBJECTS).map(|n| store.insert(&object(n))).collect::<Result<_, _>>()?;
        writeln!(stdout(), "{what:42} filled in {:?}", begun.elapsed())?;
        read_all(what, &store, &keys)?;
    }
    Ok(())
}
