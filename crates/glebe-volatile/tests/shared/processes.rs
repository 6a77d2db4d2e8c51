//! Tests pins, and the numbers of processes in the shared file, after a kill, fork, clone, exec or
//! stop.
//!
//! # Safety
//! Children follow the rules of [`Process`]; system calls use this test's own file.

use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use glebe_testing::time::{slowed, wait_until};
use glebe_volatile::{Error, Priority, Shared};

use super::*;
use glebe_testing::steered::{signal, sleep_on, Process, SteeredEnd};

/// Offset of the byte that a joining process locks.
const JOIN: i64 = 1 << 62;

fn drop_copy<T>(of: &T) {
    // SAFETY: the child does not use the value again, and ends by `_exit`.
    drop(unsafe { std::ptr::read(of) });
}

#[test]
fn a_killed_process_has_no_pin_though_its_child_lives() {
    glebe_testing::alone!();
    let shared = filled(8);
    let pinner = Process::start(|link| {
        let _pin = shared.pin(range(2, 3)).unwrap();
        // SAFETY: the child only sleeps.
        let child = unsafe { libc::fork() };
        if child == 0 {
            sleep_on();
        }
        link.tell(child);
        sleep_on();
    });
    let child = pinner.link.hear();
    assert_eq!(purge_all(&shared), at(5));
    assert_eq!(purger(&shared).look().unwrap().holders.len(), 2);
    pinner.kill();
    assert_eq!(purge_all(&shared), at(3));
    assert_eq!(purger(&shared).look().unwrap().holders.len(), 1);
    signal(child, libc::SIGKILL);
    assert_eq!(runs(&shared.unmark(range(0, 8)).unwrap()), [(0, 8)]);
}

#[test]
fn whoever_comes_after_a_killed_process_has_none_of_its_pins() {
    glebe_testing::alone!();
    let shared = filled(4);
    for _ in 0..200 {
        let pinner = Process::start(|link| {
            let _pin = shared.pin(range(1, 1)).unwrap();
            link.tell(0);
            sleep_on();
        });
        pinner.link.hear();
        pinner.kill();
    }
    let next = Process::start(|_| {
        let _pin = shared.pin(range(2, 1)).unwrap();
        assert_eq!(purge_all(&shared), at(3));
    });
    assert_eq!(next.end(), SteeredEnd::Exit(0));
    assert_eq!(purge_all(&shared), at(1));
}

#[test]
fn a_forked_child_has_pins_of_its_own() {
    glebe_testing::alone!();
    let shared = filled(8);
    let pin = shared.pin(range(0, 2)).unwrap();
    let child = Process::start(|link| {
        for error in [
            pin.read(Bytes::ZERO, &mut [0]).unwrap_err(),
            pin.write(Bytes::ZERO, &[0]).unwrap_err(),
            pin.restored().unwrap_err(),
        ] {
            assert!(matches!(error, Error::Forked), "{error}");
        }
        drop_copy(&pin);
        let own = shared.pin(range(1, 2)).unwrap();
        own.read(Bytes::ZERO, &mut [0]).unwrap();
        link.tell(0);
        link.hear();
        drop(own);
        link.tell(0);
        link.hear();
        drop_copy(&shared);
    });
    child.link.hear();
    assert_eq!(purge_all(&shared), at(5), "the child's drop is not the parent's");
    child.link.tell(0);
    child.link.hear();
    assert_eq!(purge_all(&shared), at(1));
    assert_eq!((byte_of(&shared, 0), byte_of(&shared, 1)), (1, 2));
    child.link.tell(0);
    assert_eq!(child.end(), SteeredEnd::Exit(0));
    drop(pin);
    assert_eq!(purge_all(&shared), at(2));
}

#[test]
fn a_child_uses_the_file_from_its_first_call_on() {
    glebe_testing::alone!();
    let shared = filled(4);
    let purger = purger(&shared);
    for calls in [false, true] {
        let parent = Process::start(|link| {
            let own = Shared::options().adopt(shared.fd().try_clone_to_owned().unwrap()).unwrap();
            let child = Process::start(|child| {
                if calls {
                    _ = own.stats();
                }
                child.tell(0);
                sleep_on();
            });
            child.link.hear();
            link.tell(child.pid);
            sleep_on();
        });
        let child = parent.link.hear();
        parent.kill();
        assert_eq!(purger.look().unwrap().holders.len(), 1 + usize::from(calls));
        signal(child, libc::SIGKILL);
    }
}

