//! Tests that reach internals.
#![allow(unsafe_code)] // Safety: the forked child allocates nothing.

mod stress;

use super::policy::WritePolicy;
use super::*;
use std::path::Path;

use crate::reserve::Reserve;
use crate::swap::copies::Copy;
use crate::swap::error::SwapError;
use crate::swap::kept::Kept;
use glebe_os::internal::sync::Ordering;
use glebe_os::internal::sys::page_size;
use glebe_os::units::{Bytes, Pages};
use glebe_testing::child::in_child;

const WRITES: u64 = 1;
const READS: u64 = 2;

fn page() -> usize {
    page_size().bytes().as_usize()
}

fn len_of(pages: u64) -> Bytes {
    Pages::new(pages).bytes(page_size())
}

fn put_back(bytes: Bytes) -> WritePolicy {
    WritePolicy { write_back: Bytes::ZERO, put_back: bytes }
}

fn write_back(bytes: Bytes) -> WritePolicy {
    WritePolicy { write_back: bytes, put_back: Bytes::ZERO }
}

fn mix(word: u64) -> u64 {
    let word = word.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (word ^ word >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 7
}

fn page_of(n: u64) -> Vec<u8> {
    (0..page() as u64)
        .map(|at| if at % 16 < 8 { n as u8 } else { mix(mix(at << 32 | n)) as u8 })
        .collect()
}

fn reserve() -> Reserve {
    Reserve::new(len_of(2048)).unwrap()
}

fn with_file(cache: &SwapCache, pages: u64) -> Area {
    cache.area(Pages::new(pages), &std::env::temp_dir(), len_of(8192)).unwrap()
}

fn without_file(cache: &SwapCache, pages: u64, put_back: Bytes) -> Area {
    let area = cache.area_without_file(Pages::new(pages)).unwrap();
    area.set_put_back(put_back).unwrap();
    area
}

impl Area {
    fn set_policy(&self, policy: WritePolicy) -> Result<(), SwapError> {
        self.change_policy(|_| policy)
    }
}

fn file_of(area: &Area) -> &crate::swap::file::SpillFile {
    area.copies.file.as_ref().expect("an area with a file")
}

fn refuse(area: &Area, what: u64) {
    file_of(area).refuses.store(what, Ordering::Relaxed);
}

fn store(area: &Area, pages: impl IntoIterator<Item = u64>) {
    pages.into_iter().for_each(|n| area.store(n, &page_of(n)).unwrap());
}

fn load(area: &Area, n: u64) -> Result<Option<Vec<u8>>, SwapError> {
    let mut out = vec![0x5a; page()];
    Ok(area.load(n, &mut out)?.then_some(out))
}

fn check(area: &Area, pages: impl IntoIterator<Item = u64>) {
    for n in pages {
        assert!(load(area, n).unwrap().expect("it is stored") == page_of(n), "page {n}");
    }
    area.stats().check().unwrap();
}

fn recall_all(reserve: &Reserve) {
    let mut blocks = Vec::new();
    loop {
        let longest = reserve.largest_run().unwrap();
        if longest == Pages::ZERO {
            return;
        }
        blocks.push(reserve.alloc(longest).unwrap());
        blocks.last_mut().unwrap().bytes_mut().unwrap().fill(0xee);
    }
}

#[test]
fn written_through_pages_are_in_the_file_and_survive_every_recall() {
    let reserve = reserve();
    let area = with_file(&SwapCache::on(&reserve).unwrap(), 600);
    store(&area, 0..300);
    let batch: Vec<_> = (300..600).map(page_of).collect();
    area.store_all((300..).zip(batch.iter().map(Vec::as_slice))).unwrap();
    let stats = area.stats();
    assert_eq!((stats.unsaved, stats.saved, stats.through), (Pages::ZERO, Pages::new(600), 600));
    let starts = |pages: std::ops::Range<u64>| {
        let start = |n| area.entries.get(n).unwrap().copy.to_raw()[0];
        pages.filter(|n| start(*n) % 8 != 0).count()
    };
    assert!(starts(0..300) == 0 && starts(300..600) > 200, "{}", starts(300..600));
    check(&area, 0..600);
    assert!(area.stats().loaded_kept > 0, "{}", area.stats());
    recall_all(&reserve);
    check(&area, 0..600);
    let stats = area.stats();
    assert!(stats.read_back > 0 && stats.kept_lost > 0, "{stats}");
}

#[test]
fn of_two_pages_for_one_offset_the_later_stays() {
    let area = with_file(&SwapCache::on(&reserve()).unwrap(), 8);
    let (noise, zeros) = (page_of(5), vec![0; page()]);
    area.store_all([(5, &noise[..]), (5, &zeros)]).unwrap();
    assert!(load(&area, 5).unwrap().as_ref() == Some(&zeros), "the older page");
    area.store_all([(5, &zeros[..]), (5, &noise)]).unwrap();
    check(&area, [5]);
    // A later page that is refused leaves its offset empty.
    refuse(&area, WRITES);
    let stored = area.store_all([(5, &noise[..]), (5, &zeros)]);
    assert!(stored.is_err() && load(&area, 5).unwrap().is_none(), "{stored:?}");
    area.stats().check().unwrap();
}

#[test]
fn pages_before_a_bad_one_are_stored() {
    let area = with_file(&SwapCache::on(&reserve()).unwrap(), 600);
    store(&area, 0..2);
    let pages = [page_of(0), page_of(1)];
    let batch = [(0, &pages[0]), (1, &pages[1]), (600, &pages[0])];
    let stored = area.store_all(batch.map(|(at, page)| (at, &page[..])));
    assert!(matches!(stored, Err(SwapError::Offset { .. })), "{stored:?}");
    check(&area, 0..2);
}

#[test]
fn write_back_writes_what_lives_and_only_when_it_must() {
    let reserve = reserve();
    let cache = SwapCache::on(&reserve).unwrap();
    assert_eq!(cache.usual_write_back(), len_of(128));
    let area = with_file(&cache, 4096);
    area.set_write_back(cache.usual_write_back()).unwrap();
    for n in 0..4000 {
        store(&area, [n]);
        if n % 8 != 0 {
            assert!(area.invalidate_page(n).unwrap());
        }
        assert!(area.stats().charged_bytes <= len_of(128));
    }
    recall_all(&reserve);
    check(&area, (0..4000).step_by(8));
    let stats = area.stats();
    assert!(stats.cleaned > 0 && stats.cleaned < 500 && stats.through == 0, "{stats}");
    assert!(stats.waited < 10, "a segment for each that waits: {stats}");
}

#[test]
fn put_back_needs_no_file_and_refuses_what_it_has_no_room_for() {
    let reserve = reserve();
    let cache = SwapCache::on(&reserve).unwrap();
    let area = without_file(&cache, 1000, len_of(256));
    let refused: Vec<_> = (0..1000).filter(|n| area.store(*n, &page_of(*n)).is_err()).collect();
    assert!((300..700).contains(&refused.len()), "{}", refused.len());
    recall_all(&reserve);
    check(&area, (0..1000).filter(|n| !refused.contains(n)));
    assert!(matches!(area.store(0, &noise_page()), Err(SwapError::Full { .. })));
    assert_eq!(load(&area, 0).unwrap(), None);
    for n in refused {
        assert_eq!(load(&area, n).unwrap(), None);
    }
    area.stats().check().unwrap();
    let below = area.set_policy(put_back(Bytes::new(1000))).unwrap_err();
    assert!(matches!(below, SwapError::PutBackBelowStored { .. }), "{below}");
    assert_eq!(area.unsaved.get().policy, put_back(len_of(256)));
    let nothing = without_file(&cache, 1, Bytes::ZERO);
    nothing.set_write_back(cache.usual_write_back()).unwrap();
    assert!(matches!(nothing.store(0, &page_of(1)), Err(SwapError::Full { .. })));
}

fn noise_page() -> Vec<u8> {
    (0..page() as u64 / 8).flat_map(|at| (mix(at) ^ mix(at << 20) << 40).to_le_bytes()).collect()
}

#[test]
fn put_back_with_a_file_writes_through_what_it_has_no_room_for() {
    let area = with_file(&SwapCache::with_limit(len_of(256)).unwrap(), 1000);
    area.set_policy(put_back(len_of(128))).unwrap();
    store(&area, 0..1000);
    let stats = area.stats();
    assert!(stats.unsaved > Pages::new(150) && stats.through > 500, "{stats}");
    assert_eq!((stats.cleaned, area.clean(len_of(16384)).unwrap()), (0, Bytes::ZERO));
    check(&area, 0..1000);
    area.set_policy(WritePolicy::default()).unwrap();
    let stats = area.stats();
    assert_eq!((stats.unsaved, stats.charged_bytes), (Pages::ZERO, Bytes::ZERO), "{stats}");
    check(&area, 0..1000);
}

#[test]
fn write_back_leaves_what_put_back_covers() {
    let area = with_file(&SwapCache::with_limit(len_of(256)).unwrap(), 2000);
    let both = WritePolicy { write_back: len_of(64), put_back: len_of(128) };
    area.set_policy(both).unwrap();
    for n in 0..2000 {
        store(&area, [n]);
        let charged = area.stats().charged_bytes;
        assert!(n < 400 || charged >= len_of(127), "{n}: {charged}");
    }
    check(&area, 0..2000);
    assert!(area.stats().cleaned > 1000 && area.stats().through == 0, "{}", area.stats());
}

#[test]
fn same_filled_pages_take_nothing() {
    let area = with_file(&SwapCache::with_limit(len_of(256)).unwrap(), 100);
    let filled = |n: u64| (n * 0x0101_0301).to_le_bytes().repeat(page() / 8);
    for n in 0..100 {
        area.store(n, &filled(n)).unwrap();
        assert_eq!(load(&area, n).unwrap().unwrap(), filled(n));
    }
    let stats = area.stats();
    stats.check().unwrap();
    assert_eq!(
        (stats.same_filled, stats.file, stats.kept),
        (Pages::new(100), Pages::ZERO, Pages::ZERO)
    );
    assert_eq!((area.copies.pool.stats().objects, stats.written_bytes), (0, 0));
}

#[test]
fn a_device_that_refuses_to_write_loses_nothing() {
    let reserve = reserve();
    let area = with_file(&SwapCache::on(&reserve).unwrap(), 1000);
    store(&area, 0..10);
    refuse(&area, WRITES);
    for n in 0..5 {
        assert!(matches!(area.store(n, &page_of(n + 1000)), Err(SwapError::Os(_))));
        assert_eq!(load(&area, n).unwrap(), None, "an old page after a refused store");
    }
    check(&area, 5..10);
    area.set_policy(write_back(len_of(64))).unwrap();
    let refused: Vec<_> = (10..500).filter(|n| area.store(*n, &page_of(*n)).is_err()).collect();
    assert!(refused.len() > 300, "{}", refused.len());
    let kept = || (5..500).filter(|n| !refused.contains(n));
    check(&area, kept());
    assert!(matches!(area.set_policy(WritePolicy::default()), Err(SwapError::Os(_))));
    assert_eq!(area.unsaved.get().policy, write_back(len_of(64)));
    assert!(matches!(area.clean(len_of(256)), Err(SwapError::Os(_))));
    refuse(&area, 0);
    store(&area, refused.iter().copied());
    area.set_policy(WritePolicy::default()).unwrap();
    recall_all(&reserve);
    check(&area, 5..500);
}

#[test]
fn a_device_that_refuses_to_read_is_an_error_that_passes() {
    let reserve = reserve();
    let area = with_file(&SwapCache::on(&reserve).unwrap(), 1000);
    store(&area, 0..1000);
    recall_all(&reserve);
    area.kept_gone();
    refuse(&area, READS);
    let mut out = vec![0; page()];
    assert!(matches!(load(&area, 3), Err(SwapError::Os(_))));
    assert!(matches!(area.take(3, &mut out), Err(SwapError::Os(_))));
    refuse(&area, 0);
    assert!(area.take(3, &mut out).unwrap() && out == page_of(3));
    assert_eq!(load(&area, 3).unwrap(), None);
    check(&area, (0..1000).filter(|n| *n != 3));
}

impl Area {
    fn kept_gone(&self) {
        for (_, entry) in (0..self.entries.chunks()).flat_map(|nth| self.entries.chunk(nth)) {
            entry.kept.into_iter().for_each(|kept| self.kept.remove(kept));
        }
    }
}

#[test]
fn a_full_file_is_an_error_and_what_it_has_is_there() {
    let cache = SwapCache::with_limit(len_of(256)).unwrap();
    for policy in [WritePolicy::default(), write_back(len_of(16))] {
        let limit = len_of(64);
        let area = cache.area(Pages::new(1000), &std::env::temp_dir(), limit).unwrap();
        area.set_policy(policy).unwrap();
        let refused: Vec<_> = (0..1000).filter(|n| area.store(*n, &page_of(*n)).is_err()).collect();
        assert!(matches!(area.store(0, &page_of(0)), Ok(()) | Err(SwapError::FileFull { .. })));
        assert!(refused.len() > 500, "{}", refused.len());
        check(&area, (1..1000).filter(|n| !refused.contains(n)));
        area.invalidate_area().unwrap();
        assert_eq!(area.stats().file, Pages::ZERO);
        store(&area, 0..20);
        check(&area, 0..20);
    }
}

#[test]
fn a_file_that_was_cut_or_overwritten_is_an_error_and_never_data() {
    for overwritten in [false, true] {
        let area = with_file(&SwapCache::with_limit(len_of(1024)).unwrap(), 500);
        store(&area, 0..500);
        match overwritten {
            true => file_of(&area).overwrite(),
            false => file_of(&area).cut(Bytes::ZERO),
        }
        check(&area, 0..500);
        area.kept_gone();
        for n in 0..500 {
            let refused = load(&area, n).unwrap_err();
            let is_told = matches!(refused, SwapError::DamagedPage { area: at, offset, .. }
                if (at, offset) == (area.number(), n));
            assert!(is_told, "{refused}");
        }
        store(&area, 0..500);
        check(&area, 0..500);
    }
}

#[test]
fn a_damaged_kept_copy_is_not_used_and_another_pages_block_neither() {
    let area = with_file(&SwapCache::with_limit(len_of(1024)).unwrap(), 4);
    store(&area, 0..4);
    let of = |n| area.entries.get(n).unwrap();
    area.entries.set(1, entries::Entry { kept: of(2).kept, ..of(1) });
    check(&area, [1]);
    assert_eq!(area.stats().kept_lost, 1);
    assert_eq!(of(1).kept, None, "it is of no use");
    area.entries.set(0, entries::Entry { copy: of(3).copy, kept: None, ..of(0) });
    assert!(matches!(load(&area, 0), Err(SwapError::DamagedPage { offset: 0, .. })));
    // Prevents a double drop of page 3's block.
    area.entries.set(0, entries::Entry { copy: Copy::Filled(0), ..of(0) });
}

#[test]
fn a_page_that_is_replaced_has_one_block_alone() {
    let reserve = reserve();
    let area = with_file(&SwapCache::on(&reserve).unwrap(), 4);
    for round in 0..200 {
        area.set_policy(if round % 3 == 0 {
            write_back(len_of(256))
        } else {
            WritePolicy::default()
        })
        .unwrap();
        for n in 0..4 {
            area.store(n, &page_of(round * 4 + n)).unwrap();
            assert!(load(&area, n).unwrap().unwrap() == page_of(round * 4 + n));
        }
    }
    let stats = area.stats();
    stats.check().unwrap();
    assert!(stats.file <= Pages::new(4) && area.copies.pool.stats().objects <= 4, "{stats}");
    assert_eq!(area.invalidate_area().unwrap(), Pages::new(4));
    assert_eq!((area.stats().file, area.copies.pool.stats().objects), (Pages::ZERO, 0));
    assert_eq!(area.stats().present, Pages::ZERO);
}

#[test]
fn the_end_of_an_area_leaves_nothing_in_what_is_shared() {
    let pool = |cache: &SwapCache| match &cache.kept {
        Kept::Own(pool) => pool.stats().objects,
        Kept::Lent(pool) => pool.stats().objects.objects,
    };
    for cache in [SwapCache::with_limit(len_of(1024)), SwapCache::on(&reserve())] {
        let cache = cache.unwrap();
        let (one, other) = (with_file(&cache, 100), with_file(&cache, 100));
        store(&one, 0..100);
        store(&other, 0..50);
        assert_eq!(pool(&cache), 150);
        drop(one);
        assert_eq!(pool(&cache), 50);
        check(&other, 0..50);
    }
}

#[test]
fn bad_calls_are_errors_that_change_nothing() {
    let cache = SwapCache::with_limit(len_of(1024)).unwrap();
    for pages in [0, (1 << 28) + 1, u64::MAX] {
        let refused = cache.area_without_file(Pages::new(pages)).unwrap_err();
        assert!(matches!(refused, SwapError::AreaPages { .. }), "{refused}");
    }
    assert!(matches!(SwapCache::with_limit(Bytes::ZERO), Err(SwapError::Pool(_))));
    let none = cache.area(Pages::new(1), Path::new("/nowhere/at/all"), Bytes::mib(1));
    assert!(matches!(none, Err(SwapError::Os(_))));
    let area = with_file(&cache, 10);
    store(&area, 0..10);
    let mut long = vec![1; page() + 1];
    for n in [10, u64::MAX] {
        assert!(matches!(area.store(n, &page_of(0)), Err(SwapError::Offset { .. })));
        assert!(matches!(load(&area, n), Err(SwapError::Offset { .. })));
        assert!(matches!(area.invalidate_page(n), Err(SwapError::Offset { .. })));
    }
    assert!(matches!(area.store(3, &long), Err(SwapError::NotAPage { .. })));
    assert!(matches!(area.store(3, &[]), Err(SwapError::NotAPage { .. })));
    assert!(matches!(area.load(3, &mut long), Err(SwapError::NotAPage { .. })));
    assert!(matches!(area.take(3, &mut []), Err(SwapError::NotAPage { .. })));
    let huge = WritePolicy { write_back: Bytes::new(u64::MAX), put_back: Bytes::new(u64::MAX) };
    area.set_policy(huge).unwrap();
    store(&area, 0..10);
    area.set_policy(WritePolicy::default()).unwrap();
    check(&area, 0..10);
}

#[test]
fn the_largest_area_can_be_made() {
    let cache = SwapCache::with_limit(len_of(1024)).unwrap();
    let area = without_file(&cache, 1 << 28, len_of(256));
    let last = (1 << 28) - 1;
    area.store(last, &page_of(7)).unwrap();
    assert!(load(&area, last).unwrap().unwrap() == page_of(7));
}

#[test]
fn a_child_has_no_area() {
    let reserve = reserve();
    let area = with_file(&SwapCache::on(&reserve).unwrap(), 100);
    store(&area, 0..100);
    let (page, mut out) = (page_of(1), vec![0; page()]);
    let is_refused = |result: Result<(), SwapError>| matches!(result, Err(SwapError::Forked));
    // SAFETY: refused calls allocate nothing and take no lock.
    let fine = unsafe {
        in_child(|| {
            is_refused(area.store(1, &page))
                && is_refused(area.load(1, &mut out).map(drop))
                && is_refused(area.take(1, &mut out).map(drop))
                && is_refused(area.invalidate_page(1).map(drop))
                && is_refused(area.invalidate_area().map(drop))
                && is_refused(area.set_write_back(Bytes::ZERO))
                && is_refused(area.set_put_back(Bytes::ZERO))
                && is_refused(area.clean(Bytes::mib(1)).map(drop))
        })
    };
    assert!(fine);
    assert!(matches!(area.stats().check(), Ok(())));
    check(&area, 0..100);
}
