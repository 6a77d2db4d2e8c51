//! Tests an object pool on lent pages in several threads, while blocks take pages back and are
//! overwritten. A read returns the bytes put, or the object is lost.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use glebe::internal::with_writers;
use glebe::page_size;
use glebe::reserve::{LentObjectPool, OnRecall, Request, Reserve, Writers};
use glebe::units::Pages;
use glebe::zpool::{Codec, Error, Handle};
use glebe_testing::time::is_long;

const LEN: Pages = Pages::new(2048);
const OBJECTS: usize = 512;
const ROUNDS: u64 = 20_000;

/// Returns how many times as long as 4 KiB a page is.
fn scale() -> u64 {
    page_size().bytes().get() >> 12
}

fn bytes_of(seed: u64) -> Vec<u8> {
    let words = (20 + (seed.wrapping_mul(0x9e37_79b9) >> 7) as usize % 230) * scale() as usize;
    let word = |at: usize| (seed ^ (at as u64) << 48).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..words).flat_map(|at| [word(at & !3).to_le_bytes(), seed.to_le_bytes()]).flatten().collect()
}

fn work(pool: &LentObjectPool, thread: u64, found: &AtomicU64, lost: &AtomicU64) {
    let mut mine: Vec<Option<(Handle, u64)>> = vec![None; OBJECTS];
    let mut buf = vec![0; 1 << 16];
    let mut state = thread + 1;
    for round in 0..if is_long() { 2 * ROUNDS } else { ROUNDS } / scale() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let slot = (state >> 33) as usize % OBJECTS;
        let Some((handle, seed)) = mine[slot] else {
            let seed = thread << 32 | round;
            match pool.insert(&bytes_of(seed)) {
                Ok(handle) => mine[slot] = Some((handle, seed)),
                Err(Error::Full { .. }) => {}
                Err(other) => panic!("{other}"),
            }
            continue;
        };
        match pool.read(handle, &mut buf) {
            Ok(Some(len)) => {
                assert!(buf[..len] == bytes_of(seed), "other bytes than were put");
                found.fetch_add(1, Ordering::Relaxed);
            }
            Ok(None) | Err(Error::Stale) => {
                lost.fetch_add(1, Ordering::Relaxed);
                mine[slot] = None;
                continue;
            }
            Err(other) => panic!("{other}"),
        }
        if state >> 62 == 0 {
            let removed = pool.remove(handle);
            assert!(matches!(removed, Ok(()) | Err(Error::Stale)), "{removed:?}");
            mine[slot] = None;
        }
    }
}

fn run(writers: Writers, codec: Codec, on_recall: OnRecall) {
    let reserve = with_writers(Reserve::options(), writers).build(LEN.bytes(page_size())).unwrap();
    let options = reserve.object_pool().staging(Pages::new(1).bytes(page_size())).codec(codec);
    let pool = options.on_recall(on_recall).build().unwrap();
    let (found, lost, end) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut nth = 0_u64;
            while !end.load(Ordering::Relaxed) {
                nth += 1;
                let pages = [1, 3, 100, 512, 700, 1900][nth as usize % 6];
                if let Ok(mut block) = reserve.alloc(Request::new(Pages::new(pages)).any()) {
                    block.bytes_mut().unwrap().fill(nth as u8);
                    thread::yield_now();
                    let bytes = block.bytes().unwrap();
                    assert!(bytes.iter().all(|byte| *byte == nth as u8), "a block was written");
                }
                thread::yield_now();
            }
        });
        let workers: Vec<_> = (0..3)
            .map(|n| {
                scope.spawn({
                    let (pool, found, lost) = (&pool, &found, &lost);
                    move || work(pool, n, found, lost)
                })
            })
            .collect();
        let ended: Vec<_> = workers.into_iter().map(thread::ScopedJoinHandle::join).collect();
        end.store(true, Ordering::Relaxed);
        ended.into_iter().for_each(|worker| worker.unwrap());
    });
    let (found, lost) = (found.into_inner(), lost.into_inner());
    assert!(found > 0 && lost > 0, "{found} found, {lost} lost");
    pool.sweep(1 << 16).unwrap();
    pool.stats().check().unwrap();
    reserve.stats().check().unwrap();
    drop(pool);
    // The drop of the pool must not have freed pages that blocks took back before.
    let all = reserve.alloc(Request::new(reserve.len()).any()).unwrap();
    assert_eq!(reserve.stats().live, Pages::ZERO);
    drop(all);
    reserve.stats().check().unwrap();
}

#[test]
fn threads_read_what_was_put_or_nothing() {
    run(Writers::Restartable, Codec::None, OnRecall::Discard);
    #[cfg(feature = "lz4")]
    run(Writers::Restartable, Codec::Lz4, OnRecall::Discard);
    run(Writers::Restartable, Codec::None, OnRecall::Move);
}

#[test]
fn threads_read_what_was_put_or_nothing_where_writers_are_counted() {
    run(Writers::Counted, Codec::None, OnRecall::Discard);
}
