//! Tests that calls for huge pages are held, and no others.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::ptr;

use glebe_testing::process::{child_of, is_child};

use super::*;

fn is_skipped() -> bool {
    let lack = lack();
    if let Some(lack) = &lack {
        println!("skipped: {lack}");
    }
    lack.is_some()
}

#[test]
fn a_release_has_a_version() {
    assert_eq!(version("6.18.44-fc"), Some((6, 18)));
    assert_eq!(version("5.4"), Some((5, 4)));
    assert_eq!(version(""), None);
}

#[test]
fn a_program_that_asks_for_nothing_ends_as_without_a_filter() {
    if is_skipped() {
        return;
    }
    let (mut child, listener) = spawn(Command::new("sh").args(["-c", "kill -9 $$"])).unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
    // Nobody has the filter any more. On Linux 6.1 `next` would wait for ever.
    let fd = listener.as_fd().as_raw_fd();
    let mut listeners = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
    // SAFETY: the array has one element.
    assert_eq!(unsafe { libc::poll(listeners.as_mut_ptr(), 1, 60_000) }, 1);
    assert_eq!(listeners[0].revents, libc::POLLHUP);
}

#[test]
fn a_program_that_is_missing_is_told_from_a_filter_that_is_refused() {
    if is_skipped() {
        return;
    }
    match spawn(&mut Command::new("/nonexistent")) {
        Err(NotSpawned::Exec(error)) => assert_eq!(error.raw_os_error(), Some(libc::ENOENT)),
        other => panic!("{other:?}"),
    }
}

/// Makes calls, of which the third and the last two ask for huge pages.
fn calls() {
    let map = |flags: i32| {
        let flags = flags | libc::MAP_PRIVATE;
        // SAFETY: the kernel chooses the place.
        unsafe { libc::mmap(ptr::null_mut(), 3 << 20, libc::PROT_READ, flags, -1, 0) };
    };
    map(libc::MAP_ANONYMOUS);
    map(libc::MAP_HUGETLB);
    map(libc::MAP_ANONYMOUS | libc::MAP_HUGETLB | 21 << SIZE_SHIFT | libc::MAP_NORESERVE);
    let get = |flags: i32| {
        // SAFETY: both calls take numbers.
        let id = unsafe { libc::shmget(libc::IPC_PRIVATE, 5 << 20, flags | 0o600) };
        // SAFETY: as above; null sets nothing.
        unsafe { libc::shmctl(id, libc::IPC_RMID, ptr::null_mut()) };
    };
    get(libc::IPC_CREAT);
    get(libc::IPC_CREAT | libc::SHM_HUGETLB);
    map(libc::MAP_ANONYMOUS | libc::MAP_HUGETLB | 30 << SIZE_SHIFT);
}

#[test]
fn only_calls_for_huge_pages_are_held_and_all_go_on() {
    if is_child() {
        return calls();
    }
    if is_skipped() {
        return;
    }
    let test = "only_calls_for_huge_pages_are_held_and_all_go_on";
    let name = format!("internal::sys::processes::seccomp::tests::{test}");
    let (mut child, listener) = spawn(&mut child_of(&name)).unwrap();
    let mut seen = Vec::new();
    while seen.len() < 3 {
        let Some(held) = listener.next().unwrap() else { continue };
        assert!(held.thread > 0 && listener.proceed(&held).unwrap());
        seen.push((held.call, held.len, held.page, held.reserves));
    }
    assert!(child.wait().unwrap().success());
    let page = |log: u32| PageSize::new(1 << log);
    let (three, five) = (Bytes::mib(3), Bytes::mib(5));
    let wanted = [
        (PoolCall::Mmap, three, page(21), false),
        (PoolCall::Shmget, five, None, true),
        (PoolCall::Mmap, three, page(30), true),
    ];
    assert_eq!(seen, wanted);
}
