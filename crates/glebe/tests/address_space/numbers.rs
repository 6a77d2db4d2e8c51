//! Tests the largest and smallest arguments, and those next to a limit.

use std::sync::Arc;
use std::time::Duration;

use glebe::contig::{explain, Contig, Source};
use glebe::extent::Extent;
use glebe::internal::without_moves;
use glebe::page_size;
use glebe::reserve::{Request, Reserve};
use glebe::swap::cache::SwapCache;
use glebe::swap::{Store, SwapError};
use glebe::units::{Bytes, Pages};
use glebe::vmap::{MemFile, Space};
use glebe::volatile::{Priority, Region};
use glebe::zpool::{Budget, ObjectPool, Rules, TableChoice};
use glebe_testing::time::is_long;

use super::{limit, sealed, sealed_areas, status};

#[test]
fn a_large_limit_makes_a_large_pool() {
    glebe_testing::alone!();
    let mib = 1 << 20;
    for limit in [8 * mib - 1, 8 * mib, 1 << 32, 1 << 63, u64::MAX - 1, u64::MAX] {
        let pool = ObjectPool::options().limit(Bytes::new(limit)).build();
        let pool = pool.unwrap_or_else(|error| panic!("{limit:#x}: {error}"));
        for nth in 0_u64..2000 {
            pool.insert(&nth.to_ne_bytes()).unwrap_or_else(|e| panic!("{limit:#x}: {e}"));
        }
    }
}

const NUMBERS: [u64; 13] = [
    0,
    1,
    2,
    (1 << 31) - 1,
    1 << 40,
    (1 << 51) + 1,
    (1 << 52) - 1,
    1 << 52,
    (1 << 63) - 1,
    1 << 63,
    u64::MAX - 4096,
    u64::MAX - 1,
    u64::MAX,
];

fn pages_and_bytes() -> impl Iterator<Item = (Pages, Bytes)> {
    NUMBERS.into_iter().map(|number| (Pages::new(number), Bytes::new(number)))
}

#[test]
fn no_number_is_too_large_to_be_refused() {
    glebe_testing::alone!();
    // With this limit the kernel refuses large lengths that the library accepts.
    limit(libc::RLIMIT_AS, status("VmSize") + Bytes::gib(1));
    zpool();
    reserve();
    contig();
    views();
    volatile();
    swap();
}

fn zpool() {
    let pool = ObjectPool::options().build().unwrap();
    let handle = pool.insert(b"an object").unwrap();
    for (pages, bytes) in pages_and_bytes() {
        let _ = pool.compact(Budget::Pages(pages));
        let _ = pool.compact(Budget::Time(Duration::from_nanos(bytes.get())));
        if pool.set_limit(bytes).is_ok() {
            assert!(pool.held() <= bytes);
            let _ = pool.insert(&[7; 100]);
        }
        for limit in [bytes, Bytes::new(bytes.get().saturating_add(pool.held().get()))] {
            if let Ok(small) = ObjectPool::options().limit(limit).build() {
                let _ = small.insert(b"an object");
            }
        }
        for rules in [
            Rules { step: bytes, ..Rules::of_page(page_size()) },
            Rules { min: bytes, ..Rules::of_page(page_size()) },
            Rules { chain: pages, ..Rules::of_page(page_size()) },
        ] {
            let _ =
                ObjectPool::options().limit(Bytes::mib(8)).table(TableChoice::Rules(rules)).build();
        }
    }
    assert_eq!(pool.get(handle).unwrap().to_vec(), b"an object");
}

fn reserve() {
    let options = || Contig::options().source(Source::Plain);
    let made = Reserve::options().memory(options()).build(Bytes::mib(2)).unwrap();
    let all = made.len();
    for (pages, bytes) in pages_and_bytes() {
        for align in NUMBERS.into_iter().map(Pages::new).chain([Pages::new(4)]) {
            let _ = made.alloc(Request::new(pages).align(align));
            let _ = made.alloc(Request::new(Pages::new(3)).align(align));
            let _ = made.try_alloc(Request::new(pages).align(align));
            let _ = made.promise(Request::new(pages).align(align));
            let _ = made.alloc(Request::new(pages).align(align).any());
            let _ = made.alloc(Request::new(Pages::new(1)).align(align).zeroed());
        }
        let _ = made.object_pool().staging(bytes).build().map(|pool| pool.insert(b"an object"));
        if bytes >= Bytes::gib(2) || bytes == Bytes::ZERO {
            assert!(Reserve::options().memory(options()).build(bytes).is_err(), "{bytes}");
        }
        let ahead = Reserve::options().zero_ahead(pages).memory(options()).build(Bytes::mib(2));
        drop(ahead.unwrap().alloc(Pages::new(1)).unwrap());
    }
    for pages in [all - Pages::new(1), all, all + Pages::new(1)] {
        let asked = made.alloc(Request::new(pages).any());
        assert_eq!(asked.is_ok(), pages <= all, "{pages}");
    }
    made.stats().check().unwrap();
}

