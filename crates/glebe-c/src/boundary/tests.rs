//! Tests what crosses the boundary.

use std::ffi::CStr;

use super::*;

fn last() -> String {
    // SAFETY: the text is valid until this thread calls `last_error` again.
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
    assert_eq!(call(|| Err(Failure::new(GLEBE_ERROR_PANIC, "a\0b"))), GLEBE_ERROR_PANIC);
    assert_eq!(last(), "a");
}

#[test]
fn each_thread_has_its_own_last_error() {
    assert_eq!(call(|| Err(Failure::forked())), GLEBE_ERROR_FORKED);
    std::thread::spawn(|| assert_eq!(last(), "")).join().unwrap();
    assert!(last().contains("forked"));
}

const KNOWN: usize = size_of::<glebe_reserve_options>() / 8;

/// Reads a structure. The first word is the slice's length in bytes, or a size that `read` refuses.
fn read_words(words: &[u64]) -> Result<glebe_reserve_options, Failure> {
    In(words.as_ptr().cast()).read()
}

fn code_of<T>(answer: Result<T, Failure>) -> c_int {
    answer.map_or_else(|failure| failure.code(), |_| 0)
}

#[test]
fn statistics_are_filled_by_their_names() {
    let line = |name: &str, value| Line { name: name.into(), unit: "", value, what: "".into() };
    let mut words = [9; 4];
    words[0] = 3 * WORD;
    let to = Out::<glebe_reserve_stats>(words.as_mut_ptr().cast()).sized().unwrap();
    let second = glebe_reserve_stats::MEMBERS[1];
    to.set_lines(&[line("nobody's", 4), line(second, 5)]);
    assert_eq!(words, [3 * WORD, 0, 5, 9]);
}

#[test]
fn an_older_caller_leaves_out_members_and_a_newer_one_may_not_set_them() {
    let old = read_words(&[16, 5]).unwrap();
    assert_eq!((old.source, old.grow_pool, old.node_mask), (5, 0, 0));
    let mut new = [0; KNOWN + 2];
    (new[0], new[KNOWN - 1]) = ((KNOWN as u64 + 2) * 8, 9);
    assert_eq!(read_words(&new).unwrap().node_mask, 9);
    new[KNOWN + 1] = 1;
    assert_eq!(code_of(read_words(&new)), GLEBE_ERROR_BAD_ARGUMENT);
    for size in [0, 8, 17, SIZE_MAX + 8, u64::MAX] {
        assert_eq!(code_of(read_words(&[size, 5])), GLEBE_ERROR_BAD_SIZE, "{size}");
    }
}

#[test]
fn as_much_is_filled_as_both_sides_know() {
    let value = glebe_reserve_options { source: 5, node_mask: 7, ..Default::default() };
    let fill = |words: &mut [u64]| {
        words[0] = words.len() as u64 * 8;
        let to = Out::<glebe_reserve_options>(words.as_mut_ptr().cast()).sized();
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
