//! Fault tests: the n-th kernel call of a test body fails, for many or all n. A test body (a
//! *life*) makes, uses and drops one part of the library, such as a reserve or a store. A *walk*
//! repeats a test body with one fault after the other.
//!
//! Whichever kernel call fails: a library call succeeds or says what was refused, no byte is wrong,
//! and no mapping, descriptor, thread or page of the pool leaks. If a kernel call that frees
//! something fails, the next run of the test body must free it.
//!
//! Faults and resources are counted for the whole process, so each test has its own process.

#[allow(dead_code)]
#[path = "../contig/pool.rs"]
mod pool;

mod area;
mod bytes;
mod cache;
mod cut_short;
mod denied;
mod files;
mod footing;
mod foreign;
mod hugetlb;
mod lent;
mod lock_file;
mod paged;
mod reclaim;
mod reserve;
mod resized;
mod scrambled;
mod shared;
mod swap;
mod views;
mod volatile;
mod walk;
mod zpool;

use std::error::Error;

use glebe::contig::{Contig, Source};
use glebe::reserve::Reserve;
use glebe::units::{Bytes, Pages};
use glebe::volatile::Engine;
use glebe_testing::alone;

use reserve::{live, GRANULE, LEN, ONE};
use walk::{walk_all, walk_once};

type Outcome = Result<(), Box<dyn Error>>;

/// The first error of a test body, which becomes its outcome.
struct Errors<E>(Option<E>);

impl<E: Error + 'static> Errors<E> {
    fn new() -> Self {
        Self(None)
    }

    fn keep<T>(&mut self, result: Result<T, E>) -> Option<T> {
        result.map_err(|error| self.0.get_or_insert(error)).ok()
    }

    fn outcome(self) -> Outcome {
        self.0.map_or(Ok(()), |error| Err(error.into()))
    }
}

/// Runs many test bodies once, so that the heap grows.
fn live_all_else() {
    let dir = files::folder("all");
    let dir = dir.path();
    let plain = || Contig::options().source(Source::Plain);
    let lives: [&dyn Fn() -> Outcome; 12] = [
        &views::live,
        &zpool::live,
        &lent::live,
        &|| swap::live(None),
        &|| swap::live(Some(dir)),
        &|| paged::live(true, Some(dir)),
        &|| paged::live(false, None),
        &|| shared::live(None),
        &|| reclaim::tree(dir).map_err(Into::into).and_then(|()| reclaim::live(dir)),
        &|| cache::live(Engine::Scan),
        &|| live(plain(), LEN, ONE),
        &|| resized::live(plain()),
    ];
    footing::steady();
    for life in lives {
        let _ = life();
    }
}

#[test]
fn views() {
    alone!();
    walk_all(None, "views", views::live);
}

#[test]
fn compressed_object_pool() {
    alone!();
    walk_all(None, "compressed-object pool", zpool::live);
}

#[test]
fn pool_on_lent_pages() {
    alone!();
    walk_all(None, "pool on lent pages", lent::live);
}

#[test]
fn store() {
    alone!();
    walk_all(None, "store", || swap::live(None));
}

#[test]
fn store_with_a_file() {
    alone!();
    let dir = files::folder("store");
    walk_all(None, "store with a file", || swap::live(Some(dir.path())));
}

#[test]
fn area() {
    alone!();
    walk_all(None, "area", || area::live(None));
}

#[test]
fn area_with_a_file() {
    alone!();
    let dir = files::folder("area");
    walk_all(None, "area with a file", || area::live(Some(dir.path())));
}

#[test]
fn paged_region_that_moves() {
    alone!();
    walk_all(None, "paged region, moves", || paged::live(true, None));
}

#[test]
fn paged_region_that_moves_with_a_file() {
    alone!();
    let dir = files::folder("paged");
    walk_all(None, "paged region, moves, with a file", || paged::live(true, Some(dir.path())));
}

#[test]
fn paged_region_without_moves() {
    alone!();
    walk_all(None, "paged region, no moves", || paged::live(false, None));
}

#[test]
fn paged_region_without_moves_with_a_file() {
    alone!();
    let dir = files::folder("paged");
    walk_all(None, "paged region, no moves, with a file", || paged::live(false, Some(dir.path())));
}

#[test]
fn shared_file() {
    alone!();
    walk_all(None, "shared file", || shared::live(None));
}

#[test]
fn shared_file_with_a_name() {
    alone!();
    let dir = match files::in_memory("shared") {
        Ok(dir) => dir,
        Err(why) => return println!("skipped: no tmpfs: {why}"),
    };
    let path = dir.path().join("file");
    if let Err(why) = shared::create(&path) {
        return println!("skipped: {why}");
    }
    walk_all(None, "shared file with a name", || shared::live(Some(&path)));
}

#[test]
fn reclaimer() {
    alone!();
    let root = files::folder("reclaim");
    reclaim::tree(root.path()).unwrap();
    walk_all(None, "reclaimer", || reclaim::live(root.path()));
}

fn walk_cache(engine: Engine) {
    match cache::live(engine) {
        Ok(()) => walk_all(None, &format!("cache, {engine}"), || cache::live(engine)),
        Err(error) => println!("skipped: {engine} engine: {error}"),
    }
}

#[test]
fn cache_scan() {
    alone!();
    walk_cache(Engine::Scan);
}

#[test]
fn cache_tag() {
    alone!();
    walk_cache(Engine::Tag);
}

#[test]
fn base_pages() {
    alone!();
    let life = || live(Contig::options().source(Source::Plain), LEN, Pages::ZERO);
    walk_all(None, "base pages", life);
}

#[test]
fn grows_and_shrinks() {
    alone!();
    walk_all(None, "grows and shrinks", || resized::live(Contig::options().source(Source::Plain)));
}

#[test]
fn transparent_huge_pages_and_a_thread_that_zeroes() {
    alone!();
    if let Err(why) = Contig::options().source(Source::Thp).build(LEN) {
        return println!("skipped: {why}");
    }
    let life = || live(Contig::options().source(Source::Thp), LEN, ONE);
    walk_all(None, "transparent huge pages", life);
}

#[test]
fn populating_by_threads() {
    alone!();
    let len = Bytes::mib(66); // two slices
    let life = || {
        let contig = Contig::options().source(Source::Plain).threads(3).build(len)?;
        drop(Reserve::options().build_on(contig)?);
        Ok(())
    };
    let seen = walk_once(None, "populating by threads", life);
    assert!(seen.errors > 0, "every fault was made up for");
}

#[test]
fn statistics_that_are_served() {
    alone!();
    let scratch = files::folder("served");
    let dir = scratch.path().join("stats");
    let life = || {
        let _ = std::fs::remove_dir_all(&dir); // a socket stays if unlink failed
        let contig = Contig::options().source(Source::Plain).build(GRANULE)?;
        let reserve = Reserve::options().build_on(contig)?;
        reserve.serve_stats_in(&dir)?;
        Ok(())
    };
    walk_all(None, "statistics that are served", life);
}
