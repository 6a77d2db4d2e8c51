//! Measures the cost of pins, as medians of several turns.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use glebe::swap::{Key, Store};
use glebe::units::Bytes;
use glebe::zpool::ObjectPool;

use super::{bytes_of, page, pages, Matter};
use glebe_testing::stressed::mix;

const TURNS: usize = 15;
const OBJECTS: u64 = 8192;
const FAULTS: u64 = 16384;

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn time(count: u64, mut call: impl FnMut(u64)) -> f64 {
    let begin = Instant::now();
    (0..count).for_each(&mut call);
    begin.elapsed().as_nanos() as f64 / count as f64
}

/// Returns a page that compresses to half, like C headers and libraries.
fn half_of(n: u64) -> Vec<u8> {
    let (noise, text) = (bytes_of(n, page(), Matter::Noise), bytes_of(n, page(), Matter::Text));
    let from = |at: usize| if at / 64 % 2 == 0 { noise[at] } else { text[at] };
    (0..page()).map(from).collect()
}

fn store(budget: u64, keeps_copies: bool) -> (Store, Vec<Key>) {
    let options = Store::options().pool_limit(Bytes::mib(64)).keep_copies(keeps_copies);
    let store = options.build(pages(budget)).unwrap();
    let keys = (0..OBJECTS).map(|n| store.insert(&half_of(n)).unwrap()).collect();
    (store, keys)
}

pub fn measure() {
    let (hot, hot_keys) = store(OBJECTS, true);
    let (kept, kept_keys) = store(OBJECTS / 2, true);
    let (fresh, fresh_keys) = store(OBJECTS / 2, false);
    let (written, written_keys) = store(OBJECTS / 2, true);
    let pool = ObjectPool::options().limit(Bytes::mib(64)).build().unwrap();
    let handles: Vec<_> = (0..OBJECTS).map(|n| pool.insert(&half_of(n)).unwrap()).collect();
    let few: Vec<Key> = hot_keys[..64].to_vec();
    let words: Vec<AtomicU64> = (0..64 * 8).map(|_| AtomicU64::new(0)).collect();
    let rows = [
        "two atomic operations on a word",
        "hot pin and unpin, 64 objects",
        "hot pin and unpin, 32 MiB at random",
        "hot pin_mut and unpin, 64 objects",
        "cold pin, copies kept",
        "cold pin, no copies kept",
        "cold pin_mut",
        "page fault and memset",
        "zpool insert and remove (LZ4)",
        "zpool read (LZ4)",
    ];
    let mut times = vec![Vec::new(); rows.len()];
    let mut buf = vec![0; page()];
    for turn in 0..TURNS {
        let mut now = Vec::new();
        now.push(time(1 << 20, |n| {
            let word = &words[n as usize % 64 * 8];
            let seen = word.load(Ordering::Acquire);
            let order = (Ordering::AcqRel, Ordering::Acquire);
            black_box(word.compare_exchange_weak(seen, seen + 1, order.0, order.1)).unwrap();
            word.fetch_sub(1, Ordering::Release);
        }));
        now.push(time(1 << 20, |n| {
            black_box(hot.pin(few[n as usize % 64]).unwrap()[0]);
        }));
        now.push(time(1 << 18, |n| {
            black_box(hot.pin(hot_keys[(mix(n) % OBJECTS) as usize]).unwrap()[0]);
        }));
        now.push(time(1 << 18, |n| {
            black_box(hot.pin_mut(few[n as usize % 64]).unwrap()[0]);
        }));
        // Pins twice as many objects as fit, in order, so each pin is cold.
        now.push(time(OBJECTS, |n| {
            black_box(kept.pin(kept_keys[n as usize]).unwrap()[0]);
        }));
        now.push(time(OBJECTS, |n| {
            black_box(fresh.pin(fresh_keys[n as usize]).unwrap()[0]);
        }));
        now.push(time(OBJECTS, |n| {
            black_box(written.pin_mut(written_keys[n as usize]).unwrap()[0]);
        }));
        // The vector exceeds every threshold of malloc, so it is mapped, touched and unmapped.
        let len = FAULTS as usize * page();
        now.push(time(1, |_| drop(black_box(vec![turn as u8 + 1; len]))) / FAULTS as f64);
        let objects: Vec<Vec<u8>> = (0..512).map(half_of).collect();
        now.push(time(512, |n| {
            let handle = pool.insert(&objects[n as usize]).unwrap();
            pool.remove(handle).unwrap();
        }));
        now.push(time(OBJECTS, |n| {
            black_box(pool.read(handles[n as usize], &mut buf).unwrap());
        }));
        times.iter_mut().zip(now).for_each(|(times, now)| times.push(now));
    }
    for (row, times) in rows.iter().zip(times) {
        println!("{row:<36} {:>10.1} ns", median(times));
    }
    println!("{}\n{}\n{}", kept.stats(), fresh.stats(), written.stats());
}
