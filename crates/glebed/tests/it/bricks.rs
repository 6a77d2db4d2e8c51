//! Tests bricks of several pages: the tests of leases, growth and kills again, those of caches and
//! bad days with `GLEBE_LONG`, and the answers' frames.

use glebe::contig::Contig;
use glebe::internal::sys::memory::pagemap::Pagemap;
use glebe::units::{Bytes, PageSize};
use glebe_lease::wire::Flags;
use glebe_lease::{Lease, LeaseError, LeaseRun};
use glebe_testing::process::run_again;
use glebe_testing::time::{is_long, wait_until};

use super::running::{brick, settings, wish, Running, CONTIGUOUS, MIB, ONE_FILE, PATIENCE};

/// Tests that bricks of other sizes leave out: the last two would have the kernel zero many GiB,
/// and do not depend on the size of bricks.
const BUT: [&str; 3] = ["all_of_leasing", "more_files", "patient"];

#[test]
fn all_of_leasing_works_in_bricks_of_two_pages() {
    let but = if is_long() { &BUT[..1] } else { &BUT };
    let more: &[&str] = if is_long() { &["bad_days::", "caches::"] } else { &[] };
    again(&["bricks::", "growth::", "kills::", "leases::"], more, but, "4");
}

#[test]
fn all_of_leasing_works_in_bricks_of_eight_pages() {
    let more: &[&str] = if is_long() { &["leases::", "bad_days::", "caches::"] } else { &[] };
    again(&["bricks::", "growth::"], more, &BUT, "16");
}

/// Runs tests with bricks of other sizes.
fn again(names: &[&str], more: &[&str], but: &[&str], mib: &str) {
    run_again(&[names, more].concat(), but, (MIB, mib));
}

#[test]
fn a_lease_is_of_whole_bricks_with_a_frame_for_each_page() {
    let Some(running) = Running::new(4, settings(1)) else { return };
    let client = running.client();
    assert_eq!(client.brick(), Bytes::new(brick()));
    for flags in [Flags::default(), ONE_FILE] {
        let files = if flags.one_file { 1 } else { 3 };
        for round in 0..3 {
            let lease =
                client.lease(glebe_lease::Wish { bytes: 2 * brick() + 1, ..wish(3, flags) });
            let lease = lease.unwrap();
            assert_eq!((lease.len(), lease.files().len()), (Bytes::new(3 * brick()), files));
            let runs = lease.runs();
            let mut end = 0;
            for run in &runs {
                assert_eq!((run.offset.get(), run.len.get() % (2 << 20)), (end, 0), "{runs:?}");
                end += run.len.get();
            }
            assert_eq!(end, 3 * brick(), "round {round}: {runs:?}");
            check_frames(&lease);
            let mut last = [1];
            lease.read(Bytes::new(end - 1), &mut last).unwrap();
            assert_eq!(last, [0]);
            lease.write(Bytes::ZERO, &vec![7; lease.len().as_usize()]).unwrap();
            drop(lease);
            running.wait_until_all_is_back();
        }
    }
    let refused = client.lease(wish(5, Flags::default())).unwrap_err().to_string();
    let brick = Bytes::new(brick());
    assert!(refused.contains(&format!("in bricks of {brick}")), "{refused}");
}

#[test]
fn a_contiguous_lease_is_a_run_whatever_bricks_there_are() {
    let mixed = Contig::options().in_order(false);
    let Some(running) = Running::of(mixed, (8, 8), settings(4)) else { return };
    let client = running.client();
    let stock = format!("glebe_lease_stock_bytes {}\n", 4 * brick());
    let is_filled = || client.stats().unwrap().contains(&stock);
    wait_until("bricks are zeroed ahead", PATIENCE, is_filled);
    for count in [1, 2] {
        let one = || client.lease(wish(count, CONTIGUOUS)).ok();
        let taken: Vec<_> = std::iter::from_fn(one).collect();
        for lease in &taken {
            assert_eq!(lease.runs().len(), 1, "{:?}", lease.runs());
        }
        println!("{} contiguous leases of {count} bricks", taken.len());
        drop(taken);
        running.wait_until_all_is_back();
    }
    let refused = client.lease(wish(9, CONTIGUOUS)).unwrap_err();
    let LeaseError::Refused { limit, .. } = refused else { panic!("{refused}") };
    assert_eq!(limit.get() % brick(), 0);
    if limit > Bytes::ZERO {
        assert_eq!(client.lease(wish(limit.get() / brick(), CONTIGUOUS)).unwrap().runs().len(), 1);
        running.wait_until_all_is_back();
    }
    let all = client.lease(wish(8, Flags::default())).unwrap();
    check_frames(&all);
}

/// Compares the runs with the frames that this process sees.
fn check_frames(lease: &Lease) {
    let page = PageSize::new(2 << 20).unwrap();
    let (at, base) = (lease.as_ptr() as usize, glebe::page_size().bytes().get());
    let entries = Pagemap::open().unwrap().entries(at, lease.len(), page).unwrap();
    let seen: Vec<Option<u64>> =
        entries.iter().map(|entry| entry.frame().map(|pfn| pfn.get() * base)).collect();
    let pages = |run: &LeaseRun| {
        let physical = run.physical;
        (0..run.len.get() / (2 << 20)).map(move |nth| physical.map(|at| at + nth * (2 << 20)))
    };
    let told: Vec<Option<u64>> = lease.runs().iter().flat_map(pages).collect();
    assert_eq!(told, seen);
}
