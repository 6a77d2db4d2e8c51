//! Tests that the probe blames the seccomp profile, not the kernel, if a profile refuses the calls.
//!
//! A filter applies to one thread and ends with the thread.
#![allow(unsafe_code)]

use std::thread;

use glebe_os::internal::sys::probe::{Mechanism, State, Support};

/// Calls that containers refuse, with the key of the probe's row and the call's name.
const REFUSED: [(libc::c_long, &str, &str); 6] = [
    (libc::SYS_userfaultfd, "uffd.user", "userfaultfd"),
    (libc::SYS_io_uring_setup, "io_uring", "io_uring_setup"),
    (libc::SYS_membarrier, "membarrier.rseq", "membarrier"),
    (libc::SYS_rseq, "rseq.kernel", "rseq"),
    (libc::SYS_mbind, "numa.policy", "mbind"),
    (libc::SYS_memfd_create, "memfd", "memfd_create"),
];

fn refuse(errno: libc::c_int) -> bool {
    let op = |code: u32, k: u32, jt: u8| libc::sock_filter { code: code as u16, jt, jf: 0, k };
    // The filter's input begins with the call's number.
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
    // SAFETY: the program outlives the calls, and the kernel copies it.
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
            // EPERM can only come from the profile, so the row's remedy begins with the profile.
            assert!(errno == libc::ENOSYS || row.remedy.starts_with("allow "), "{row:?}");
        }
        assert!(!row("rseq.libc").remedy.contains("tunables"));
    }
}
