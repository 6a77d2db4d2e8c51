//! Tests a region with forks, system calls, devices, signals and the program's own madvise calls.

use std::time::Duration;
use std::{io, ptr, thread};

use glebe_testing::time::wait_until;

use super::*;

fn full(len: u64, budget: u64) -> Option<Region> {
    let region = region_of(Store::options().pool_limit(pages(16 << 10)), len, budget)?;
    fill(&region, 1);
    Some(region)
}

#[test]
fn a_forked_child_has_no_region_and_the_parents_pages_still_leave() {
    glebe_testing::alone!();
    let Some(region) = full(64, 16) else { return };
    let word = word_at(&region, 3);
    let mut status = 0;
    // SAFETY: the child needs no other thread, and ends by SIGSEGV or `_exit`.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let is_told = matches!(region.read_at(Bytes::ZERO, &mut [0]), Err(SwapError::Forked))
            && matches!(region.resident(Bytes::ZERO, Bytes::ZERO), Err(SwapError::Forked))
            && matches!(region.arm_thread(), Err(SwapError::Forked));
        // SAFETY: these calls need no other thread.
        unsafe {
            libc::signal(libc::SIGSEGV, libc::SIG_DFL);
            if is_told {
                word.read_volatile();
            }
            libc::_exit(1);
        }
    }
    // SAFETY: `pid` is the child, `status` a local.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert_eq!((libc::WIFSIGNALED(status), libc::WTERMSIG(status)), (true, libc::SIGSEGV));
    check(&region, 1);
    fill(&region, 2);
    check(&region, 2);
    assert_eq!(region.stats().stuck_pages, 0);
}

#[test]
fn a_system_call_gets_what_is_resident_alone() {
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;
    let Some(region) = full(64, 16) else { return };
    // The first page is no longer resident.
    let (_reader, writer) = UnixStream::pair().unwrap();
    // SAFETY: the bytes are in a live region.
    let write = || unsafe { libc::write(writer.as_raw_fd(), region.as_ptr().cast(), page()) };
    assert_eq!((write(), io::Error::last_os_error().raw_os_error()), (-1, Some(libc::EFAULT)));
    let guard = region.resident(Bytes::ZERO, pages(1)).unwrap();
    assert_eq!(write(), page() as isize);
    drop(guard);
}

/// Discards a page as the program may do, by madvise(2).
fn discard(region: &Region, page: u64) {
    let at = region.as_ptr().wrapping_add(pages(page).as_usize()).cast();
    // SAFETY: the page is in a live region and has no references.
    assert_eq!(unsafe { libc::madvise(at, pages(1).as_usize(), libc::MADV_DONTNEED) }, 0);
}

#[test]
fn what_the_program_discards_is_zeros_and_no_touch_waits_for_ever() {
    both(64, 32, |region| {
        fill(region, 1);
        let (last, words) = (word_at(region, 63 * page() as u64 / 8 + 4), page() as u64 / 8);
        store(region, 63 * words + 4, 9);
        discard(region, 63);
        // SAFETY: the word is in a live region.
        assert_eq!(unsafe { last.read_volatile() }, 0);
        // The clock algorithm meets the discarded page before the program touches it.
        store(region, 63 * words + 4, 9);
        discard(region, 63);
        (0..60 * words).for_each(|at| assert_eq!(load(region, at), word_of(at, 1)));
        assert_eq!(load(region, 63 * words + 4), 0);
        store(region, 63 * words + 4, 10);
        (0..60 * words).for_each(|at| assert_eq!(load(region, at), word_of(at, 1)));
        assert_eq!(load(region, 63 * words + 4), 10);
    });
}

type Use = (&'static str, fn(&Region));

const USES_OF_PAGE_63: [Use; 4] = [
    ("read_at", |region| {
        let mut bytes = vec![1; page()];
        region.read_at(pages(63), &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0));
    }),
    ("write_at", |region| {
        region.write_at(pages(63) + Bytes::new(9), &[7]).unwrap();
        let mut bytes = [1; 10];
        region.read_at(pages(63), &mut bytes).unwrap();
        assert_eq!(bytes, [0, 0, 0, 0, 0, 0, 0, 0, 0, 7]);
    }),
    ("resident", |region| assert_eq!(region.resident(pages(63), pages(1)).unwrap()[0], 0)),
    ("a live guard", |region| {
        let mut guard = region.resident(pages(63), pages(1)).unwrap();
        discard(region, 63);
        assert_eq!(guard[0], 0);
        guard[1] = 8;
        assert_eq!(guard[..3], [0, 8, 0]);
    }),
];

#[test]
fn no_call_waits_for_ever_on_what_the_program_has_discarded() {
    for options in [Store::options(), without_moves(Store::options())] {
        let options = options.pool_limit(pages(16 << 10));
        let Some(region) = region_of(options, 64, 32) else { return };
        // Leaked, because a thread that waits for ever would still use it after a failure.
        let region: &Region = Box::leak(Box::new(region));
        for (what, use_page) in USES_OF_PAGE_63 {
            fill(region, 1);
            discard(region, 63);
            let user = thread::spawn(move || use_page(region));
            wait_until(what, Duration::from_secs(30), || user.is_finished());
            user.join().unwrap();
            // No pin is left, so the page can leave.
            region.discard(Bytes::ZERO, region.len()).unwrap();
            region.stats().check().unwrap();
        }
    }
}

fn alternate(ss_sp: *mut u8, ss_size: usize, ss_flags: i32) -> libc::stack_t {
    libc::stack_t { ss_sp: ss_sp.cast(), ss_flags, ss_size }
}

