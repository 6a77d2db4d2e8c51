//! The probe under a seccomp profile: a call that is refused is told with the profile as remedy,
//! not with a kernel that the machine has.
//!
//! A filter is of one thread, and ends with it.
#![allow(unsafe_code)]

use std::thread;

use glebe::probe::{Mechanism, State, Support};

/// Calls that containers refuse, and the row that names each.
const REFUSED: [(libc::c_long, &str, &str); 6] = [
    (libc::SYS_userfaultfd, "uffd.user", "userfaultfd"),
    (libc::SYS_io_uring_setup, "io_uring", "io_uring_setup"),
    (libc::SYS_membarrier, "membarrier.rseq", "membarrier"),
    (libc::SYS_rseq, "rseq.kernel", "rseq"),
    (libc::SYS_mbind, "numa.policy", "mbind"),
    (libc::SYS_memfd_create, "memfd", "memfd_create"),
];

/// Has the kernel refuse these calls of this thread, which it cannot undo.
fn refuse(errno: libc::c_int) -> bool {
    let op = |code: u32, k: u32, jt: u8| libc::sock_filter { code: code as u16, jt, jf: 0, k };
    // The number of the call is the first word of what the filter is given.
    let mut program = vec![op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0)];
    for (at, (call, ..)) in REFUSED.iter().enumerate() {
        let to_refusal = (REFUSED.len() - at) as u8;
        let jump = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
        program.push(op(jump, *call as u32, to_refusal));
    }
    let end = libc::BPF_RET | libc::BPF_K;
    program.push(op(end, libc::SECCOMP_RET_ALLOW, 0));
    program.push(op(end, libc::SECCOMP_RET_ERRNO | errno as u32, 0));
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the program is live, and the kernel copies it.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) == 0
    }
}

fn probed(errno: libc::c_int) -> Option<Support> {
    thread::spawn(move || refuse(errno).then(Support::probe)).join().expect("the probe ends")
}

#[test]
fn the_profile_is_the_remedy() {
    for errno in [libc::EPERM, libc::ENOSYS] {
        let Some(support) = probed(errno) else {
            println!("skipped: this kernel has no seccomp filters");
            return;
        };
        let row = |key: &str| -> &Mechanism { support.get(key).expect("always listed") };
        for (_, key, call) in REFUSED {
            let row = row(key);
            assert_eq!(row.state, State::No, "{row:?}");
            let profile = format!("allow {call}");
            assert!(row.remedy.contains(&profile) && row.remedy.contains("seccomp"), "{row:?}");
            // Where the profile must be it, nothing else is named.
            assert!(errno == libc::ENOSYS || row.remedy.starts_with("allow "), "{row:?}");
        }
        assert!(!row("rseq.libc").remedy.contains("tunables"));
    }
}
