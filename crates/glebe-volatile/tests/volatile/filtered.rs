//! Tests processes whose filters deny userfaultfd (as in a container), PAGEMAP_SCAN, or almost
//! every system call.
//!
//! Safety: only children set filters, and each filter lets the child exit.

use std::mem::offset_of;

use glebe_volatile::{Engine, Error, Priority, Region};

use super::adopted::Mapped;
use super::children::{child_says, fork, status_of};
use super::memory::{fill, is_filled, lost, pages, purge, regions, whole};

/// `USERFAULTFD_IOC_NEW` of the device file.
const NEW_BY_DEVICE: u32 = 0xAA00;
/// `PAGEMAP_SCAN`.
const SCAN: u32 = 0xC060_6610;

fn load(offset: usize) -> libc::sock_filter {
    let code = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    libc::sock_filter { code, jt: 0, jf: 0, k: offset as u32 }
}

/// Skips `miss` instructions unless the loaded value is `k`.
fn unless(k: u32, miss: u8) -> libc::sock_filter {
    let code = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    libc::sock_filter { code, jt: 0, jf: miss, k }
}

fn answer(k: u32) -> libc::sock_filter {
    libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k }
}

fn deny_userfaultfd() -> bool {
    let denied = answer(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32);
    let number = load(offset_of!(libc::seccomp_data, nr));
    let request = load(offset_of!(libc::seccomp_data, args) + size_of::<u64>());
    let mut filter = [
        number,
        unless(libc::SYS_userfaultfd as u32, 1),
        denied,
        unless(libc::SYS_ioctl as u32, 3),
        request,
        unless(NEW_BY_DEVICE, 1),
        denied,
        answer(libc::SECCOMP_RET_ALLOW),
    ];
    set(&mut filter)
}

fn deny_ioctl(request: u32, error: i32) -> bool {
    set(&mut [
        load(offset_of!(libc::seccomp_data, nr)),
        unless(libc::SYS_ioctl as u32, 3),
        load(offset_of!(libc::seccomp_data, args) + size_of::<u64>()),
        unless(request, 1),
        answer(libc::SECCOMP_RET_ERRNO | error as u32),
        answer(libc::SECCOMP_RET_ALLOW),
    ])
}

fn set(filter: &mut [libc::sock_filter]) -> bool {
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program outlives the call; the process is a child.
    let is_set = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    if !is_set {
        println!("skipped: seccomp: {}", std::io::Error::last_os_error());
    }
    is_set
}

/// Makes PAGEMAP_SCAN fail as an older kernel, an emulator or a filter does.
#[test]
fn where_no_pages_are_scanned_their_entries_tell() {
    glebe_testing::alone!();
    for error in [libc::ENOTTY, libc::ENOSYS, libc::EPERM] {
        assert!(child_says(fork, || {
            if !deny_ioctl(SCAN, error) {
                return true;
            }
            regions(64).all(|region| {
                fill(&region, 0..64);
                region.mark(whole(&region), Priority::NORMAL).unwrap();
                purge(&region, 2..4);
                let is_told = lost(region.unmark(whole(&region))) == [2, 3];
                is_told && is_filled(&region, 0..2) && is_filled(&region, 4..64)
            })
        }));
    }
}

/// Makes PAGEMAP_SCAN fail. `drop_now` must then drop exactly the pages that `unmark` reports.
#[test]
fn what_was_dropped_is_gone_also_after_a_mark_that_was_hindered() {
    glebe_testing::alone!();
    for region in regions(64).filter(|region| region.engine() == Engine::Tag) {
        assert!(child_says(fork, || {
            fill(&region, 0..64);
            if !deny_ioctl(SCAN, libc::EIO) {
                return true;
            }
            let _ = region.mark(whole(&region), Priority::NORMAL);
            let dropped = region.drop_now(whole(&region)).unwrap();
            let told = lost(region.unmark(whole(&region)));
            println!("{dropped} dropped, {} pages told lost", told.len());
            let is_there = |page: u64| is_filled(&region, page..page + 1);
            let is_right = (0..64).all(|page| is_there(page) != told.contains(&page));
            is_right && dropped == pages(0..told.len() as u64).end
        }));
    }
}

#[test]
fn where_userfaultfd_is_denied_the_other_engine_is_taken() {
    glebe_testing::alone!();
    let mapped = Mapped::of_pages(8);
    let goes_round = |region: &Region| {
        fill(region, 0..8);
        region.mark(whole(region), Priority::NORMAL).unwrap();
        purge(region, 2..4);
        let is_told = lost(region.unmark(whole(region))) == [2, 3];
        is_told && is_filled(region, 0..2) && is_filled(region, 4..8)
    };
    let falls_back = || {
        let own = Region::new(pages(0..8).end).unwrap();
        let adopted = mapped.adopted_by(Region::options()).unwrap();
        let refused = Region::options().engine(Engine::Scan).build(pages(0..8).end);
        let is_refused =
            matches!(&refused, Err(Error::Os(error)) if error.to_string().contains("userfaultfd"));
        let fell_back = own.engine() == Engine::Tag && adopted.engine() == Engine::Tag;
        is_refused && fell_back && goes_round(&own) && goes_round(&adopted)
    };
    // `falls_back` runs in a grandchild, because the child may have an older userfaultfd.
    assert!(child_says(fork, || {
        if !deny_userfaultfd() {
            return true;
        }
        child_says(fork, falls_back)
    }));
}

/// Unmarks in a child that is killed for almost any system call.
fn unmarks_in_silence(region: &Region, losses: &[u64]) -> i32 {
    status_of(fork, || {
        let round = || {
            // The tag engine may need system calls to unmark longer runs.
            let marks = (0..64).step_by(8).map(|first| pages(first..first + 8));
            marks.for_each(|range| region.mark(range, Priority::NORMAL).unwrap());
            losses.iter().for_each(|page| purge(region, *page..*page + 1));
        };
        // The first round grows the heap, so that the last unmark needs no system call.
        round();
        drop(lost(region.unmark(whole(region))));
        fill(region, 0..64);
        round();
        // SAFETY: strict mode affects only the child, and allows the child's `SYS_exit`.
        unsafe {
            if libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_STRICT) != 0 {
                libc::_exit(2);
            }
            let told = region.unmark(whole(region));
            let told = told.is_ok_and(|purged| purged.pages().get() >= losses.len() as u64);
            libc::syscall(libc::SYS_exit, i32::from(!told));
        }
        false
    })
}

#[test]
fn the_tag_engine_unmarks_without_a_system_call() {
    glebe_testing::alone!();
    let mapped = Mapped::of_pages(64);
    for (engine, is_own) in [(Engine::Tag, true), (Engine::Tag, false), (Engine::Scan, true)] {
        let options = Region::options().engine(engine);
        let made = match is_own {
            true => options.build(pages(0..64).end),
            false => mapped.adopted_by(options),
        };
        let region = match made {
            Ok(region) => region,
            Err(error) => {
                println!("skipped: engine {engine:?}: {error}");
                continue;
            }
        };
        fill(&region, 0..64);
        for losses in [&[][..], &[3, 4, 40]] {
            let status = unmarks_in_silence(&region, losses);
            if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 2 {
                println!("skipped: no strict seccomp");
                return;
            }
            // Only the tag engine unmarks without a system call, if no page is lost.
            let is_silent = engine == Engine::Tag && losses.is_empty();
            let killed = libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGKILL;
            let fine = libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0;
            assert_eq!(
                (fine, killed),
                (is_silent, !is_silent),
                "{engine:?}, its own {is_own}, {losses:?} {status:#x}"
            );
        }
    }
}
