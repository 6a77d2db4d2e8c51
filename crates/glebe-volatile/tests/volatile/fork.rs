//! Tests fork and exec: children inherit volatility and losses. If a child cannot know its losses,
//! all marked pages count as lost.

use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use glebe_volatile::{Engine, Error, Priority, Region};

use super::children::{child_says, fork, raw_clone, sigbus_at};
use super::memory::{fill, is_filled, lost, page, pages, purge, regions, whole};

#[test]
fn a_purged_page_reports_as_purged_in_the_child_and_in_the_parent() {
    glebe_testing::alone!();
    for region in regions(8) {
        fill(&region, 0..8);
        region.mark(whole(&region), Priority::NORMAL).unwrap();
        purge(&region, 2..3);
        let said = child_says(fork, || {
            let marked_there = region.write(pages(4..5).start, &[1]);
            let purged = lost(region.unmark(whole(&region)));
            let kept = is_filled(&region, 0..2) && is_filled(&region, 3..8);
            fill(&region, 0..8);
            let again = region.mark(pages(1..6), Priority::NORMAL).is_ok();
            purge(&region, 5..6);
            again
                && kept
                && matches!(marked_there, Err(Error::Marked { .. }))
                && purged == [2]
                && lost(region.unmark(whole(&region))) == [5]
        });
        assert!(said, "{:?}", region.engine());
        assert_eq!(lost(region.unmark(whole(&region))), [2], "{:?}", region.engine());
        assert!(is_filled(&region, 0..2) && is_filled(&region, 3..8));
    }
}

#[test]
fn what_is_purged_in_the_child_is_lost_there_only() {
    glebe_testing::alone!();
    for region in regions(8) {
        fill(&region, 0..8);
        region.mark(pages(0..4), Priority::NORMAL).unwrap();
        let said = child_says(fork, || {
            region.mark(pages(4..8), Priority::NORMAL).unwrap();
            purge(&region, 0..2);
            purge(&region, 7..8);
            let grandchild = child_says(fork, || lost(region.unmark(whole(&region))) == [0, 1, 7]);
            grandchild && lost(region.unmark(whole(&region))) == [0, 1, 7]
        });
        assert!(said, "{:?}", region.engine());
        assert_eq!(lost(region.unmark(whole(&region))), [0_u64; 0]);
        assert!(is_filled(&region, 0..8));
    }
}

#[test]
fn huge_pages_that_a_child_shares_are_kept_page_by_page() {
    glebe_testing::alone!();
    for engine in [Engine::Scan, Engine::Tag] {
        let make = |len| Region::options().engine(engine).huge(true).build(len);
        let region = match make(glebe_os::units::Bytes::new(1))
            .and_then(|one| make(one.len() + one.len()))
        {
            Ok(region) => region,
            Err(error) => {
                println!("skipped: {error}");
                continue;
            }
        };
        let (all, each) = (region.len().as_usize() / page(), region.len().as_usize() / page() / 2);
        let (all, each) = (all as u64, each as u64);
        fill(&region, 0..all);
        region.mark(whole(&region), Priority::NORMAL).unwrap();
        let said = child_says(fork, || {
            purge(&region, each + 2..each + 5);
            let first = lost(region.unmark(whole(&region)));
            let kept = is_filled(&region, 0..each + 2) && is_filled(&region, each + 5..all);
            fill(&region, 0..all);
            // Now the child has its own copies of all pages.
            region.mark(whole(&region), Priority::NORMAL).unwrap();
            purge(&region, 1..2);
            let second = lost(region.unmark(whole(&region)));
            kept && first == [each + 2, each + 3, each + 4]
                && second == [1]
                && is_filled(&region, 0..1)
                && is_filled(&region, 2..all)
        });
        assert!(said, "{engine}");
        let said = child_says(fork, || {
            let kept = lost(region.unmark(whole(&region))).is_empty();
            kept && is_filled(&region, 0..all) && region.stats().check().is_ok()
        });
        assert!(said, "{engine}");
        assert!(lost(region.unmark(whole(&region))).is_empty(), "{engine}");
        assert!(is_filled(&region, 0..all), "{engine}");
    }
}

#[test]
fn a_touch_of_a_lost_page_is_sigbus_in_the_child_too() {
    glebe_testing::alone!();
    for region in regions(4).filter(|region| region.engine() == Engine::Scan) {
        fill(&region, 0..4);
        region.mark(whole(&region), Priority::NORMAL).unwrap();
        purge(&region, 1..2);
        let at = region.addr() + page() + 5;
        assert!(child_says(fork, || sigbus_at(at) == Some(at)));
        let mut byte = [0];
        let read = region.try_read(pages(1..2).start, &mut byte);
        assert!(matches!(read, Err(Error::Purged { .. })), "{read:?}");
    }
}

#[test]
fn forks_beside_threads_that_mark_and_unmark_end() {
    glebe_testing::alone!();
    for region in regions(64) {
        fill(&region, 0..64);
        let stop = AtomicBool::new(false);
        let bad = std::thread::scope(|scope| {
            for thread in 0..4 {
                let (region, stop) = (&region, &stop);
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        let own = pages(thread * 16..thread * 16 + 16);
                        region.mark(own.clone(), Priority::NORMAL).unwrap();
                        purge(region, thread * 16..thread * 16 + 1);
                        assert_eq!(lost(region.unmark(own)), [thread * 16]);
                        fill(region, thread * 16..thread * 16 + 1);
                    }
                });
            }
            let bad = (0..100).filter(|_| {
                !child_says(fork, || {
                    // The first unmark ends the marks inherited from the parent's threads.
                    region.unmark(whole(&region)).is_ok()
                        && region.mark(whole(&region), Priority::NORMAL).is_ok()
                        && lost(region.unmark(whole(&region))).is_empty()
                })
            });
            let bad = bad.count();
            stop.store(true, Ordering::Relaxed);
            bad
        });
        assert_eq!(bad, 0, "of 100 children, {:?}", region.engine());
    }
}