#[test]
fn a_thread_that_would_die_of_a_touch_is_told() {
    let Some(region) = full(64, 16) else { return };
    let region = &region;
    thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: the calls use a local set and this thread's mask.
            unsafe {
                let mut set = std::mem::zeroed();
                libc::sigemptyset(&mut set);
                libc::sigaddset(&mut set, libc::SIGBUS);
                libc::pthread_sigmask(libc::SIG_BLOCK, &set, ptr::null_mut());
                assert!(matches!(region.arm_thread(), Err(SwapError::SignalBlocked)));
                libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, ptr::null_mut());
            }
            region.arm_thread().unwrap();
            // The least stack that the kernel takes is too small for the handler.
            let mut small = vec![0_u8; libc::MINSIGSTKSZ];
            let mut before: libc::stack_t = alternate(ptr::null_mut(), 0, libc::SS_DISABLE);
            let stack = alternate(small.as_mut_ptr(), small.len(), 0);
            // SAFETY: the stack outlives its use.
            assert_eq!(unsafe { libc::sigaltstack(&stack, &mut before) }, 0);
            let said = region.arm_thread();
            assert!(matches!(said, Err(SwapError::SignalStack { .. })), "{said:?}");
            let none = alternate(ptr::null_mut(), 0, libc::SS_DISABLE);
            // SAFETY: this ends the use of `small`.
            assert_eq!(unsafe { libc::sigaltstack(&none, ptr::null_mut()) }, 0);
            // The handler now runs on the thread's own stack.
            region.arm_thread().unwrap();
            check(region, 1);
            let mut enough = vec![0_u8; 64 << 10];
            let stack = alternate(enough.as_mut_ptr(), enough.len(), 0);
            // SAFETY: the stack outlives its use.
            assert_eq!(unsafe { libc::sigaltstack(&stack, ptr::null_mut()) }, 0);
            region.arm_thread().unwrap();
            check(region, 1);
            // SAFETY: `before` is the runtime's stack, which the runtime frees later.
            assert_eq!(unsafe { libc::sigaltstack(&before, ptr::null_mut()) }, 0);
        });
    });
}

fn flags_at(addr: usize) -> Option<String> {
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let holds = |line: &str| {
        let (start, rest) = line.split_once('-')?;
        let end = rest.split(' ').next()?;
        let number = |text| usize::from_str_radix(text, 16).ok();
        Some((number(start)?..number(end)?).contains(&addr))
    };
    let of_it = text.lines().skip_while(|line| holds(line) != Some(true));
    of_it.skip(1).find_map(|line| line.strip_prefix("VmFlags:")).map(str::to_owned)
}

#[test]
fn neither_huge_pages_nor_children_nor_core_dumps() {
    let Some(region) = full(64, 16) else { return };
    let flags = flags_at(region.as_ptr().addr()).expect("mapped");
    let has = |flag: &str| flags.split_whitespace().any(|word| word == flag);
    assert!(has("dc") && has("dd") && has("um"), "{flags}");
    if std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
        assert!(has("nh"), "{flags}");
    }
}

/// Pins pages by an io_uring, as a device would, while the returned descriptor is open.
fn pinned_by_a_ring(at: *mut u8, count: u64) -> Option<std::os::fd::OwnedFd> {
    use std::os::fd::FromRawFd;
    let iovec = libc::iovec { iov_base: at.cast(), iov_len: pages(count).as_usize() };
    // SAFETY: the structures are locals of the kernel's size.
    unsafe {
        let mut params = [0_u8; 120];
        let ring = libc::syscall(libc::SYS_io_uring_setup, 4, params.as_mut_ptr());
        if ring < 0 {
            println!("skipped: io_uring: {}", io::Error::last_os_error());
            return None;
        }
        let ring = std::os::fd::OwnedFd::from_raw_fd(ring as i32);
        let fd = std::os::fd::AsRawFd::as_raw_fd(&ring);
        if libc::syscall(libc::SYS_io_uring_register, fd, 0, &raw const iovec, 1) != 0 {
            println!("skipped: io_uring: {}", io::Error::last_os_error());
            return None;
        }
        Some(ring)
    }
}

#[test]
fn pages_that_a_device_has_pinned_stay_and_are_told() {
    let Some(region) = full(64, 16) else { return };
    if !region.moves_pages() {
        return println!("skipped: no UFFDIO_MOVE");
    }
    let guard = region.resident(pages(5), pages(5)).unwrap();
    let Some(ring) = pinned_by_a_ring(region.as_ptr().wrapping_add(5 * page()), 5) else { return };
    drop(guard);
    (0..2).for_each(|_| check_from(&region, 10));
    let stats = region.stats();
    stats.check().unwrap();
    assert!(stats.stuck_pages > 0, "{stats}");
    let refused = region.set_budget(pages(4)).unwrap_err();
    let is_told = matches!(&refused, SwapError::Os(error) if error.call() == "UFFDIO_MOVE");
    assert!(is_told && region.budget() == pages(16), "{refused}");
    let words = page() as u64 / 8;
    (5 * words..10 * words).for_each(|at| assert_eq!(load(&region, at), word_of(at, 1)));
    drop(ring);
    // The kernel frees a ring with some delay.
    let is_lowered = || region.set_budget(pages(4)).is_ok();
    wait_until("the pages are unpinned", Duration::from_secs(10), is_lowered);
    (0..3).for_each(|_| check(&region, 1));
}
