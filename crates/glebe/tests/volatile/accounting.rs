//! What is marked counts as reclaimable, in the kernel's own count too.

use glebe::units::Pages;
use glebe::volatile::Priority;

use super::memory::{fill, lost, pages, regions, whole};

/// Pages that wait in a processor's batch before the kernel counts them.
const BATCH_MAX: u64 = 32;

#[test]
fn the_kernel_counts_what_is_marked_and_no_more() {
    for region in regions(512) {
        fill(&region, 0..512);
        let before = region.stats();
        assert_eq!((before.marked, before.lazy_free), (Pages::ZERO, Pages::ZERO));
        region.mark(pages(0..256), Priority::NORMAL).unwrap();
        let marked = region.stats();
        assert_eq!(marked.marked, Pages::new(256));
        // A machine short of memory may take some meanwhile.
        let (held, counted) = (marked.resident.get(), marked.lazy_free.get());
        assert!(held <= 256 && counted <= 256, "{marked}");
        assert!(counted + BATCH_MAX >= held, "{marked}");
        // RSS less what is reclaimable: what is not marked, and what waits.
        let kept = marked.unreclaimable.get();
        assert!(before.unreclaimable == Pages::new(512), "{before}");
        assert!((256..=256 + BATCH_MAX).contains(&kept), "{marked}");
        let names = ["unreclaimable_pages", "glebe_volatile_unreclaimable_bytes"];
        let bytes = format!("{}{{", names[1]);
        assert!(marked.to_string().contains(names[0]) && marked.to_json().contains(names[0]));
        assert!(marked.to_openmetrics().contains(&bytes), "{}", marked.to_openmetrics());
        assert!(lost(region.unmark(whole(&region))).len() as u64 >= 256 - held);
        assert_eq!(region.stats().lazy_free, Pages::ZERO);
        region.stats().check().unwrap();
    }
}
