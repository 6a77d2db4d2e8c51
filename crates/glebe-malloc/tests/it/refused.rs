//! Tests calls that seccomp filters refuse: marking memory, dropping it, and making it accessible.
#![allow(unsafe_code)] // Safety: each call is on memory of this process, or installs a filter.

use glebe::internal::sys::errno;
use glebe_malloc::heap;

use crate::process::{alloc, comes, free, objects, status, Object};

const MIB: u64 = 1 << 20;
const OBJECT: usize = 512 << 10;
const FREE: u32 = libc::MADV_FREE as u32;
const DROP: [u32; 2] = [libc::MADV_DONTNEED as u32, libc::MADV_DONTNEED_LOCKED as u32];

/// Makes the kernel refuse a call with one of these third arguments (empty: any), in this thread
/// and its new threads. Returns false if the kernel has no filters.
fn refuse(call: libc::c_long, third: &[u32], number: i32) -> bool {
    let op = |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter { code: code as u16, jt, jf, k };
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let jump = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let end = libc::BPF_RET | libc::BPF_K;
    let refused = op(end, libc::SECCOMP_RET_ERRNO | number as u32, 0, 0);
    let allowed = op(end, libc::SECCOMP_RET_ALLOW, 0, 0);
    // The filter checks the call's number, then the argument's low half at offset 32.
    let mut program = vec![op(load, 0, 0, 0), op(jump, call as u32, 1, 0), allowed];
    if third.is_empty() {
        program.push(refused);
    } else {
        program.push(op(load, 32, 0, 0));
        for value in third {
            program.extend([op(jump, *value, 0, 1), refused]);
        }
        program.push(allowed);
    }
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the program is live, and the kernel copies it.
    let is_made = cfg!(target_endian = "little")
        && unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter)
                    == 0
        };
    if !is_made {
        println!("skipped: this kernel has no seccomp filters");
    }
    is_made
}

fn free_all(objects: Vec<Object>) {
    for object in objects {
        errno::set(77);
        drop(object);
        assert_eq!(errno::get(), 77);
    }
}

fn marking_is_refused(number: i32) {
    if !refuse(libc::SYS_madvise, &[FREE], number) {
        return;
    }
    free_all(objects(200, OBJECT));
    assert!(comes(|| heap::counts().refused > 0), "{:?}", heap::counts());
    // The keeper thread repeats no refused call after it has seen all frees.
    assert!(
        comes(|| {
            let before = heap::counts();
            std::thread::sleep(std::time::Duration::from_millis(300));
            before.hot > 90 * MIB && heap::counts().refused <= before.refused + 2
        }),
        "{:?}",
        heap::counts()
    );
    let before = heap::counts();
    assert_eq!(before.volatile, 0);
    let again = objects(200, OBJECT);
    assert!(heap::counts().reused_warm > before.reused_warm + 90 * MIB);
    assert!(again.iter().all(Object::is_whole));
    free_all(again);
    let rss = status("VmRSS");
    assert!(heap::trim(0) as u64 > 90 * MIB, "{:?}", heap::counts());
    assert!(status("VmRSS") + (80 << 10) < rss);
}

#[test]
fn memory_that_cannot_be_marked_is_used_again_and_trimmed() {
    glebe_testing::alone!();
    marking_is_refused(libc::EINVAL);
}

#[test]
fn nor_where_a_filter_forbids_it() {
    glebe_testing::alone!();
    marking_is_refused(libc::EPERM);
}

#[test]
fn memory_that_can_be_neither_marked_nor_dropped_stays_and_is_used_again() {
    glebe_testing::alone!();
    let all = [FREE, DROP[0], DROP[1]];
    if !refuse(libc::SYS_madvise, &all, libc::EAGAIN) {
        return;
    }
    for _ in 0..3 {
        free_all(objects(200, OBJECT));
        errno::set(78);
        assert_eq!((heap::trim(0), errno::get()), (0, 78));
    }
    assert!(comes(|| heap::counts().refused > 0));
    let counts = heap::counts();
    assert_eq!((counts.volatile, counts.given_back), (0, 0), "{counts:?}");
    assert!(counts.hot > 90 * MIB && counts.reused_cold < 200 * MIB, "{counts:?}");
}

/// Imitates a full `vm.overcommit_memory=2`: addresses without memory.
#[test]
fn addresses_that_cannot_be_made_accessible_leave_mimalloc_alone() {
    glebe_testing::alone!();
    if !refuse(libc::SYS_mprotect, &[], libc::ENOMEM) {
        return;
    }
    free_all(objects(100, OBJECT));
    assert_eq!(heap::mechanisms().addresses, 0);
    assert_eq!(heap::counts(), heap::Counts::default());
}

#[test]
fn where_no_more_can_be_made_accessible_objects_come_from_elsewhere() {
    glebe_testing::alone!();
    let early = objects(20, OBJECT);
    let before = heap::counts().live;
    if !refuse(libc::SYS_mprotect, &[], libc::ENOMEM) {
        return;
    }
    let late = objects(400, OBJECT);
    assert!(heap::counts().live < before + 100 * MIB, "{:?}", heap::counts());
    assert!(early.iter().chain(&late).all(Object::is_whole));
    free_all(late);
    free_all(early);
    free(alloc(64));
    assert!(heap::trim(0) > 0);
}
