//! Tests that no lock of a file remains after its drop or refusal, whichever system call fails.
//!
//! # Safety
//! The kernel fills a local and reads an open descriptor.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Duration;

use glebe::internal::sys::files::lock_file::LockFile;
use glebe_testing::alone;

use crate::walk::walk_all;
use crate::{files, Outcome};

fn is_locked(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    // SAFETY: all zeros is a valid `flock`.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    // SAFETY: the descriptor is open and the kernel writes to the local `lock`.
    let told = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) };
    assert_eq!(told, 0, "F_OFD_GETLK");
    libc::c_int::from(lock.l_type) != libc::F_UNLCK
}

fn hold(path: &Path) -> Outcome {
    let held = LockFile::at(path).lock(Duration::ZERO)?;
    assert!(is_locked(path));
    held.set_record(b"held")?;
    assert_eq!(held.record()?, b"held");
    Ok(())
}

#[test]
fn a_lock_ends_whatever_call_fails() {
    alone!();
    let dir = files::folder("lock");
    let path = dir.path().join("lock");
    walk_all(None, "lock of a file", || {
        let twice = hold(&path).and_then(|()| hold(&path));
        assert!(!is_locked(&path), "{twice:?}");
        twice
    });
}