fn contig() {
    let few = Bytes::new(3 * page_size().bytes().get());
    let plain = || Contig::options().source(Source::Plain).pin(false);
    // A short test gives `explain` fewer numbers, because it may read every frame of the machine.
    let every = if is_long() { 1 } else { 3 };
    for (_, bytes) in pages_and_bytes().step_by(every) {
        let _ = explain(bytes);
    }
    for (_, bytes) in pages_and_bytes() {
        let _ = plain().align(bytes).build(few);
        let _ = plain().require_run(bytes).build(few);
        let _ = plain().prefer_run(bytes).build(few);
        let _ = plain().search(bytes).build(few);
        let _ = plain().at(bytes.get() as usize).build(few);
        for align in (12..64).map(|shift| Bytes::new(1 << shift)) {
            let built = plain().align(align).build(bytes);
            assert!(bytes < Bytes::gib(2) || built.is_err(), "{bytes} at a multiple of {align}");
        }
        if bytes >= Bytes::gib(2) || bytes == Bytes::ZERO {
            assert!(plain().build(bytes).is_err(), "{bytes}");
            assert!(plain().mappable().build(bytes).is_err(), "{bytes}");
            assert!(Contig::options().source(Source::Thp).build(bytes).is_err(), "{bytes}");
            let huge = Contig::options().source(Source::HUGETLB_2M).grow_pool(false);
            assert!(huge.build(bytes).is_err(), "{bytes}");
        }
    }
}

fn views() {
    let file = Arc::new(MemFile::new(Bytes::mib(1)).unwrap());
    let end = file.len().unwrap().pages_down(page_size()).get();
    for (pages, bytes) in pages_and_bytes() {
        let _ = MemFile::new(bytes);
        if bytes >= Bytes::gib(2) || bytes == Bytes::ZERO {
            assert!(Space::new(bytes).is_err(), "{bytes}");
        }
        let space = Space::options().lazy_max(bytes).build(Bytes::mib(2)).unwrap();
        let _ = space.view(&file, &[Extent::new(0, 1).unwrap()]);
        for extent in [Extent::new(pages.get(), 1), Extent::new(1, pages.get())] {
            let Some(extent) = extent else { continue };
            let viewed = space.view(&file, &[extent, extent]);
            assert!(viewed.is_err() || extent.end() <= end, "{extent:?}");
        }
    }
    let space = Space::new(Bytes::mib(2)).unwrap();
    let view = space.view(&file, &[Extent::new(0, end).unwrap()]).unwrap();
    for (_, bytes) in pages_and_bytes() {
        let fits = bytes < view.len();
        assert_eq!(view.read(bytes, &mut [0]).is_ok(), fits, "{bytes}");
        assert_eq!(view.write(bytes, &[1]).is_ok(), fits, "{bytes}");
    }
    assert!(space.view(&file, &[Extent::new(0, end + 1).unwrap()]).is_err());
}

fn volatile() {
    let page = page_size().bytes();
    let len = Bytes::new(16 * page.get());
    let region = match Region::options().build(len) {
        Ok(region) => region,
        Err(error) => return println!("skipped: {error}"),
    };
    for (_, bytes) in pages_and_bytes() {
        if bytes >= Bytes::gib(2) || bytes == Bytes::ZERO {
            assert!(Region::options().build(bytes).is_err(), "{bytes}");
        }
        for range in [bytes..len, Bytes::ZERO..bytes, bytes..Bytes::new(u64::MAX), len..bytes] {
            let fits = range.start < range.end && range.end <= len;
            let _ = region.mark(range.clone(), Priority::NORMAL).map(|()| assert!(fits));
            let _ = region.drop_now(range.clone()).map(|_| assert!(fits));
            let _ = region.unmark(range).map(|_| assert!(fits));
        }
        assert_eq!(region.read(bytes, &mut [0]).is_ok(), bytes < len, "{bytes}");
        assert_eq!(region.write(bytes, &[1]).is_ok(), bytes < len, "{bytes}");
        let options = Region::options().cap(bytes).max_age(Duration::from_nanos(bytes.get()));
        if let Ok(capped) = options.build(len) {
            capped.mark(Bytes::ZERO..len, Priority::NORMAL).unwrap();
            let _ = capped.unmark(Bytes::ZERO..len).unwrap();
        }
    }
}

const TOO_MANY: Pages = Pages::new((1 << 28) + 1);

