//! Tests regions after madvise, mlock or mprotect of parts. Each call splits the kernel's mapping
//! (VMA). UFFDIO_MOVE refuses locked or read-only parts.

use super::*;

const LEN: u64 = 280;
const BUDGET: u64 = 96;

/// Calls `change` on 17 of every 40 pages, by address and length. Returns false if the kernel
/// refuses.
fn change_parts(
    region: &Region,
    (from, to): (u64, u64),
    change: impl Fn(*mut libc::c_void, usize) -> i32,
) -> bool {
    (from..to).step_by(40).all(|first| {
        let at = region.as_ptr().wrapping_add(pages(first + 3).as_usize());
        change(at.cast(), pages(17).as_usize()) == 0
    })
}

fn use_all(region: &Region) {
    check(region, 1);
    check(region, 1);
    fill(region, 2);
    check(region, 2);
    let offset = Bytes::new(pages(40).get() + 100);
    let mut bytes = vec![0; pages(30).as_usize()];
    region.read_at(offset, &mut bytes).unwrap();
    region.write_at(offset, &bytes).unwrap();
    assert!(*region.resident(offset, pages(30)).unwrap() == *bytes);
    check(region, 2);
    region.discard(Bytes::ZERO, pages(120)).unwrap();
    assert!((0..pages(120).get() / 8).all(|at| load(region, at) == 0));
}

#[test]
fn parts_that_the_program_advised_on_come_and_go_as_the_rest_does() {
    glebe_testing::alone!();
    both(LEN, BUDGET, |region| {
        fill(region, 1);
        // SAFETY: the advice changes no contents.
        let advise = |at, len| unsafe { libc::madvise(at, len, libc::MADV_RANDOM) };
        assert!(change_parts(region, (0, LEN - 20), advise));
        use_all(region);
        let stats = region.stats();
        assert!(stats.stuck_pages == 0 && stats.came_over_pages == 0, "{stats}");
    });
}

#[test]
fn parts_that_the_program_locked_hold_what_was_written() {
    glebe_testing::alone!();
    // SAFETY: the lock changes no contents.
    let lock = |at: *mut _, len| unsafe { libc::mlock2(at, len, libc::MLOCK_ONFAULT) };
    // SAFETY: the lock changes no contents. `mlock` locks, but fails to load absent pages.
    let lock_all = |at: *mut _, len| unsafe { libc::mlock(at, len).max(0) };
    // SAFETY: the unlock changes no contents.
    let unlock = |at: *mut _, len| unsafe { libc::munlock(at, len) };
    // The second round locks more than the budget, so it unlocks the parts before `use_all` evicts
    // pages.
    for (to, is_little) in [(120, true), (LEN - 20, false)] {
        both(LEN, BUDGET, |region| {
            fill(region, 1);
            if !change_parts(region, (0, to), lock) {
                return println!("skipped: mlock2: {}", std::io::Error::last_os_error());
            }
            check(region, 1);
            if !is_little {
                if region.moves_pages() {
                    let refused = region.set_budget(pages(BUDGET)).unwrap_err().to_string();
                    assert!(refused.contains("locked"), "{refused}");
                }
                assert!(change_parts(region, (0, to), unlock));
                region.set_budget(pages(BUDGET)).unwrap();
                assert!(region.stats().charged <= Pages::new(BUDGET), "{}", region.stats());
            }
            use_all(region);
        });
    }
    both(LEN, BUDGET, |region| {
        fill(region, 1);
        change_parts(region, (0, 120), lock_all);
        use_all(region);
    });
}

#[test]
fn parts_that_the_program_made_read_only_are_read_and_later_written() {
    glebe_testing::alone!();
    // SAFETY: the region is live, and not written while read-only.
    let protect = |access| move |at, len| unsafe { libc::mprotect(at, len, access) };
    both(LEN, BUDGET, |region| {
        fill(region, 1);
        assert!(change_parts(region, (0, LEN - 20), protect(libc::PROT_READ)));
        check(region, 1);
        check(region, 1);
        region.will_need(Bytes::ZERO, region.len()).unwrap_or_else(|error| println!("{error}"));
        check(region, 1);
        let writable = protect(libc::PROT_READ | libc::PROT_WRITE);
        assert!(change_parts(region, (0, LEN - 20), writable));
        use_all(region);
    });
}

#[test]
fn parts_that_the_program_made_unreadable_come_back_as_they_were() {
    glebe_testing::alone!();
    both(LEN, BUDGET, |region| {
        if !region.moves_pages() {
            return println!("skipped: no UFFDIO_MOVE");
        }
        fill(region, 1);
        // SAFETY: the region is live, and not touched while unreadable.
        let protect = |access| move |at, len| unsafe { libc::mprotect(at, len, access) };
        assert!(change_parts(region, (0, LEN - 20), protect(libc::PROT_NONE)));
        let words_of_page = page() as u64 / 8;
        for _ in 0..2 {
            for at in (0..LEN).filter(|at| !(3..20).contains(&(at % 40))) {
                let word = at * words_of_page + 7;
                assert_eq!(load(region, word), word_of(word, 1), "page {at}");
            }
        }
        let writable = protect(libc::PROT_READ | libc::PROT_WRITE);
        assert!(change_parts(region, (0, LEN - 20), writable));
        use_all(region);
    });
}
