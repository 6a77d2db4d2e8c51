//! Passes non-resident pages of a region to other parts of the library. Each touch runs the
//! region's code in the middle of the other part's code.

use glebe::reserve::{Put, Reserve};
use glebe::swap::cache::SwapCache;
use glebe::zpool::{Codec, ObjectPool, Zstd};

use super::*;

const LEN: u64 = 192;

/// Both regions have few resident pages.
struct Cold {
    source: Region,
    target: Region,
}

impl Cold {
    fn new(options: &SwapOptions) -> Option<Self> {
        let made = || region_of(options.clone().pool_limit(Bytes::mib(64)), LEN, 16);
        let (source, target) = (made()?, made()?);
        fill(&source, 1);
        fill(&target, 3);
        Some(Self { source, target })
    }

    fn bytes(&self, first: u64, count: u64) -> &[u8] {
        let at = self.source.as_ptr().wrapping_add(pages(first).as_usize());
        // SAFETY: the pages are in a live region, whose bytes no longer change.
        unsafe { std::slice::from_raw_parts(at, pages(count).as_usize()) }
    }

    fn is_same(&self, first: u64, count: u64, read: impl FnOnce(&mut [u8])) {
        let at = self.target.as_ptr().wrapping_add(pages(first).as_usize());
        // SAFETY: the pages are in a live region, and `to` is the region's only slice.
        let to = unsafe { std::slice::from_raw_parts_mut(at, pages(count).as_usize()) };
        read(to);
        assert!(to == self.bytes(first, count), "{count} pages from page {first} on");
    }
}

fn each(test: impl Fn(&Cold, Codec)) {
    let zstd = || Codec::Zstd(Zstd::default());
    for (of_region, of_part) in [
        (Codec::Lz4, Codec::None),
        (Codec::Lz4, Codec::Lz4),
        (Codec::Lz4, zstd()),
        (zstd(), zstd()),
    ] {
        let Some(cold) = Cold::new(&Store::options().codec(of_region)) else { return };
        test(&cold, of_part);
    }
}

#[test]
fn a_page_cache_takes_and_gives_them() {
    glebe_testing::alone!();
    each(|cold, codec| {
        let reserve = Reserve::options().page_cache(codec).build(Bytes::mib(4)).unwrap();
        let cache = reserve.page_cache().namespace("cold").unwrap();
        for at in 0..LEN {
            assert_eq!(cache.put(1, at, cold.bytes(at, 1)).unwrap(), Put::Stored);
        }
        assert_eq!(cache.put_run(2, 0, cold.bytes(0, LEN)).unwrap(), Put::Stored);
        for at in 0..LEN {
            cold.is_same(at, 1, |to| assert!(cache.get(1, at, to).unwrap(), "page {at}"));
        }
        cold.is_same(0, LEN, |to| assert!(cache.get_run(2, 0, to).unwrap()));
    });
}

#[test]
fn pools_of_objects_take_and_give_them() {
    glebe_testing::alone!();
    each(|cold, codec| {
        let reserve = Reserve::new(Bytes::mib(4)).unwrap();
        let lent = reserve.object_pool().codec(codec.clone()).build().unwrap();
        let own = ObjectPool::options().codec(codec).limit(Bytes::mib(8)).build().unwrap();
        for at in 0..LEN {
            let (bytes, len) = (cold.bytes(at, 1), page());
            let (of_own, of_lent) = (own.insert(bytes).unwrap(), lent.insert(bytes).unwrap());
            cold.is_same(at, 1, |to| assert_eq!(own.read(of_own, to).unwrap(), len));
            own.replace(of_own, cold.bytes(LEN - 1 - at, 1)).unwrap();
            cold.is_same(LEN - 1 - at, 1, |to| assert_eq!(own.read(of_own, to).unwrap(), len));
            cold.is_same(at, 1, |to| assert_eq!(lent.read(of_lent, to).unwrap(), Some(len)));
        }
    });
}

#[test]
fn stores_and_areas_take_and_give_them() {
    glebe_testing::alone!();
    let dir = std::env::temp_dir();
    each(|cold, codec| {
        let options = || Store::options().codec(codec.clone()).pool_limit(Bytes::mib(8));
        let store = options().build(pages(64)).unwrap();
        let keys: Vec<_> =
            (0..LEN).step_by(32).map(|at| store.insert(cold.bytes(at, 32)).unwrap()).collect();
        let cache = SwapCache::with_limit(Bytes::mib(1)).unwrap().codec(codec.clone());
        let area = cache.area(Pages::new(LEN), &dir, Bytes::mib(8)).unwrap();
        area.store_all((0..LEN).map(|at| (at, cold.bytes(at, 1)))).unwrap();
        for (at, key) in (0..LEN).step_by(32).zip(keys) {
            cold.is_same(at, 32, |to| to.copy_from_slice(&store.take(key).unwrap()));
        }
        for at in 0..LEN {
            cold.is_same(at, 1, |to| assert!(area.load(at, to).unwrap(), "page {at}"));
        }
    });
}

#[test]
fn other_memory_takes_and_gives_them() {
    glebe_testing::alone!();
    let Some(cold) = Cold::new(&Store::options()) else { return };
    let Some(region) = region_of(Store::options(), LEN, 16) else { return };
    region.write_at(Bytes::ZERO, cold.bytes(0, LEN)).unwrap();
    cold.is_same(0, LEN, |to| region.read_at(Bytes::ZERO, to).unwrap());
    // Copies the region onto itself.
    cold.source.write_at(Bytes::ZERO, cold.bytes(0, LEN)).unwrap();
    cold.is_same(0, LEN, |to| cold.source.read_at(Bytes::ZERO, to).unwrap());

    match glebe::volatile::Region::options().build(pages(LEN)) {
        Ok(marked) => {
            marked.write(Bytes::ZERO, cold.bytes(0, LEN)).unwrap();
            cold.is_same(0, LEN, |to| marked.read(Bytes::ZERO, to).unwrap());
        }
        Err(error) => println!("skipped: {error}"),
    }
}
