//! Tests that the kernel counts marked memory as reclaimable.

use glebe_os::units::Pages;
use glebe_testing::real_time::OnOneCpu;
use glebe_volatile::{Engine, Priority, Region};

use super::adopted::Mapped;
use super::memory::{fill, lost, pages, regions, whole};

/// Most marked pages that wait in the batch of a processor and are not counted yet. A thread that
/// moves to another processor leaves such a batch behind.
const BATCH_MAX: u64 = 32;

#[test]
fn the_kernel_counts_what_is_marked_and_no_more() {
    let _stays = OnOneCpu::new();
    for region in regions(512) {
        fill(&region, 0..512);
        let before = region.stats();
        assert_eq!((before.marked, before.lazy_free), (Pages::ZERO, Pages::ZERO));
        region.mark(pages(0..256), Priority::NORMAL).unwrap();
        let marked = region.stats();
        assert_eq!(marked.marked, Pages::new(256));
        // A machine short of memory may take some pages.
        let (held, counted) = (marked.resident.get(), marked.lazy_free.get());
        assert!(held <= 256 && counted <= 256, "{marked}");
        assert!(counted + BATCH_MAX >= held, "{marked}");
        assert!(lost(region.unmark(whole(&region))).len() as u64 >= 256 - held);
        assert_eq!(region.stats().lazy_free, Pages::ZERO);
        region.stats().check().unwrap();
    }
}

#[test]
fn what_cannot_be_reclaimed_is_what_is_in_memory_less_that() {
    let _stays = OnOneCpu::new();
    let mapped = Mapped::apart(512);
    for engine in [Engine::Scan, Engine::Tag] {
        let Ok(region) = mapped.adopted_by(Region::options().engine(engine)) else {
            println!("skipped: engine {engine:?}");
            continue;
        };
        fill(&region, 0..512);
        assert_eq!(region.stats().unreclaimable, Pages::new(512));
        region.mark(pages(0..256), Priority::NORMAL).unwrap();
        let marked = region.stats();
        let kept = marked.unreclaimable.get();
        assert!((256..=256 + BATCH_MAX).contains(&kept), "{marked}");
        assert!(marked.to_string().contains("unreclaimable_pages"), "{marked}");
        assert!(marked.to_json().contains(&format!("\"unreclaimable_pages\": {kept}")));
        let bytes = format!("glebe_volatile_unreclaimable_bytes{{engine=\"{engine}\"}} ");
        assert!(marked.to_openmetrics().contains(&bytes), "{}", marked.to_openmetrics());
        let _ = region.unmark(whole(&region)).unwrap();
    }
}
