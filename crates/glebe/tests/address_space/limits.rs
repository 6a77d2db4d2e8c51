//! Tests `ulimit -v` (address space) and `ulimit -d` (data).

use glebe::internal::sys::machine::meminfo;
use glebe::units::{Bytes, Pages};
use glebe::vmap::Space;
use glebe::volatile::Region;
use glebe::zpool::{AtLimit, Error, ObjectPool};

use super::{limit, status};

fn leave(more: Bytes) -> Bytes {
    let all = status("VmSize") + more;
    limit(libc::RLIMIT_AS, all);
    all
}

fn holds(pool: &ObjectPool, len: Bytes) {
    let mut state = 1_u64;
    let mut object = [0_u8; 4000];
    for _ in 0..=len.get() / object.len() as u64 {
        for byte in &mut object {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = (state >> 56) as u8;
        }
        pool.insert(&object).unwrap();
    }
}

#[test]
fn a_default_pool_takes_the_addresses_that_there_are() {
    glebe_testing::alone!();
    for more in [Bytes::gib(8), Bytes::gib(1), Bytes::mib(128), Bytes::mib(32)] {
        let all = leave(more);
        let before = meminfo::available().unwrap();
        let pool = ObjectPool::options().build().unwrap_or_else(|error| panic!("{more}: {error}"));
        let left = all.saturating_sub(status("VmSize"));
        println!("{left} of {more} left");
        // A pool that needs no more than there is takes what it needs. Other tests use memory.
        let fits = before.min(meminfo::available().unwrap()).get() * 2 < more.get();
        assert!(fits || left.get() >= more.get() / 4, "{left} of {more} left for others");
        holds(&pool, Bytes::new(more.get().min(256 << 20) / 16));
    }
}

#[test]
fn a_default_pool_that_may_evict_goes_on() {
    glebe_testing::alone!();
    leave(Bytes::mib(64));
    let pool = ObjectPool::options().at_limit(AtLimit::EvictOldest).build().unwrap();
    holds(&pool, Bytes::mib(128));
    assert!(pool.held() < Bytes::mib(64) && pool.stats().evicted > 0);
}

#[test]
fn a_pool_with_a_limit_fits_into_little_more() {
    glebe_testing::alone!();
    leave(Bytes::mib(128));
    let pool = ObjectPool::options().limit(Bytes::mib(64)).build().unwrap();
    holds(&pool, Bytes::mib(56));
}

#[test]
fn what_does_not_fit_names_the_limit() {
    glebe_testing::alone!();
    let all = leave(Bytes::mib(128));
    let named = |text: String| {
        println!("{text}");
        assert!(text.contains("RLIMIT_AS") && text.contains(&all.to_string()), "{text}");
    };
    named(ObjectPool::options().limit(Bytes::gib(1)).build().unwrap_err().to_string());
    named(Space::new(Bytes::gib(1)).unwrap_err().to_string());
    named(Region::options().build(Bytes::gib(1)).unwrap_err().to_string());
}

#[test]
fn a_pool_takes_memory_as_it_grows() {
    glebe_testing::alone!();
    // RLIMIT_DATA counts the pages of objects, but not reserved addresses.
    limit(libc::RLIMIT_DATA, status("VmData") + Bytes::mib(64));
    let pool = ObjectPool::options().build().unwrap();
    holds(&pool, Bytes::mib(16));
    let page = vec![0_u8; Pages::new(1).bytes(glebe::page_size()).as_usize()];
    let mut nth = 0_u64;
    let refused = loop {
        let mut object = page.clone();
        object.chunks_exact_mut(8).for_each(|word| {
            nth = nth.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            word.copy_from_slice(&(nth ^ nth >> 31).to_ne_bytes());
        });
        if let Err(error) = pool.insert(&object) {
            break error;
        }
        assert!(pool.held() < Bytes::mib(65), "{} held", pool.held());
    };
    assert!(matches!(refused, Error::Os(_)), "{refused}");
    assert!(refused.to_string().contains("RLIMIT_DATA"), "{refused}");
}
