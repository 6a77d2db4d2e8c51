//! [`List`] is a lock-free list that only grows. Signal handlers and forked children may iterate
//! over it.
//!
//! ```text
//! first -> last added -> ... -> first added -> null
//! ```
#![allow(unsafe_code)]

use std::ptr;

use super::{MappedPtr, Ordering};

#[derive(Debug)]
pub struct List<T: 'static> {
    first: MappedPtr<Node<T>>,
}

#[derive(Debug)]
struct Node<T: 'static> {
    entry: T,
    next: MappedPtr<Node<T>>,
}

impl<T: Send + Sync> List<T> {
    pub const fn new() -> Self {
        Self { first: MappedPtr::new(ptr::null_mut()) }
    }

    pub fn iter(&self) -> impl Iterator<Item = &'static T> {
        let mut at = self.first.load(Ordering::Acquire).cast_const();
        std::iter::from_fn(move || {
            // SAFETY: `at` is null, or a complete node that is never freed.
            let node: &'static Node<T> = unsafe { at.as_ref() }?;
            at = node.next.load(Ordering::Relaxed).cast_const();
            Some(&node.entry)
        })
    }

    /// Returns the first matching entry, or adds and returns the result of `make`.
    pub fn find_or_add(&self, is_it: impl Fn(&T) -> bool, make: impl FnOnce() -> T) -> &'static T {
        let mut first = self.first.load(Ordering::Acquire);
        if let Some(entry) = self.iter().find(|entry| is_it(entry)) {
            return entry;
        }
        let node = Box::new(Node { entry: make(), next: MappedPtr::new(first) });
        let node: &'static Node<T> = Box::leak(node);
        let (at, set, seen) = (ptr::from_ref(node).cast_mut(), Ordering::AcqRel, Ordering::Acquire);
        while let Err(now) = self.first.compare_exchange(first, at, set, seen) {
            // Another thread may have added a match; then `node` stays unused.
            if let Some(entry) = self.iter().find(|entry| is_it(entry)) {
                return entry;
            }
            node.next.store(now, Ordering::Relaxed);
            first = now;
        }
        &node.entry
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_add_the_same_at_once_get_the_same() {
        static LIST: List<u32> = List::new();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..100).for_each(|n| _ = LIST.find_or_add(|at| *at == n, || n)));
            }
        });
        let mut all: Vec<u32> = LIST.iter().copied().collect();
        all.sort_unstable();
        assert_eq!(all, (0..100).collect::<Vec<_>>());
        assert!(ptr::eq(
            LIST.find_or_add(|at| *at == 7, || 7),
            LIST.find_or_add(|at| *at == 7, || 7)
        ));
    }
}
