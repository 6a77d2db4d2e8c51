//! Pins against a list of pages, and guards on both engines.

use proptest::prelude::*;

use super::*;
use crate::sys::page_size;
use crate::volatile::Engine;

const PAGES: u64 = 24;

#[derive(Clone, Debug)]
enum Step {
    Hold(Extent),
    KeepBack(Extent, u8),
    Forget(Extent),
    Release(usize),
}

fn extents() -> impl Strategy<Value = Extent> {
    (0..PAGES, 1..PAGES)
        .prop_map(|(start, len)| Extent::new(start, len.min(PAGES - start)).unwrap())
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        extents().prop_map(Step::Hold),
        (extents(), 0..8u8).prop_map(|(pages, priority)| Step::KeepBack(pages, priority)),
        extents().prop_map(Step::Forget),
        (0..8usize).prop_map(Step::Release),
    ]
}

/// A page: guards that cover it, whether it is marked, what is kept back.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Page {
    guards: u32,
    marked: Option<Priority>,
    kept_back: Option<Priority>,
}

fn each(pages: Extent) -> impl Iterator<Item = usize> {
    pages.start() as usize..pages.end() as usize
}

proptest! {
    #[test]
    fn pins_agree_with_a_list_of_pages(steps in proptest::collection::vec(steps(), 1..50)) {
        let mut pins = Pins::default();
        let (mut model, mut real) = ([Page::default(); PAGES as usize], [None; PAGES as usize]);
        let mut guards = Vec::new();
        for step in steps {
            match step {
                Step::Hold(pages) => {
                    let mut parts = Vec::new();
                    for i in each(pages) {
                        let page = &mut model[i];
                        page.guards += 1;
                        page.kept_back = page.kept_back.or(page.marked.take());
                        let one = Extent::new(i as u64, 1).unwrap();
                        parts.extend(real[i].take().map(|priority| (one, priority)));
                    }
                    pins.hold(pages, parts);
                    guards.push(pages);
                }
                Step::KeepBack(pages, priority) => {
                    let priority = Priority::new(priority).unwrap();
                    for i in each(pages) {
                        let page = &mut model[i];
                        let place =
                            if page.guards > 0 { &mut page.kept_back } else { &mut page.marked };
                        place.get_or_insert(priority);
                    }
                    let uncovered = pins.uncovered(pages);
                    pins.keep_back(pages, &uncovered, priority);
                    for i in uncovered.iter().copied().flat_map(each) {
                        real[i].get_or_insert(priority);
                    }
                }
                Step::Forget(pages) => {
                    each(pages).for_each(|i| {
                        (model[i].marked, model[i].kept_back, real[i]) = (None, None, None);
                    });
                    pins.forget(pages);
                }
                Step::Release(guard) if guard < guards.len() => {
                    let pages = guards.swap_remove(guard);
                    for i in each(pages) {
                        let page = &mut model[i];
                        page.guards -= 1;
                        if page.guards == 0 {
                            page.marked = page.kept_back.take();
                        }
                    }
                    for (part, priority) in pins.release(pages) {
                        for i in each(part) {
                            prop_assert_eq!(real[i], None);
                            real[i] = Some(priority);
                        }
                    }
                }
                Step::Release(_) => {}
            }
            prop_assert_eq!(model.map(|page| page.marked), real);
            let mut kept_back = [None; PAGES as usize];
            for (part, priority) in &pins.kept_back {
                for i in each(*part) {
                    prop_assert_eq!(kept_back[i], None);
                    kept_back[i] = Some(*priority);
                }
            }
            prop_assert_eq!(model.map(|page| page.kept_back), kept_back);
        }
    }
}

fn pages(count: u64) -> Bytes {
    Bytes::new(count * page_size().bytes().get())
}

#[test]
fn a_guarded_range_is_not_lost_and_marked_again_at_the_end() {
    for engine in [Engine::Scan, Engine::Tag] {
        let region = match Region::options().engine(engine).map(pages(8)) {
            Ok(region) => region,
            Err(why) => {
                println!("skipped: {why}");
                continue;
            }
        };
        region.write(Bytes::ZERO, &vec![9; pages(8).as_usize()]).unwrap();
        region.mark(pages(1)..pages(6), Priority::LOWEST).unwrap();
        region.drop_now(pages(2)..pages(3)).unwrap();
        let marked = || region.stats().marked.get();
        let guard = region.resident(pages(2)..pages(8)).unwrap();
        assert_eq!((guard.purged().pages().get(), guard.range()), (1, pages(2)..pages(8)));
        assert_eq!(marked(), 1);
        // Nothing to drop, and a mark has to wait.
        assert_eq!(region.drop_now(pages(2)..pages(8)).unwrap(), Bytes::ZERO);
        region.mark(pages(0)..pages(8), Priority::HIGHEST).unwrap();
        assert_eq!(marked(), 2);
        let inner = region.resident(pages(3)..pages(4)).unwrap();
        drop(guard);
        assert_eq!(marked(), 7);
        // Unmarked meanwhile: not marked by the end of the guard.
        assert!(region.unmark(pages(3)..pages(4)).unwrap().is_empty());
        drop(inner);
        assert_eq!(marked(), 7);
        let mut byte = [0];
        region.read(pages(3), &mut byte).unwrap();
        assert_eq!(byte, [9]);
        region.stats().check().unwrap();
        let lost = region.unmark(pages(0)..pages(8)).unwrap();
        assert!(lost.is_empty(), "{lost:?}");
    }
}

#[test]
fn a_guard_that_is_left_keeps_its_range_until_it_is_released() {
    let region = Region::map(pages(8)).unwrap();
    region.write(Bytes::ZERO, &vec![9; pages(8).as_usize()]).unwrap();
    region.mark(pages(0)..pages(8), Priority::LOWEST).unwrap();
    region.drop_now(pages(2)..pages(3)).unwrap();
    let marked = || region.stats().marked.get();
    assert_eq!(region.resident(pages(2)..pages(5)).unwrap().leave().pages().get(), 1);
    assert_eq!(marked(), 5);
    // A guard that lives is not for others to release, nor is part of one that was left.
    let guard = region.resident(pages(4)..pages(6)).unwrap();
    for range in [pages(4)..pages(6), pages(2)..pages(4), pages(0)..pages(8)] {
        let refused = region.release(range.clone());
        assert!(matches!(refused, Err(Error::NotHeld { offset }) if offset == range.start));
    }
    assert!(matches!(region.release(pages(2)..pages(2)), Err(Error::Empty)));
    assert!(matches!(region.release(pages(2)..pages(9)), Err(Error::Beyond { .. })));
    assert_eq!(marked(), 4);
    region.release(pages(2)..pages(5)).unwrap();
    assert_eq!(marked(), 6);
    assert!(matches!(region.release(pages(2)..pages(5)), Err(Error::NotHeld { .. })));
    drop(guard);
    assert_eq!(marked(), 8);
    assert!(region.unmark(pages(0)..pages(8)).unwrap().is_empty());
}
