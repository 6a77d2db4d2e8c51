//! Tests a process that may not open its page map, or whose `/proc` shows only processes.
//!
//! # Safety
//! prctl, unshare and mount change only a process that runs one test.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;

use glebe::contig::{Contig, Error, Proof, Source};
use glebe::internal::sys::processes::process::effective_user;
use glebe::reclaim::{Policy, Reclaimer};
use glebe::reserve::Reserve;
use glebe::units::Bytes;
use glebe::volatile::{Engine, Priority, Region};
use glebe_testing::process::{child_of, is_child};

use super::use_all::use_all;
use super::{lacks_thp, NOBODY};

const LEN: Bytes = Bytes::mib(8);

/// Makes the process undumpable, as a change of user does. Its page map then belongs to root.
fn become_undumpable() {
    // SAFETY: `prctl` takes integers here.
    let refused = unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) };
    assert_eq!(refused, 0);
    let error = File::open("/proc/self/pagemap").expect_err("it is root's");
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
}

fn all_is_had_but_frames() {
    for source in [Source::Plain, Source::Thp, Source::HUGETLB_2M] {
        let memory = match Contig::options().source(source).build(LEN) {
            Ok(memory) => memory,
            Err(error @ (Error::PoolShort { .. } | Error::NoSuchSize { .. })) => {
                println!("skipped: {error}");
                continue;
            }
            Err(error) if lacks_thp(&error) => continue,
            Err(error) => panic!("{source}: {error}"),
        };
        assert!(matches!(memory.proof(), Proof::Within(_)), "{source}: {:?}", memory.proof());
        assert!(memory.runs().iter().all(|run| run.pfn.is_none()));
        let told = memory.verify().unwrap_err().to_string();
        assert!(told.contains("PR_SET_DUMPABLE"), "{told}");
    }
    use_all(&Reserve::new(LEN).unwrap());
    let region = Region::new(LEN).unwrap();
    assert_eq!(region.engine(), Engine::Tag);
    region.write(Bytes::ZERO, &[7; 1 << 14]).unwrap();
    region.mark(Bytes::ZERO..region.len(), Priority::NORMAL).unwrap();
    assert!(region.unmark(Bytes::ZERO..Bytes::new(1 << 14)).unwrap().is_empty());
}

#[test]
fn a_process_that_is_not_dumpable_has_all_but_frames() {
    if is_child() {
        become_undumpable();
        return all_is_had_but_frames();
    }
    let mut child = child_of("contig::closed::a_process_that_is_not_dumpable_has_all_but_frames");
    if effective_user() == 0 {
        child.uid(NOBODY).gid(NOBODY);
    }
    match child.status() {
        Ok(status) => assert!(status.success()),
        Err(error) => println!("skipped: nobody cannot run this program: {error}"),
    }
}

/// Mounts a `/proc` that shows only processes.
fn hide_the_machine() -> io::Result<()> {
    let mount = |what: &CStr, at: &CStr, kind: &CStr, flags, data: &CStr| {
        // SAFETY: the strings outlive the call.
        match unsafe {
            libc::mount(what.as_ptr(), at.as_ptr(), kind.as_ptr(), flags, data.as_ptr().cast())
        } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: `unshare` takes flags.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
        return Err(io::Error::last_os_error());
    }
    mount(c"none", c"/", c"none", libc::MS_REC | libc::MS_PRIVATE, c"")?;
    mount(c"proc", c"/proc", c"proc", 0, c"subset=pid")
}

#[test]
fn a_process_that_sees_processes_alone_has_a_reserve_and_a_reclaimer() {
    if is_child() {
        assert!(!Path::new("/proc/meminfo").exists());
        use_all(&Reserve::new(LEN).unwrap());
        drop(Contig::new(LEN).unwrap());
        let reclaimer = Reclaimer::new(Policy::default()).unwrap();
        reclaimer.poll().unwrap();
        return;
    }
    if effective_user() != 0 {
        return println!("skipped: only root can mount a /proc");
    }
    let mut child = child_of(
        "contig::closed::a_process_that_sees_processes_alone_has_a_reserve_and_a_reclaimer",
    );
    // SAFETY: after the fork, `hide_the_machine` makes system calls only.
    unsafe { child.pre_exec(hide_the_machine) };
    match child.status() {
        Ok(status) => assert!(status.success()),
        Err(error) => println!("skipped: no /proc can be mounted: {error}"),
    }
}
