//! A hash join of two tables that together take four times a store's budget.
//!
//! Both tables are cut by key into partitions, lists of objects in a [`Store`]. The join needs only
//! one partition of each table in memory at a time.

use std::collections::HashMap;
use std::io::{stdout, Write};
use std::time::{Duration, Instant};

use glebe::swap::{Key, Store, SwapError};
use glebe::Bytes;

const BUDGET: Bytes = Bytes::mib(8);
const ROWS: u64 = 1 << 20;
const PARTITIONS: u64 = 64;
const CHUNK: usize = 4096;

type Row = (u64, u64);

/// Returns rows in pseudo-random order. Each key occurs twice.
fn table(seed: u64) -> impl Iterator<Item = Row> {
    (0..ROWS).map(move |row| ((row * 0x9e37_79b1 + seed) % (ROWS / 2), row ^ seed))
}

fn partition_of(row: Row) -> usize {
    (row.0 % PARTITIONS) as usize
}

fn to_bytes(rows: &[Row]) -> Vec<u8> {
    rows.iter().flat_map(|row| [row.0.to_le_bytes(), row.1.to_le_bytes()]).flatten().collect()
}

fn rows_of(bytes: &[u8]) -> impl Iterator<Item = Row> + '_ {
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    bytes.chunks_exact(16).map(move |row| (number(&row[..8]), number(&row[8..])))
}

/// The number of pairs, and an order-independent sum.
#[derive(Debug, Default, PartialEq, Eq)]
struct Joined(u64, u64);

fn join(left: impl Iterator<Item = Row>, right: impl Iterator<Item = Row>, to: &mut Joined) {
    let mut by_key: HashMap<u64, Vec<u64>> = HashMap::new();
    left.for_each(|(key, number)| by_key.entry(key).or_default().push(number));
    for (key, number) in right {
        for other in by_key.get(&key).into_iter().flatten() {
            *to = Joined(to.0 + 1, to.1.wrapping_add((other ^ number).wrapping_mul(key)));
        }
    }
}

fn partitioned(store: &Store, rows: impl Iterator<Item = Row>) -> Result<Vec<Vec<Key>>, SwapError> {
    let mut open = vec![Vec::with_capacity(CHUNK); PARTITIONS as usize];
    let mut stored = vec![Vec::new(); PARTITIONS as usize];
    for row in rows {
        let (open, stored) = (&mut open[partition_of(row)], &mut stored[partition_of(row)]);
        open.push(row);
        if open.len() == CHUNK {
            stored.push(store.insert(&to_bytes(open))?);
            open.clear();
        }
    }
    for (open, stored) in open.iter().zip(&mut stored).filter(|(open, _)| !open.is_empty()) {
        stored.push(store.insert(&to_bytes(open))?);
    }
    Ok(stored)
}

fn join_in(store: &Store) -> Result<(Joined, Duration), SwapError> {
    let begin = Instant::now();
    let (left, right) = (partitioned(store, table(1))?, partitioned(store, table(2))?);
    let mut joined = Joined::default();
    for (left, right) in left.iter().zip(&right) {
        let pinned = |keys: &[Key]| keys.iter().map(|key| store.pin(*key)).collect::<Vec<_>>();
        let left_pins = pinned(left).into_iter().collect::<Result<Vec<_>, _>>()?;
        let right_pins = pinned(right).into_iter().collect::<Result<Vec<_>, _>>()?;
        let left_rows = left_pins.iter().flat_map(|pin| rows_of(pin));
        join(left_rows, right_pins.iter().flat_map(|pin| rows_of(pin)), &mut joined);
        drop((left_pins, right_pins));
        // The contents of these objects are never needed again.
        left.iter().chain(right).try_for_each(|key| store.dead(*key))?;
    }
    Ok((joined, begin.elapsed()))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = Store::options().file_in(std::env::temp_dir(), Bytes::mib(64)).build(BUDGET)?;
    let (joined, time) = join_in(&store)?;
    let stats = store.stats();
    let data = stats.created_pages * glebe::page_size().bytes().get() / BUDGET.get();
    assert!(data >= 4 && stats.resident <= stats.budget, "{stats}");

    let begin = Instant::now();
    let mut expected = Joined::default();
    join(table(1), table(2), &mut expected);
    let plain = begin.elapsed();
    assert_eq!(joined, expected);
    writeln!(
        stdout(),
        "{} pairs of data of {data} budgets: {time:.2?}, all in memory {plain:.2?}; {} loads, {} \
         from the file; at most {} of objects in memory",
        joined.0,
        stats.loaded,
        stats.read_back,
        BUDGET
    )?;
    Ok(stats.check()?)
}
