//! What crosses the boundary, and what does not.

use std::ffi::CStr;

use super::*;
use crate::abi::{glebe_options, GLEBE_ERROR_FORKED, GLEBE_ERROR_PANIC};

fn last() -> String {
    // SAFETY: the text is this thread's until its next call.
    unsafe { CStr::from_ptr(last_error()) }.to_str().unwrap().to_owned()
}

#[test]
fn a_panic_ends_at_the_boundary() {
    assert_eq!(last(), "");
    assert_eq!(call(|| panic!("on purpose: {}", 7)), GLEBE_ERROR_PANIC);
    assert_eq!(last(), "a fault inside glebe was caught: on purpose: 7");
    assert_eq!(call(|| panic!("fixed")), GLEBE_ERROR_PANIC);
    assert!(last().ends_with(": fixed"));
    assert_eq!(call(|| std::panic::panic_any(5)), GLEBE_ERROR_PANIC);
    assert!(last().ends_with(": unknown"));
    assert_eq!(call(|| Ok(3)), 3);
    assert!(last().ends_with(": unknown"), "a success leaves the text");
    assert_eq!(call(|| Err(Failure::Panic("a\0b".into()))), GLEBE_ERROR_PANIC);
    assert!(last().ends_with(": a"));
}

#[test]
fn each_thread_has_its_own_last_error() {
    assert_eq!(call(|| Err(Failure::Forked)), GLEBE_ERROR_FORKED);
    std::thread::spawn(|| assert_eq!(last(), "")).join().unwrap();
    assert!(last().contains("forked"));
}

const KNOWN: usize = size_of::<glebe_options>() / 8;

fn read_words(words: &[u64]) -> Result<glebe_options, Failure> {
    // SAFETY: the tests say no size beyond the slice, but for those that are refused at once.
    unsafe { read(words.as_ptr().cast()) }
}

#[test]
fn an_older_caller_leaves_out_members_and_a_newer_one_may_not_set_them() {
    let old = read_words(&[16, 5]).unwrap();
    assert_eq!((old.len_bytes, old.source, old.room_bytes), (5, 0, 0));
    let mut new = [0; KNOWN + 2];
    (new[0], new[KNOWN - 1]) = ((KNOWN as u64 + 2) * 8, 9);
    assert_eq!(read_words(&new).unwrap().room_bytes, 9);
    new[KNOWN + 1] = 1;
    assert!(matches!(read_words(&new), Err(Failure::Unknown { .. })));
    for size in [0, 8, 17, SIZE_MAX + 8, u64::MAX] {
        assert!(matches!(read_words(&[size, 5]), Err(Failure::BadSize { .. })), "{size}");
    }
}

#[test]
fn as_much_is_filled_as_both_sides_know() {
    let value = glebe_options { len_bytes: 5, source: 6, room_bytes: 7, ..Default::default() };
    let fill = |words: &mut [u64]| {
        words[0] = words.len() as u64 * 8;
        // SAFETY: the first word is the size of the slice.
        let to = unsafe { Fill::<glebe_options>::new(words.as_mut_ptr().cast()) };
        to.map(|to| to.set(&value)).map_err(|failure| failure.code())
    };
    let mut exact = [9; KNOWN];
    assert_eq!(fill(&mut exact), Ok(0));
    assert_eq!((exact[0], exact[1], exact[KNOWN - 1]), (KNOWN as u64 * 8, 5, 7));
    let mut old = [9; 3];
    assert_eq!(fill(&mut old[..2]), Ok(0));
    assert_eq!(old, [16, 5, 9]);
    let mut new = [9; KNOWN + 2];
    assert_eq!(fill(&mut new), Ok(0));
    assert_eq!((new[0], new[KNOWN - 1], new[KNOWN + 1]), (KNOWN as u64 * 8, 7, 0));
}