#[test]
fn pins_end_with_the_program() {
    glebe_testing::alone!();
    let shared = filled(4);
    let program = Process::start(|link| {
        std::mem::forget(shared.pin(range(0, 4)).unwrap());
        link.tell(0);
        link.hear();
        let (path, stay) = (c"/bin/sleep".as_ptr(), c"1000".as_ptr());
        // SAFETY: the strings are constants, and the list ends with null.
        unsafe { libc::execl(path, path, stay, std::ptr::null::<libc::c_char>()) };
    });
    program.link.hear();
    assert_eq!(purge_all(&shared), Bytes::ZERO);
    program.link.tell(0);
    let is_purged = || purge_all(&shared) > Bytes::ZERO;
    wait_until("the pins of before are counted no more", Duration::from_secs(30), is_purged);
    program.kill();
}

#[test]
fn a_child_that_the_c_library_does_not_know_is_told() {
    glebe_testing::alone!();
    let shared = filled(4);
    let clone = || {
        let none = std::ptr::null::<u8>();
        // SAFETY: without CLONE_VM the child is a copy, with its own stack.
        unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, none, none, none, none) as i32 }
    };
    let pin = shared.pin(range(0, 2)).unwrap();
    let child = Process::start_by(clone, |_| {
        for error in [
            shared.pin(range(1, 1)).map(drop).unwrap_err(),
            shared.unmark(range(1, 1)).map(drop).unwrap_err(),
            shared.mark(range(1, 1), Priority::NORMAL, Order::Fifo).unwrap_err(),
            shared.purge(at(1), Priority::HIGHEST).map(drop).unwrap_err(),
            shared.drop_now(range(1, 1)).map(drop).unwrap_err(),
        ] {
            assert!(matches!(error, Error::Cloned), "{error}");
        }
        assert!(pin.read(Bytes::ZERO, &mut [0]).is_err());
        drop_copy(&pin);
        drop_copy(&shared);
    });
    assert_eq!(child.end(), SteeredEnd::Exit(0));
    assert_eq!(purge_all(&shared), at(2), "the pin is the parent's");
    drop(pin);
}

#[test]
fn a_join_ends_although_another_process_is_stopped_at_its_own() {
    glebe_testing::alone!();
    let shared = filled(1);
    let stopped = Process::start(|link| {
        let path = format!("/proc/self/fd/{}", shared.fd().as_raw_fd());
        let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
        // SAFETY: an all-zero `flock` is valid, and the kernel only reads it.
        unsafe {
            let mut lock: libc::flock = std::mem::zeroed();
            lock.l_type = libc::F_WRLCK as libc::c_short;
            (lock.l_start, lock.l_len) = (JOIN, 1);
            assert_eq!(libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock), 0);
        }
        link.tell(0);
        sleep_on();
    });
    stopped.link.hear();
    signal(stopped.pid, libc::SIGSTOP);
    let adopt = || Shared::options().adopt(shared.fd().try_clone_to_owned().unwrap());
    let begin = Instant::now();
    let error = adopt().unwrap_err();
    assert!(matches!(error, Error::Busy { .. }), "{error}");
    assert!(begin.elapsed() < slowed(Duration::from_secs(20)), "{:?}", begin.elapsed());
    stopped.kill();
    adopt().unwrap();
}

#[test]
fn threads_of_a_child_take_one_place() {
    glebe_testing::alone!();
    let shared = filled(8);
    let child = Process::start(|_| {
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let shared = &shared;
                scope.spawn(move || drop(shared.pin(range(thread, 1)).unwrap()));
            }
        });
        assert_eq!(purger(&shared).look().unwrap().holders.len(), 2);
    });
    assert_eq!(child.end(), SteeredEnd::Exit(0));
}
