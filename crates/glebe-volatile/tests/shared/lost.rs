//! Tests touches of lost granules in programs that use the `sigbus` option.
//!
//! # Safety
//! Touched bytes are mapped.

use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Barrier;

use glebe_volatile::{Error, SharedOptions};

use super::*;
use glebe_testing::steered::{signal, sleep_on, Process, SteeredEnd};

fn options() -> SharedOptions {
    Shared::options().sigbus(true)
}

/// Returns `None` if the kernel refuses userfaultfd.
fn told(granules: u64) -> Option<Shared> {
    match options().create(at(granules)) {
        Ok(shared) => {
            fill(&shared);
            Some(shared)
        }
        Err(Error::Os(error)) => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn touch(shared: &Shared, granule: u64) -> u8 {
    // SAFETY: the memory is mapped while `shared` exists.
    unsafe { shared.as_ptr().add(at(granule).as_usize()).read_volatile() }
}

#[test]
fn a_touch_of_a_marked_granule_that_was_lost_is_a_signal() {
    glebe_testing::alone!();
    let Some(shared) = told(4) else { return };
    for lost in [false, true] {
        // A child joins the file's users by its first call, here `stats`. Before that, a touch of a
        // lost granule reads zeros.
        for joins in [false, true] {
            let child = Process::start(|_| {
                if joins {
                    _ = shared.stats();
                }
                assert_eq!(touch(&shared, 1), if lost { 0 } else { 2 });
            });
            let dies = lost && joins;
            let end = if dies { SteeredEnd::Signal(libc::SIGBUS) } else { SteeredEnd::Exit(0) };
            assert_eq!(child.end(), end, "lost {lost}, joins {joins}");
            if lost && !joins {
                // Only a mark after an unmark records the page that the child's touch allocated.
                shared.mark(range(1, 1), Priority::NORMAL, Order::Fifo).unwrap();
                _ = shared.unmark(range(1, 1)).unwrap();
                shared.mark(range(1, 1), Priority::NORMAL, Order::Fifo).unwrap();
                assert_eq!(shared.drop_now(range(1, 1)).unwrap(), Pages::new(1));
            }
        }
        assert_eq!(shared.drop_now(range(1, 1)).unwrap().get(), u64::from(!lost));
    }
}

#[test]
fn what_is_pinned_or_not_marked_is_there() {
    let Some(shared) = told(8) else { return };
    assert_eq!(purge_all(&shared), at(8));
    let other = options().adopt(shared.fd().try_clone_to_owned().unwrap()).unwrap();
    let pin = other.pin(range(0, 2)).unwrap();
    assert_eq!((touch(&other, 0), touch(&other, 1)), (0, 0));
    assert_eq!(runs(pin.lost()), [(0, 2)]);
    assert_eq!(runs(&shared.unmark(range(2, 4)).unwrap()), [(2, 4)]);
    assert_eq!((touch(&shared, 2), touch(&other, 3), touch(&shared, 5)), (0, 0, 0));
    let plain = Shared::options().adopt(shared.fd().try_clone_to_owned().unwrap()).unwrap();
    assert_eq!(touch(&plain, 7), 0);
}

#[test]
fn a_page_in_use_goes_from_every_process() {
    glebe_testing::alone!();
    let Some(shared) = told(4) else { return };
    let child = Process::start(|link| {
        _ = shared.stats();
        assert_eq!(touch(&shared, 3), 4);
        link.tell(0);
        link.hear();
        touch(&shared, 3);
        link.tell(1);
        sleep_on();
    });
    child.link.hear();
    assert_eq!(purge_all(&shared), at(4));
    child.link.tell(0);
    let end = child.end();
    if end != SteeredEnd::Signal(libc::SIGBUS) {
        signal(child.pid, libc::SIGKILL);
    }
    assert_eq!(end, SteeredEnd::Signal(libc::SIGBUS));
}

#[test]
fn pins_that_somebody_uncounted_end_no_reader() {
    glebe_testing::alone!();
    let child = Process::start(|_| {
        let Some(shared) = told(8) else { return };
        let pin = shared.pin(range(0, 8)).unwrap();
        let (file, total) = super::program::file_of(&shared);
        let page = at(1).get();
        let state = total - shared.len().get();
        // The pin counts begin at page 2 and end two pages before `state`.
        let counts = vec![0; (state - 4 * page) as usize];
        file.write_all_at(&counts, 2 * page).unwrap();
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let (from, len) = (state as libc::off_t, shared.len().get() as libc::off_t);
        // SAFETY: an open descriptor, and no reference to the data.
        assert_eq!(unsafe { libc::fallocate(file.as_raw_fd(), mode, from, len) }, 0);
        let mut bytes = [0; 100];
        let read = pin.read(at(2), &mut bytes);
        assert!(matches!(read, Err(Error::Truncated { .. })), "{read:?}");
        let written = pin.write(at(3), &bytes);
        assert!(matches!(written, Err(Error::Truncated { .. })), "{written:?}");
        assert_eq!(touch(&shared, 4), 0);
        drop(pin);
    });
    assert_eq!(child.end(), SteeredEnd::Exit(0));
}

#[test]
fn a_pinned_page_that_somebody_took_is_there_again() {
    let Some(shared) = told(4) else { return };
    let pin = shared.pin(range(1, 1)).unwrap();
    take(&shared, 1);
    let mut byte = [9];
    pin.read(Bytes::ZERO, &mut byte).unwrap();
    assert_eq!((byte, touch(&shared, 1)), ([0], 0));
}

fn take(shared: &Shared, granule: u64) {
    let (file, total) = super::program::file_of(shared);
    let offset = total - shared.len().get() + at(granule).get();
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let (offset, len) = (offset as libc::off_t, at(1).get() as libc::off_t);
    // SAFETY: `file` is an open descriptor.
    assert_eq!(unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, len) }, 0);
}

/// Threads of a forked child join (take a holder number) at once, and only one join stays. The
/// SIGBUS handler must use the descriptor and holder number of that join.
#[test]
fn touches_are_settled_after_threads_of_a_child_joined_at_once() {
    glebe_testing::alone!();
    let Some(shared) = told(8) else { return };
    for _ in 0..50 {
        let child = Process::start(|_| {
            let begin = Barrier::new(4);
            std::thread::scope(|scope| {
                for thread in 0..4 {
                    let (shared, begin) = (&shared, &begin);
                    scope.spawn(move || {
                        begin.wait();
                        drop(shared.pin(range(thread, 1)).unwrap());
                    });
                }
            });
            let pin = shared.pin(range(5, 1)).unwrap();
            take(&shared, 5);
            let mut byte = [9];
            pin.read(Bytes::ZERO, &mut byte).unwrap();
            assert_eq!(byte, [0]);
        });
        assert_eq!(child.end(), SteeredEnd::Exit(0));
    }
}
