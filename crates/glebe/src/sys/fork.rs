//! [`ForkGuard`]: whether this is still the process that made it, in one load.
//!
//! One page of the process is wiped by fork (`MADV_WIPEONFORK`, Linux 4.14); its only word holds
//! the *generation*: a number that no ancestor of this process had. The first who asks in a child
//! finds zero there and writes the next number. Where the kernel cannot wipe, process numbers are
//! compared, at the price of a system call. Source: madvise(2).
//!
//! ```text
//! word 0   generation, 64 bits   0 = forked since, and nobody has asked
//! ```
//!
//! # Safety
//! The page is never unmapped, so the word in it lives as long as the process.
#![allow(unsafe_code)]

use std::ptr;

use crate::sync::{First, MappedWord, Ordering};
use crate::sys::mmap::wiped_page;
use crate::sys::own::Own;
use crate::sys::page_size;

/// Knows the process that made it from every process forked from it.
#[derive(Clone, Copy, Debug)]
pub struct ForkGuard {
    word: Option<&'static MappedWord>,
    born: u64,
}

impl ForkGuard {
    /// A guard of the calling process.
    #[must_use]
    pub fn new() -> Self {
        let word = *WORD.get_or_compute(wiped_word);
        let born = word.map_or_else(|| u64::from(std::process::id()), generation);
        Self { word, born }
    }

    /// The number of the process that made the guard, which no ancestor of it had; not zero.
    #[must_use]
    #[inline]
    pub fn generation(&self) -> u64 {
        self.born
    }

    /// Whether the calling process was forked, at any remove, from the one that made the guard.
    #[must_use]
    #[inline]
    pub fn is_child(&self) -> bool {
        match self.word {
            // Relaxed: the value changes by fork only, which is no concurrent write.
            Some(word) => word.load(Ordering::Relaxed) != self.born,
            None => self.is_another_process(),
        }
    }

    /// The answer where no word is wiped; out of the way of calls that should be short.
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

/// The word in the page that is wiped, where the kernel can wipe.
static WORD: First<Option<&'static MappedWord>> = First::new();
/// In ordinary memory: a child goes on counting where its parent was.
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

/// Of a page that is never unmapped: of two threads that are first, one leaves its own unused.
fn wiped_word() -> Option<&'static MappedWord> {
    let page = wiped_page().ok()?;
    std::mem::forget(Own::note(page..page + page_size().bytes().as_usize()));
    // SAFETY: mapped for good, and a word at its start.
    Some(unsafe { &*ptr::with_exposed_provenance(page) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_child(body: impl FnOnce() -> bool) -> bool {
        // SAFETY: the children below only make and ask guards, which needs no other thread.
        unsafe { crate::sys::child::in_child(body) }
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
