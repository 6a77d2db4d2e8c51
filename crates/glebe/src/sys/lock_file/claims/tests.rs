//! Claims and texts, in files of the tests' own.
//!
//! # Safety
//! Forked children ask the kernel alone.
#![allow(unsafe_code)]

use super::*;
use std::time::Duration;

#[test]
fn a_claim_is_seen_by_others_beside_the_lock_and_after_it() {
    let name = format!("glebe-claims-{}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let file = LockFile::at(&path);
    let lock = || file.lock(Duration::from_secs(5)).unwrap();
    let locked = lock();
    assert!(locked.claim(7).unwrap());
    assert!(locked.claim(7).unwrap(), "it has it already");
    assert!(!locked.is_claimed_by_another(7).unwrap(), "its own");
    drop(locked);
    // SAFETY: the child locks, and asks the kernel; it ends without unwinding.
    let seen = unsafe {
        crate::sys::child::in_child(|| {
            file.opened().is_ok_and(|file| {
                matches!(get_lock(&file, byte(7)), Ok(Some(_)))
                    && matches!(get_lock(&file, byte(8)), Ok(None))
                    && matches!(get_lock(&file, super::super::LOCK), Ok(None))
                    && set_lock(&file, libc::F_WRLCK, byte(7)).is_err()
            })
        })
    };
    assert!(seen, "a child has none of its parent's claims, and sees them");
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_text_is_replaced_in_part_and_cut() {
    let name = format!("glebe-claims-text-{}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let file = LockFile::at(&path);
    assert_eq!(file.text().unwrap(), b"");
    file.set_text(0, b"abcdef").unwrap();
    file.set_text(2, b"xy").unwrap();
    assert_eq!(file.text().unwrap(), b"abxyef");
    file.cut_text(3).unwrap();
    assert_eq!(file.text().unwrap(), b"abx");
    std::fs::remove_file(path).unwrap();
}