fn swap() {
    let (dir, mib) = (std::env::temp_dir(), Bytes::mib(1));
    let page = vec![7; page_size().bytes().as_usize()];
    let cache = SwapCache::with_limit(Bytes::mib(8)).unwrap();
    for (pages, bytes) in pages_and_bytes().chain([(TOO_MANY, mib)]) {
        for cache in [cache.clone(), sealed_areas(cache.clone())] {
            for made in [
                cache.area(pages, &dir, mib),
                cache.area(pages, &dir, bytes),
                cache.area_without_file(pages),
            ] {
                let is_refused =
                    matches!(made, Err(SwapError::AreaPages { given, .. }) if given == pages);
                assert_eq!(is_refused, pages == Pages::ZERO || pages >= TOO_MANY, "{pages}");
            }
        }
        if let Ok(area) = cache.area(Pages::new(16), &dir, bytes) {
            let _ = area.store(0, &page);
            let _ = area.set_write_back(bytes);
            let _ = area.set_put_back(bytes);
            let _ = area.clean(bytes);
            assert!(area.store(bytes.get(), &page).is_err() || bytes.get() < 16);
            assert!(area.invalidate_page(bytes.get()).is_err() || bytes.get() < 16);
        }
        if let Ok(cache) = SwapCache::with_limit(bytes) {
            let _ = cache.area_without_file(Pages::new(1)).map(|area| area.store(0, &page));
        }
        of_store(&cache, bytes);
        of_region(bytes);
    }
}

fn of_store(cache: &SwapCache, bytes: Bytes) {
    let (dir, mib) = (std::env::temp_dir(), Bytes::mib(1));
    let cached = || Store::options().file_in(&dir, bytes).cached_in(cache);
    for made in [
        Store::with_budget(bytes),
        Store::options().capacity(bytes).build(mib),
        Store::options().capacity(bytes).build(bytes),
        Store::options().pool_limit(bytes).build(mib),
        sealed(Store::options().file_in(&dir, bytes)).build(mib),
        cached().build(mib),
        cached().capacity(bytes).build(mib),
    ] {
        let Ok(store) = made else { continue };
        let inserted = store.insert(b"an object");
        let _ = store.create(bytes.get() as usize).map(drop);
        let _ = store.set_pool_limit(bytes);
        let _ = store.set_budget(bytes);
        if let Ok(key) = inserted {
            assert_eq!(*store.pin(key).unwrap(), *b"an object");
        }
        store.stats().check().unwrap();
    }
}

fn of_region(bytes: Bytes) {
    let mib = Bytes::mib(1);
    let _ = Store::options().build_region(bytes, bytes);
    let _ = Store::options().build_region(bytes, mib);
    let region = match Store::options().build_region(mib, mib) {
        Ok(region) => region,
        Err(error) => return println!("skipped: {error}"),
    };
    for (offset, len) in [(bytes, mib), (Bytes::ZERO, bytes), (bytes, bytes), (mib, bytes)] {
        let end = u128::from(offset.get()) + u128::from(len.get());
        let fits = end <= u128::from(mib.get());
        assert_eq!(region.cold(offset, len).is_ok(), fits, "{len} at {offset}");
        assert_eq!(region.will_need(offset, len).is_ok(), fits, "{len} at {offset}");
        assert_eq!(region.discard(offset, len).is_ok(), fits, "{len} at {offset}");
        let _ = region.resident(offset, len).map(|_| assert!(fits));
    }
    assert_eq!(region.read_at(bytes, &mut [0]).is_ok(), bytes < mib);
    assert_eq!(region.write_at(bytes, &[1]).is_ok(), bytes < mib);
    let _ = region.set_budget(bytes);
    region.stats().check().unwrap();
}

const LITTLE: Bytes = Bytes::mib(16);

fn taken<T>(what: &str, make: impl FnOnce() -> Result<T, SwapError>) {
    let before = status("VmRSS");
    match make() {
        Ok(_made) => {
            let came = status("VmRSS").saturating_sub(before);
            println!("{what}: {came} present");
            assert!(came <= LITTLE, "{what}: {came} present");
        }
        Err(error) => println!("skipped: {what}: {error}"),
    }
}

#[test]
fn swap_takes_memory_for_what_was_touched() {
    glebe_testing::alone!();
    let dir = std::env::temp_dir();
    let options = || Store::options().pool_limit(Bytes::mib(4));
    for (len, options) in [
        (Bytes::gib(64), options()),
        (Bytes::gib(64), without_moves(options())),
        (Bytes::gib(64), options().file_in(&dir, Bytes::mib(64))),
        (Bytes::gib(1024), options()),
    ] {
        taken(&format!("a region of {len}"), || {
            let region = options.build_region(len, Bytes::mib(8))?;
            for at in [0, len.get() / 3, len.get() - 8] {
                region.write_at(Bytes::new(at), &at.to_ne_bytes())?;
                let mut word = [0; 8];
                region.read_at(Bytes::new(at), &mut word)?;
                assert_eq!(u64::from_ne_bytes(word), at);
            }
            Ok(region)
        });
    }
    let cache = SwapCache::with_limit(Bytes::mib(8)).unwrap();
    taken("an area of 1 TiB", || {
        let area = cache.area_without_file(Pages::new(1 << 28))?;
        let page = vec![7; page_size().bytes().as_usize()];
        for at in [0, 1 << 27, (1 << 28) - 1] {
            area.store(at, &page)?;
            assert!(area.load(at, &mut page.clone())?);
        }
        Ok(area)
    });
    taken("a store of 1 TiB", || {
        let store = options().capacity(Bytes::gib(1024)).build(Bytes::mib(8))?;
        store.insert(b"an object")?;
        Ok(store)
    });
}
