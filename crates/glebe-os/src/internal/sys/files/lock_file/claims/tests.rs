//! Tests claims and records.
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
    assert!(locked.claim(7).unwrap() && !locked.claim(7).unwrap());
    assert_eq!(locked.own_claim(), Some(7));
    assert!(locked.is_claimed(7).unwrap(), "its own");
    drop(locked);
    // SAFETY: the child only makes system calls.
    let seen = unsafe {
        glebe_testing::child::in_child(|| {
            file.lock(Duration::from_secs(5)).is_ok_and(|locked| {
                locked.own_claim().is_none()
                    && matches!(locked.is_claimed(7), Ok(true))
                    && matches!(locked.is_claimed(8), Ok(false))
                    && matches!(locked.claim(7), Ok(false))
                    && matches!(locked.claim(8), Ok(true))
                    && locked.own_claim() == Some(8)
            })
        })
    };
    assert!(seen, "a child has none of its parent's claims, and sees them");
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_second_copy_in_the_process_sees_the_claims_of_the_first() {
    let name = format!("glebe-claims-copies-{}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let copy = || &*Box::leak(Box::new(LockFile::new(&path)));
    let (first, second) = (copy(), copy());
    let lock = |file: &'static LockFile| file.lock(Duration::from_secs(5)).unwrap();
    assert!(lock(first).claim(7).unwrap());
    drop(std::fs::File::open(&path).unwrap());
    let locked = lock(second);
    assert!(locked.own_claim().is_none() && locked.is_claimed(7).unwrap());
    assert!(!locked.claim(7).unwrap() && locked.claim(8).unwrap());
    drop(locked);
    assert!(lock(first).is_claimed(8).unwrap() && !lock(first).claim(8).unwrap());
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
