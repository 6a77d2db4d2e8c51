//! [`ForkGuard`] distinguishes a process from its forked children by one load.
//!
//! fork wipes a page (`MADV_WIPEONFORK`, Linux 4.14) whose first word holds the *generation*, a
//! number that no ancestor had. A child finds zero and stores the next number. If the kernel cannot
//! wipe, guards compare process numbers, by a system call. Source: madvise(2).
#![allow(unsafe_code)]

use std::ptr;

use crate::internal::sync::{First, MappedWord, Ordering};
use crate::internal::sys::memory::mmap::wiped_page;
use crate::internal::sys::memory::own::Own;
use crate::internal::sys::page_size;

#[derive(Clone, Copy, Debug)]
pub struct ForkGuard {
    word: Option<&'static MappedWord>,
    born: u64,
}

impl ForkGuard {
    #[must_use]
    pub fn new() -> Self {
        let word = *WORD.get_or_compute(wiped_word);
        let born = word.map_or_else(|| u64::from(std::process::id()), generation);
        Self { word, born }
    }

    /// Returns a number that differs in a forked child; never zero.
    #[must_use]
    #[inline]
    pub fn generation(&self) -> u64 {
        self.born
    }

    /// Returns true in a forked descendant of the guard's process.
    #[must_use]
    #[inline]
    pub fn is_child(&self) -> bool {
        match self.word {
            // Relaxed is enough, because only fork changes the value.
            Some(word) => word.load(Ordering::Relaxed) != self.born,
            None => self.is_another_process(),
        }
    }

    #[cold]
    fn is_another_process(&self) -> bool {
        u64::from(std::process::id()) != self.born
    }
}

impl Default for ForkGuard {
    fn default() -> Self {
        Self::new()
    }
}

/// Word in the wiped page; `None` if the kernel cannot wipe.
static WORD: First<Option<&'static MappedWord>> = First::new();
/// A child continues from this generation, because fork does not wipe this word.
static LAST_GENERATION: MappedWord = MappedWord::new(0);

fn generation(word: &MappedWord) -> u64 {
    let now = word.load(Ordering::Relaxed);
    if now != 0 {
        return now;
    }
    let next = LAST_GENERATION.fetch_add(1, Ordering::Relaxed) + 1;
    match word.compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => next,
        Err(other) => other,
    }
}

/// Maps the wiped page. If two threads do so at once, one page stays unused.
fn wiped_word() -> Option<&'static MappedWord> {
    let page = wiped_page().ok()?;
    std::mem::forget(Own::note(page..page + page_size().bytes().as_usize()));
    // SAFETY: the page is never unmapped and begins with a word.
    Some(unsafe { &*ptr::with_exposed_provenance(page) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_child(body: impl FnOnce() -> bool) -> bool {
        // SAFETY: the checks need no other thread.
        unsafe { glebe_testing::child::in_child(body) }
    }

    #[test]
    fn a_child_knows_its_own_guards_from_inherited_ones() {
        let guard = ForkGuard::new();
        assert!(!guard.is_child());
        assert!(in_child(|| {
            let own = ForkGuard::new();
            guard.is_child()
                && !own.is_child()
                && in_child(|| guard.is_child() && own.is_child() && !ForkGuard::new().is_child())
                && !own.is_child()
        }));
        assert!(!guard.is_child());
    }

    #[test]
    fn without_wiping_process_numbers_are_compared() {
        let guard = ForkGuard { word: None, born: u64::from(std::process::id()) };
        assert!(!guard.is_child());
        assert!(in_child(|| guard.is_child()));
    }
}
