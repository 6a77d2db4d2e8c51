//! `try_copy`: a lost page is an error, never the end.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;

use glebe::sys::sigbus::Handler;

use crate::armed::{page, Armed};

/// Copies out of `armed`; the bytes, or where it stopped.
fn copy(armed: &Armed, offset: usize, len: usize) -> Result<Vec<u8>, usize> {
    let handler = Handler::install().unwrap();
    let mut to = vec![0xEE; len];
    // SAFETY: both ranges are mapped, the destination is this function's own.
    unsafe { handler.try_copy(to.as_mut_ptr(), armed.ptr(0, offset), len) }.map(|()| to)
}

#[test]
fn whole_copies_are_exact() {
    let Some(armed) = Armed::empty(3) else { return };
    let bytes: Vec<u8> = (0..3 * page()).map(|i| (i * 7 + i / 256) as u8).collect();
    for (i, part) in bytes.chunks(page()).enumerate() {
        armed.fill_from(i, part);
    }
    let lens = (0..70).chain([page() - 1, page(), page() + 1, 2 * page()]);
    for len in lens {
        for offset in [0, 1, 8, 15, page() - 33, page() - 1] {
            assert_eq!(copy(&armed, offset, len).as_deref(), Ok(&bytes[offset..offset + len]));
        }
    }
}

#[test]
fn the_first_lost_byte_ends_a_copy() {
    let Some(armed) = Armed::full(4, 3) else { return };
    for lost in 0..4 {
        armed.lose(lost);
        let hole = lost * page()..(lost + 1) * page();
        for len in [1, 2, 9, 64, page(), page() + 1, 3 * page()] {
            for offset in [0, 1, page() - 9, page() - 1, page(), 2 * page() + 5, 3 * page()] {
                let range = offset..(offset + len).min(4 * page());
                let first = range.start.max(hole.start);
                let got = copy(&armed, offset, range.len());
                if first < range.end.min(hole.end) {
                    assert_eq!(got, Err(armed.addr(0, first)), "{range:?} of {hole:?}");
                } else {
                    assert_eq!(got, Ok(vec![3; range.len()]), "{range:?} of {hole:?}");
                }
            }
        }
        armed.fill(lost, 3);
    }
}

#[test]
fn the_last_byte_of_a_copy_may_be_the_lost_one() {
    let Some(armed) = Armed::full(2, 9) else { return };
    armed.lose(1);
    for len in [1, 7, 16, 100, page()] {
        let offset = page() + 1 - len;
        assert_eq!(copy(&armed, offset, len), Err(armed.addr(1, 0)));
        assert_eq!(copy(&armed, offset - 1, len), Ok(vec![9; len]));
    }
}

#[test]
fn a_lost_destination_ends_a_copy() {
    let Some(armed) = Armed::full(2, 1) else { return };
    armed.lose(1);
    let from = vec![5u8; page()];
    let handler = Handler::install().unwrap();
    // SAFETY: both ranges are mapped and the armed one is this test's own.
    let got = unsafe { handler.try_copy(armed.ptr(0, 100), from.as_ptr(), page()) };
    assert_eq!(got, Err(armed.addr(1, 0)));
    assert_eq!(copy(&armed, 100, page() - 100), Ok(vec![5; page() - 100]));
}

#[test]
fn a_system_call_gets_efault() {
    let Some(armed) = Armed::full(2, 1) else { return };
    armed.lose(1);
    let mut pipe = [0; 2];
    // SAFETY: the descriptors are this test's own; a lost page is an error of the call.
    unsafe {
        assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
        assert_eq!(libc::write(pipe[1], armed.ptr(1, 0).cast(), 8), -1);
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EFAULT));
        assert_eq!(libc::write(pipe[1], armed.ptr(0, 0).cast(), 8), 8);
        pipe.iter().for_each(|fd| assert_eq!(libc::close(*fd), 0));
    }
}

#[test]
fn a_thread_that_blocks_the_signal_lets_it_through() {
    let Some(armed) = Armed::empty(1) else { return };
    let handler = Handler::install().unwrap();
    let blocked = |how, change: bool| {
        // SAFETY: the sets are this closure's own.
        unsafe {
            let (mut set, mut now) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigemptyset(&mut set);
            if change {
                libc::sigaddset(&mut set, libc::SIGBUS);
            }
            libc::pthread_sigmask(how, &set, std::ptr::null_mut());
            libc::pthread_sigmask(how, std::ptr::null(), &mut now);
            libc::sigismember(&now, libc::SIGBUS) == 1
        }
    };
    thread::scope(|s| {
        s.spawn(|| {
            drop(handler.unblock());
            assert!(!blocked(libc::SIG_BLOCK, false));
            assert!(blocked(libc::SIG_BLOCK, true));
            let through = handler.unblock();
            assert_eq!(copy(&armed, 5, 8), Err(armed.addr(0, 5)));
            drop(through);
            assert!(blocked(libc::SIG_BLOCK, false));
        });
    });
}

/// Every page holds its version in each word. A reader never sees one that is older than the
/// last that was complete when it began, and errors lie in the page that was read.
#[test]
fn threads_copy_while_pages_go_and_come() {
    const PAGES: usize = 8;
    const ENOUGH: u64 = 300;
    let Some(armed) = Armed::empty(PAGES) else { return };
    let versions: [AtomicU64; PAGES] = Default::default();
    let (intact, lost, stop) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let put = |i: usize, version: u64| {
        armed.fill_from(i, &version.to_ne_bytes().repeat(page() / 8));
        versions[i].store(version, SeqCst);
    };
    (0..PAGES).for_each(|i| put(i, 1));
    let read = |i: usize| {
        let floor = versions[i].load(SeqCst);
        match copy(&armed, i * page(), page()) {
            Ok(bytes) => {
                let ceiling = versions[i].load(SeqCst) + 1;
                for word in bytes.chunks_exact(8) {
                    let word = u64::from_ne_bytes(word.try_into().unwrap());
                    assert!((floor..=ceiling).contains(&word), "{word} of {floor}..={ceiling}");
                }
                intact.fetch_add(1, SeqCst);
            }
            Err(at) => {
                assert!((armed.addr(i, 0)..armed.addr(i + 1, 0)).contains(&at));
                lost.fetch_add(1, SeqCst);
            }
        }
    };
    thread::scope(|s| {
        let readers: Vec<_> = (0..3)
            .map(|start| {
                let (read, stop) = (&read, &stop);
                s.spawn(move || {
                    for i in (start..PAGES).cycle().take_while(|_| !stop.load(SeqCst)) {
                        read(i);
                    }
                })
            })
            .collect();
        let mut version = 1;
        // A reader that panicked ends the loop too.
        while intact.load(SeqCst).min(lost.load(SeqCst)) < ENOUGH
            && !readers.iter().any(|r| r.is_finished())
        {
            version += 1;
            for i in 0..PAGES {
                armed.lose(i);
                if version % 4 == 0 {
                    thread::yield_now();
                }
                put(i, version);
            }
        }
        stop.store(true, SeqCst);
    });
}
