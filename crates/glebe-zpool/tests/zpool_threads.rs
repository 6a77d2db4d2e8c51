//! Runs threads on one pool: each changes its own objects and reads all objects. An object's number
//! and version determine its bytes, so readers notice bytes of another object or version.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use glebe_os::internal::sys::page_size;
use glebe_os::units::{Bytes, Pages};
use glebe_testing::time::is_long;
use glebe_zpool::{
    AtLimit, Budget, Codec, Error, Guard, Handle, ObjectPool, Options, Rules, Table,
};

const THREADS: u64 = 4;
const OBJECTS: usize = 600;
/// Rounds of a thread; `GLEBE_LONG` doubles them.
const ROUNDS: u64 = 20_000;

struct Rng(u64);

impl Rng {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % end
    }
}

fn bytes_of(whose: u64, version: u64, len: usize, buf: &mut Vec<u8>) {
    let tag = whose << 40 | version;
    buf.clear();
    buf.extend(tag.to_le_bytes());
    buf.extend(
        (8..len as u64).map(|at| (tag.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u8 ^ at as u8),
    );
}

/// Returns the object's number, and asserts that all its bytes are from one version.
fn whose(bytes: &[u8]) -> u64 {
    let tag = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    let mut expected = Vec::new();
    bytes_of(tag >> 40, tag & ((1 << 40) - 1), bytes.len(), &mut expected);
    assert_eq!(bytes, expected, "bytes of several objects");
    tag >> 40
}

struct Shared {
    pool: ObjectPool,
    /// The raw handle by thread and object, or zero.
    handles: Vec<AtomicU64>,
    evicts: bool,
}

fn handle_at(shared: &Shared, at: usize) -> Option<Handle> {
    Handle::from_raw(shared.handles[at].load(Ordering::Acquire))
}

fn look(shared: &Shared, at: usize, buf: &mut [u8]) {
    let Some(handle) = handle_at(shared, at) else { return };
    match shared.pool.read(handle, buf) {
        Ok(len) => assert_eq!(whose(&buf[..len]), at as u64, "another object's bytes"),
        Err(Error::Stale) => {}
        Err(error) => panic!("{error}"),
    }
}

fn change(shared: &Shared, rng: &mut Rng, at: usize, version: u64, bytes: &mut Vec<u8>) {
    let pool = &shared.pool;
    // Few lengths let slots be reused soon.
    let len = [48, 320, 1000, 1360, 2500, page_size().bytes().as_usize()][rng.below(6) as usize];
    bytes_of(at as u64, version, len, bytes);
    match handle_at(shared, at) {
        None => {
            let handle = pool.insert(bytes).unwrap();
            shared.handles[at].store(handle.to_raw(), Ordering::Release);
        }
        Some(handle) if rng.below(2) == 0 => match pool.replace(handle, bytes) {
            Ok(()) => {}
            Err(Error::Stale) if shared.evicts => shared.handles[at].store(0, Ordering::Release),
            Err(error) => panic!("{error}"),
        },
        Some(handle) => {
            match pool.remove(handle) {
                Ok(()) => assert!(matches!(pool.get(handle), Err(Error::Stale))),
                Err(Error::Stale) => assert!(shared.evicts),
                Err(error) => panic!("{error}"),
            }
            shared.handles[at].store(0, Ordering::Release);
        }
    }
}

fn worker(shared: &Shared, thread: u64, tables: &[Table]) {
    let mut rng = Rng(thread + 1);
    let (mut buf, mut bytes) = (vec![0; page_size().bytes().as_usize()], Vec::new());
    let mut held: Vec<(Guard, u64)> = Vec::new();
    for round in 0..if is_long() { 2 * ROUNDS } else { ROUNDS } {
        let own = thread as usize * OBJECTS + rng.below(OBJECTS as u64) as usize;
        let any = rng.below(THREADS * OBJECTS as u64) as usize;
        match rng.below(32) {
            0..=11 => change(shared, &mut rng, own, round, &mut bytes),
            12 => {
                let guard = handle_at(shared, any).and_then(|handle| shared.pool.get(handle).ok());
                held.extend(guard.map(|guard| (guard, any as u64)));
            }
            13 => held.drain(..).for_each(|(guard, at)| assert_eq!(whose(&guard), at)),
            14 if round % 8 == 0 => {
                shared.pool.compact(Budget::Pages(Pages::new(4))).unwrap();
            }
            15 if round % 512 == 0 && !tables.is_empty() => {
                let table = &tables[rng.below(tables.len() as u64) as usize];
                // Classes that are being emptied still count, so there may be too many.
                match shared.pool.set_table(table) {
                    Ok(()) | Err(Error::Classes { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            _ => look(shared, any, &mut buf),
        }
    }
    held.drain(..).for_each(|(guard, at)| assert_eq!(whose(&guard), at));
}

fn run(options: Options, evicts: bool, tables: &[Table]) {
    let handles = (0..THREADS as usize * OBJECTS).map(|_| AtomicU64::new(0)).collect();
    let shared = Shared { pool: options.build().unwrap(), handles, evicts };
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let compactor = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                shared.pool.compact(Budget::All).unwrap();
                thread::yield_now();
            }
        });
        let shared = &shared;
        let workers: Vec<_> =
            (0..THREADS).map(|n| scope.spawn(move || worker(shared, n, tables))).collect();
        let ends: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        stop.store(true, Ordering::Relaxed);
        compactor.join().unwrap();
        ends.into_iter().for_each(|end| end.unwrap());
    });
    let pool = &shared.pool;
    pool.stats().check().unwrap();
    let there: Vec<Handle> = (0..shared.handles.len())
        .filter_map(|at| {
            let handle = handle_at(&shared, at)?;
            let there = pool.get(handle).is_ok_and(|bytes| whose(&bytes) == at as u64);
            assert!(there || evicts, "an object is gone");
            there.then_some(handle)
        })
        .collect();
    assert_eq!(pool.stats().objects, there.len() as u64);
    there.into_iter().for_each(|handle| pool.remove(handle).unwrap());
    pool.compact(Budget::All).unwrap();
    let stats = pool.stats();
    stats.check().unwrap();
    assert_eq!(stats.objects, 0);
}

#[test]
fn nobody_sees_another_objects_bytes() {
    run(ObjectPool::options().codec(Codec::None), false, &[]);
}

#[test]
fn nor_where_objects_are_evicted() {
    run(
        ObjectPool::options()
            .codec(Codec::None)
            .limit(Bytes::mib(1))
            .at_limit(AtLimit::EvictOldest),
        true,
        &[],
    );
}

#[test]
fn nor_while_tables_change() {
    let table = |chain, merge| {
        let rules = Rules { chain: Pages::new(chain), merge, ..Rules::of_page(page_size()) };
        Table::by_rules(&rules).unwrap()
    };
    run(
        ObjectPool::options().codec(Codec::None),
        false,
        &[table(1, true), table(4, true), table(8, true)],
    );
}