#[test]
fn forks_beside_threads_that_make_and_end_regions_end() {
    glebe_testing::alone!();
    let stop = AtomicBool::new(false);
    let lives = || {
        regions(4).all(|region| {
            fill(&region, 0..4);
            region.mark(whole(&region), Priority::NORMAL).unwrap();
            purge(&region, 2..3);
            lost(region.unmark(whole(&region))) == [2]
        })
    };
    let bad = std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    assert!(lives());
                }
            });
        }
        let bad = (0..100).filter(|_| !child_says(fork, lives)).count();
        stop.store(true, Ordering::Relaxed);
        bad
    });
    assert_eq!(bad, 0, "of 100 children");
}

#[test]
fn a_fork_in_another_librarys_thread_is_no_different() {
    glebe_testing::alone!();
    extern "C" fn body(region: *mut libc::c_void) -> *mut libc::c_void {
        // SAFETY: `pthread_join` below ends the borrow.
        let region: &Region = unsafe { &*region.cast() };
        let said = child_says(fork, || lost(region.unmark(whole(region))) == [1]);
        ptr::without_provenance_mut(usize::from(said))
    }
    for region in regions(4) {
        fill(&region, 0..4);
        region.mark(whole(&region), Priority::NORMAL).unwrap();
        purge(&region, 1..2);
        // SAFETY: `pthread_t` is a number; the thread is joined before the region ends.
        unsafe {
            let mut thread = std::mem::zeroed();
            let argument = (&raw const region).cast_mut().cast();
            assert_eq!(libc::pthread_create(&mut thread, ptr::null(), body, argument), 0);
            let mut said = ptr::null_mut();
            assert_eq!(libc::pthread_join(thread, &mut said), 0);
            assert_eq!(said.addr(), 1, "{:?}", region.engine());
        }
    }
}

/// Uses a child with one thread, because a raw clone inherits the locks of other threads.
#[test]
fn a_child_made_without_the_c_library_loses_what_is_marked_and_harms_nobody() {
    glebe_testing::alone!();
    assert!(child_says(fork, || {
        regions(8).all(|region| {
            fill(&region, 0..8);
            region.mark(pages(2..6), Priority::NORMAL).unwrap();
            purge(&region, 3..4);
            let said = child_says(raw_clone, || {
                let purged = lost(region.unmark(whole(&region)));
                purged == [2, 3, 4, 5] && lost(region.unmark(whole(&region))).is_empty()
            });
            // The child filled no page through the parent's descriptor.
            said && lost(region.unmark(whole(&region))) == [3]
        })
    }));
}

pub fn limit_files(count: u64) -> bool {
    // SAFETY: the calls use only a local.
    unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        limit.rlim_cur = count.min(limit.rlim_max);
        libc::setrlimit(libc::RLIMIT_NOFILE, &limit) == 0
    }
}

fn raised() -> bool {
    limit_files(u64::MAX)
}

#[test]
fn a_child_that_cannot_arm_loses_what_is_marked() {
    glebe_testing::alone!();
    for region in regions(8).filter(|region| region.engine() == Engine::Scan) {
        fill(&region, 0..8);
        region.mark(pages(2..6), Priority::NORMAL).unwrap();
        assert!(child_says(fork, || {
            assert!(limit_files(0));
            let unarmed = child_says(fork, || {
                let read = region.try_read(pages(2..2).start, &mut [0]);
                matches!(read, Err(Error::Purged { .. }))
                    && lost(region.unmark(whole(&region))) == [2, 3, 4, 5]
            });
            let again = child_says(fork, || {
                // Writes to a lost page, which this child cannot detect.
                purge(&region, 3..4);
                // SAFETY: the byte is in the region.
                unsafe { region.as_ptr().byte_add(3 * page()).write_volatile(1) };
                lost(region.unmark(pages(2..3))) == [2] && raised() && {
                    region.mark(pages(0..1), Priority::NORMAL).unwrap();
                    let purged = lost(region.unmark(whole(&region)));
                    fill(&region, 0..8);
                    purged == [3, 4, 5] && is_filled(&region, 0..8)
                }
            });
            let late = child_says(fork, || {
                let lost = lost(region.unmark(whole(&region)));
                // Only the child's child could arm the region, in which pages are missing.
                lost == [2, 3, 4, 5]
                    && raised()
                    && child_says(fork, || {
                        let mut byte = [1];
                        region.try_read(pages(3..3).start, &mut byte).is_ok() && byte == [0]
                    })
            });
            unarmed && again && late
        }));
        assert_eq!(lost(region.unmark(whole(&region))), [0_u64; 0]);
    }
}

#[test]
fn a_program_that_is_executed_inherits_nothing() {
    let region = Region::new(pages(0..8).end).unwrap();
    region.mark(whole(&region), Priority::NORMAL).unwrap();
    let files = std::process::Command::new("ls").arg("-l").arg("/proc/self/fd").output().unwrap();
    let text = String::from_utf8_lossy(&files.stdout);
    assert!(files.status.success() && text.contains(" -> "), "{text}");
    assert!(!text.contains("userfaultfd") && !text.contains("pagemap"), "{text}");
}
