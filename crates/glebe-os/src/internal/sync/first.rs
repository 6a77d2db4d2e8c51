//! [`First`] holds a value that its first use computes.
//!
//! Several threads may compute a value, and the first result stays. No thread waits for another,
//! because a forked child could wait for ever. The value must be cheap to compute twice, without
//! side effects.
//!
//! ```text
//! word   null: no value yet; else a box that is never freed, because `First` is for statics
//! ```
#![allow(unsafe_code)]

use std::ptr;

use super::{MappedPtr, Ordering};

pub struct First<T> {
    value: MappedPtr<T>,
}

impl<T: Send + Sync> First<T> {
    pub const fn new() -> Self {
        Self { value: MappedPtr::new(ptr::null_mut()) }
    }

    #[inline]
    pub fn get_or_compute(&self, compute: impl FnOnce() -> T) -> &T {
        // SAFETY: the pointer is null or a box that is never freed.
        let known = unsafe { self.value.load(Ordering::Acquire).as_ref() };
        known.unwrap_or_else(|| self.store(compute()))
    }

    #[cold]
    fn store(&self, value: T) -> &T {
        let own = Box::into_raw(Box::new(value));
        let (ok, failed) = (Ordering::AcqRel, Ordering::Acquire);
        match self.value.compare_exchange(ptr::null_mut(), own, ok, failed) {
            // SAFETY: `own` is stored now and never freed.
            Ok(_) => unsafe { &*own },
            // SAFETY: no other thread saw `own`; `first` is never freed.
            Err(first) => unsafe {
                drop(Box::from_raw(own));
                &*first
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::{Arc, Barrier};

    use super::*;

    #[test]
    fn the_first_value_stays() {
        let first = First::new();
        let computed = Cell::new(0);
        let compute = |value: u32| {
            *first.get_or_compute(|| {
                computed.set(computed.get() + 1);
                value
            })
        };
        assert_eq!((compute(7), compute(8), computed.get()), (7, 7, 1));
    }

    #[test]
    fn a_second_one_that_is_computed_meanwhile_is_thrown_away() {
        let (first, alive) = (First::new(), Arc::new(()));
        let value = |number: u32| (number, Arc::clone(&alive));
        let outer = first.get_or_compute(|| {
            assert_eq!(first.get_or_compute(|| value(1)).0, 1);
            value(2)
        });
        assert_eq!((outer.0, Arc::strong_count(&alive)), (1, 2));
    }

    #[test]
    fn threads_that_compute_at_once_get_the_same() {
        const THREADS: u32 = 4;
        let (first, together) = (First::new(), Barrier::new(THREADS as usize));
        let values: Vec<usize> = std::thread::scope(|scope| {
            let (first, together) = (&first, &together);
            let get = |number: u32| {
                move || {
                    together.wait();
                    ptr::from_ref(first.get_or_compute(|| number)).addr()
                }
            };
            let threads: Vec<_> = (0..THREADS).map(|number| scope.spawn(get(number))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(values.iter().all(|value| *value == values[0]));
    }
}
